"""What the runs of a sweep return, side by side: in memory, or in a Zarr directory.

An array of results has the axes of the grid before its own and, in a directory, one chunk a run: a run is
written to files of its own, and nothing is read, changed and written back. One process writes, whoever
computes; the mark of a run is written after its results, and each file appears complete or not at all: a
sweep that is killed at any moment goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from time import strftime
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from spo_fast.files import locked
from spo_fast.simulation import Simulation
from spo_fast.validation import describe, package

if TYPE_CHECKING:
    import xarray

FINISHED = "finished"
FORMAT = 1
_ATTRIBUTE = "sweep"  # of a store: what was asked for, as JSON
_RESULT = "result"  # name of a result that has none
_LARGEST_WHOLE = 2**53  # integers beyond are no doubles
_FEW = 5  # values that a message lists

Axes = dict[str, list[Any]]  # names with their values
Index = tuple[int, ...]

# ---------------------------------------------------------------- results of a run

_Variable = tuple[tuple[str, ...], np.ndarray, dict[str, Any]]  # dimensions, values, attributes


def _outputs(value: Any, axes: Axes) -> tuple[dict[str, _Variable], dict[str, _Variable]]:
    """Return variables and coordinates of what a run has returned.

    Raises
    ------
    ValueError
        If it is nothing that can be kept.
    """
    variables: dict[str, _Variable] = {}
    coordinates: dict[str, _Variable] = {}
    for name, entry in _entries(value):
        if not isinstance(name, str) or name in (*axes, FINISHED, ""):
            raise ValueError(f"a run must return other names than those of the grid, got {describe(name)}")
        refuse_path(name, "a run must return names")
        variables[name] = _variable(name, entry, coordinates)
    if not variables:
        raise ValueError("a run must return something to keep, got nothing")
    _refuse_dimensions(variables, axes)
    return variables, coordinates


def refuse_path(name: str, what: str) -> None:
    """Refuse names that cannot be those of files in a store.

    Raises
    ------
    ValueError
        For a name with a slash in either direction, of dots alone, reserved by Zarr, or its file's.
    """
    if set(name) & set("/\\\0") or not name.strip(".") or name.startswith("__") or name == "zarr.json":
        raise ValueError(f"{what} that can be names of files, got {name!r}")


def _refuse_dimensions(variables: Mapping[str, _Variable], axes: Axes) -> None:
    """Refuse dimensions of which a dataset could not be made."""
    sizes: dict[str, int] = {}
    for name, (dimensions, array, _) in variables.items():
        if len(dimensions) != array.ndim or len(set(dimensions)) != array.ndim:
            what = f"{dimensions} for shape {array.shape}"
            raise ValueError(f"{name} must have a dimension of its own for each axis, got {what}")
        for dimension, size in zip(dimensions, array.shape, strict=True):
            if dimension in (*axes, *variables, FINISHED):
                raise ValueError(f"{name} must have dimensions of other names, got {dimension!r}")
            refuse_path(dimension, f"{name} must have dimensions with names")
            if sizes.setdefault(dimension, size) != size:
                raise ValueError(f"{dimension} must be of one length, got {sizes[dimension]} and {size}")


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    import xarray

    if isinstance(value, Simulation):
        dataset = value.to_xarray()
        # Steps that a run has chosen are its own: their times are results like others.
        own = value.method == "rk45" and value.t.ndim == 1
        value = dataset.swap_dims(t="sample", t_observe="observation") if own else dataset
    if isinstance(value, xarray.Dataset):
        aside = [name for name, array in value.coords.items() if name not in value.dims]
        numbers = [name for name in aside if value[name].dtype.kind in "biufc"]
        return list(value.reset_coords(numbers).data_vars.items())
    if isinstance(value, Mapping):
        return value.items()
    name = value.name if isinstance(value, xarray.DataArray) and value.name is not None else _RESULT
    return [(name, value)]


def _variable(name: str, value: Any, coordinates: dict[str, _Variable]) -> _Variable:
    import xarray

    if isinstance(value, xarray.DataArray):
        for dimension in value.dims:
            if dimension in value.coords:
                along = value.coords[dimension]
                if along.dtype.kind not in "biufcUT":
                    raise ValueError(f"{dimension} must be along numbers or strings, got {describe(along)}")
                coordinates[str(dimension)] = ((str(dimension),), along.values, _attributes(along.attrs))
        return tuple(map(str, value.dims)), _numbers(value.values, name), _attributes(value.attrs)
    dimensions = None
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], Real):
        dimensions, value = value
        dimensions = (dimensions,) if isinstance(dimensions, str) else tuple(dimensions)
    array = _numbers(value, name)
    if dimensions is None:
        dimensions = tuple(f"{name}_{axis}" for axis in range(array.ndim))
    return dimensions, array, {}


def _numbers(value: Any, name: str) -> np.ndarray:
    """Return an array of doubles: what is missing can then be NaN."""
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind in "biufc":
        value = np.ma.filled(value.astype(np.result_type(value.dtype, np.float64)), np.nan)
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{name} must be numbers, got {describe(value)}")
    if array.dtype.kind in "iu" and np.any((array > _LARGEST_WHOLE) | (array < -_LARGEST_WHOLE)):
        raise ValueError(f"{name} must fit double precision, got an integer beyond 2**53")
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON knows them."""
    return {
        str(name): value if isinstance(value, str | int | float) else str(value)
        for name, value in attributes.items()
    }


# ---------------------------------------------------------------- where results are kept


class Results:
    """Results under their places; a subclass says where the arrays are.

    Attributes
    ----------
    axes : dict
        Names and values of the axes.
    finished : ndarray of bool
        Which runs are kept.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self.axes: Axes = asked["axes"]
        self.shape = tuple(map(len, self.axes.values()))
        self.finished = np.zeros(self.shape, bool)
        self._arrays: dict[str, Any] = {}
        self._dimensions: dict[str, tuple[str, ...]] = {}  # of each array, without the axes
        self._coordinates: dict[str, Any] = {}
        self.attributes = {
            _ATTRIBUTE: json.dumps(asked),
            "function": asked["function"]["name"],
            **self._origin(),
        }

    @staticmethod
    def _origin() -> dict[str, str]:
        import spo_fast

        command = " ".join(sys.argv)
        return {
            "version": spo_fast.__version__,
            "created": strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": command,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """Close what is open."""

    def keep(self, index: Index, value: Any) -> None:
        """Keep what a run has returned; doing so twice does no harm.

        Raises
        ------
        ValueError
            If it cannot be kept beside the others.
        """
        variables, coordinates = _outputs(value, self.axes)
        if self._arrays:
            self._compare(variables, coordinates)
        else:
            for name, (dimensions, array, attributes) in coordinates.items():
                self._new_coordinate(name, dimensions, array, attributes)
                self._coordinates[name] = array
            made = {name: self._new_array(name, *variable) for name, variable in variables.items()}
            self._dimensions = {name: variable[0] for name, variable in variables.items()}
            self._arrays = made
        for name, (_, array, _) in variables.items():
            self._arrays[name][(*index, ...)] = array
        self._finish(index)

    def _compare(self, variables: dict[str, _Variable], coordinates: dict[str, _Variable]) -> None:
        if set(variables) != set(self._arrays):
            first, now = (", ".join(sorted(names)) for names in (self._arrays, variables))
            raise ValueError(f"a run must return the names of the first one, {first}, got {now}")
        for name, (dimensions, array, _) in variables.items():
            kept, along = self._arrays[name], self._dimensions[name]
            if dimensions != along:
                raise ValueError(
                    f"{name} must have the dimensions of the first run's, {along}, got {dimensions}"
                )
            shape = kept.shape[len(self.shape) :]
            if array.shape != shape:
                raise ValueError(f"{name} must have the shape of the first run's, {shape}, got {array.shape}")
            if array.dtype.kind == "c" and kept.dtype.kind != "c":
                raise ValueError(f"{name} must be real as the first run's, got {describe(array)}")
        for name, (_, array, _) in coordinates.items():
            kept = self._coordinates.get(name)
            if kept is None or not np.array_equal(kept, array, equal_nan=array.dtype.kind in "fc"):
                raise ValueError(
                    f"{name} must have the values of the first run's, got others: what differs from run to "
                    "run is returned as a result"
                )

    def _finish(self, index: Index) -> None:
        self.finished[index] = True

    def _new_array(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> Any:
        raise NotImplementedError

    def _new_coordinate(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> None:
        raise NotImplementedError

    def note(self, failures: Sequence[str]) -> None:
        """Keep what failed, for the reader."""
        self.attributes.pop("failures", None)
        if failures:
            self.attributes["failures"] = "\n".join(failures)

    def dataset(self) -> xarray.Dataset:
        """Return what is kept."""
        raise NotImplementedError


class Memory(Results):
    """Results in arrays of this process."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked)
        self._described: dict[str, tuple[tuple[str, ...], Any]] = {}

    def _new_array(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> Any:
        self._described[name] = (*self.axes, *dimensions), attributes
        return np.full(self.shape + array.shape, np.nan, array.dtype)

    def _new_coordinate(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> None:
        self._described[name] = dimensions, attributes

    def dataset(self) -> xarray.Dataset:
        """Return what is kept."""
        import xarray

        own = {name: self._described[name] for name in self._arrays}
        variables = {name: (dims, self._arrays[name], attributes) for name, (dims, attributes) in own.items()}
        coordinates: dict[str, Any] = {name: (name, values) for name, values in self.axes.items()}
        for name, array in self._coordinates.items():
            dimensions, attributes = self._described[name]
            coordinates[name] = (dimensions, array, attributes)
        variables[FINISHED] = (tuple(self.axes), self.finished, {})
        return xarray.Dataset(variables, coordinates, self.attributes)


class Store(Results):
    """Results in a Zarr directory, for one writer.

    Parameters
    ----------
    path : Path
        Made where it does not exist.
    asked : dict
        What the sweep is.
    accept : bool
        Whether the function may have changed.

    Raises
    ------
    ValueError
        If another sweep is in there.
    RuntimeError
        If another process writes to it.
    """

    def __init__(self, path: Path, asked: dict[str, Any], accept: bool) -> None:
        super().__init__(asked)
        self._path, self._asked, self._accept = path, asked, accept

    def __enter__(self) -> Self:
        """Open the store, and keep others out."""
        package("zarr", "sweep", "studies")
        if self._path.exists() and not self._path.is_dir():
            raise ValueError(f"store must be a Zarr directory, got the file {self._path}")
        self._path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(locked(self._path))
            self._open()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *ended: object) -> None:
        """Let others in."""
        self._stack.close()

    def _open(self) -> None:
        import zarr

        if (self._path / "zarr.json").exists():
            self._group: Any = zarr.open_group(self._path, mode="r+")
            self._recognise(dict(self._group.attrs))
        elif any(self._path.iterdir()):
            raise ValueError(f"store {self._path} is no sweep's: it holds other files")
        else:
            self._group = zarr.create_group(self._path, attributes=self.attributes)
        self._fit_axes()
        self._group.attrs.update(self.attributes)  # last: what a kill before it leaves, the next call mends

    def _recognise(self, found: dict[str, Any]) -> None:
        """Refuse another sweep's store, and take over what tells where this one came from."""
        if _ATTRIBUTE not in found:
            raise ValueError(f"store {self._path} is no sweep's: it is another Zarr group")
        then = json.loads(str(found[_ATTRIBUTE]))
        self._refuse(then)
        for name in ("created", "failures"):
            if name in found:
                self.attributes[name] = found[name]

    def _refuse(self, then: dict[str, Any]) -> None:
        told = []
        if then["format"] != FORMAT:
            told.append(f"its format is {then['format']}, not {FORMAT}")
        if not self._accept and (what := _changed(then["function"], self._asked["function"])):
            told.append(f"{what}; if its results are still the same, changed='accept' goes on")
        if then["independent"] != self._asked["independent"]:
            told.append(f"independent was {then['independent']}")
        axes = then["axes"]
        if list(axes) != list(self.axes):
            told.append(f"its axes are {', '.join(axes) or 'none'}, not {', '.join(self.axes) or 'none'}")
        else:
            for name, values in axes.items():
                if self.axes[name][: len(values)] != values:
                    told.append(
                        f"{name} must begin with its values, {_few(values)}, got {_few(self.axes[name])}"
                    )
        if told:
            raise ValueError(f"store {self._path} is of another sweep: {'; '.join(told)}")

    def _fit_axes(self) -> None:
        """Make every array as large as the grid, and read what is finished."""
        names = set(self._group.array_keys())
        if FINISHED not in names:
            self._group.create_array(
                FINISHED, shape=self.shape, chunks=(1,) * len(self.shape), dtype="bool",
                dimension_names=tuple(self.axes), fill_value=False, overwrite=True,
            )  # fmt: skip
        self._marks = self._resized(self._group[FINISHED])
        self.finished = np.asarray(self._marks[...], bool).reshape(self.shape)
        for name in names - {FINISHED, *self.axes}:
            array = self._group[name]
            if not self.finished.any():
                del self._group[name]  # of a first run that was killed before it was finished
            elif array.metadata.dimension_names == (name,):
                self._coordinates[name] = array[...]
            else:
                self._arrays[name] = self._resized(array)
                self._dimensions[name] = tuple(array.metadata.dimension_names[len(self.axes) :])
        for name, values in self.axes.items():
            if name not in names or self._group[name][...].tolist() != values:
                self._new_coordinate(name, (name,), np.asarray(values), {})

    def _resized(self, array: Any) -> Any:
        wanted = self.shape + array.shape[len(self.shape) :]
        if array.shape != wanted:
            array.resize(wanted)
        return array

    def _new_coordinate(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> None:
        kind = str if array.dtype.kind in "US" else array.dtype
        made = self._group.create_array(
            name, shape=array.shape, chunks=tuple(max(1, n) for n in array.shape), dtype=kind,
            dimension_names=dimensions, attributes=attributes, overwrite=True,
        )  # fmt: skip
        made[...] = array

    def _new_array(self, name: str, dimensions: Any, array: np.ndarray, attributes: Any) -> Any:
        return self._group.create_array(
            name, shape=self.shape + array.shape, dtype=array.dtype, fill_value=np.nan,
            chunks=(1,) * len(self.shape) + tuple(max(1, n) for n in array.shape),
            dimension_names=(*self.axes, *dimensions), attributes=attributes, overwrite=True,
        )  # fmt: skip

    def _finish(self, index: Index) -> None:
        self._marks[index] = True
        super()._finish(index)

    def note(self, failures: Sequence[str]) -> None:
        """Keep what failed, for the reader."""
        super().note(failures)
        if "failures" in self._group.attrs and not failures:
            del self._group.attrs["failures"]
        self._group.attrs.update(self.attributes)

    def dataset(self) -> xarray.Dataset:
        """Return what is kept."""
        import xarray

        # Nothing is decoded: what was kept are numbers, whatever their attributes say about units.
        return xarray.open_dataset(
            self._path, engine="zarr", consolidated=False, chunks=None, decode_cf=False
        )


def _changed(then: dict[str, str], now: dict[str, str]) -> str:
    if then["name"] != now["name"]:
        return f"its function is {then['name']}, not {now['name']}"
    if then["python"] == now["python"] and then["digest"] != now["digest"]:
        return f"its function {then['name']} has been changed since"
    return ""


def _few(values: Sequence[Any]) -> str:
    listed = ", ".join(map(repr, values[:_FEW]))
    return f"{listed}, ..." if len(values) > _FEW else listed
