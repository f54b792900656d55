"""Studies: one function over a grid of parameters and seeds, its results labelled and, if wanted, on disk."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import platform
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.crews import Index, Outcome, crew_for
from spo_fast.files import as_path
from spo_fast.runs import progress_bar
from spo_fast.sweep_results import FINISHED, FORMAT, Axes, Memory, Results, Store, refuse_path
from spo_fast.validation import choice, describe, flag, integer, package

if TYPE_CHECKING:
    import xarray

SEED = "seed"
_FEW = 5  # failures that a message lists


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others went through.

    Attributes
    ----------
    dataset : xarray.Dataset
        The results; NaN for the runs that failed, which `finished` tells.
    failures : list of (dict, exception)
        Parameters and seed of each run that failed, and what it raised.
    """

    def __init__(
        self, message: str, dataset: xarray.Dataset, failures: list[tuple[dict[str, Any], BaseException]]
    ) -> None:
        super().__init__(message)
        self.dataset, self.failures = dataset, failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.dataset, self.failures)


def sweep(
    run: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    seeds: int | Iterable[int] | None = 1,
    *,
    independent: bool = False,
    store: str | os.PathLike[str] | None = None,
    workers: int = 1,
    client: Any = None,
    errors: str = "raise",
    changed: str = "refuse",
    progress: bool = False,
) -> xarray.Dataset:
    """Call a function for every combination of parameters and seeds, and label what it returns.

    What a study varies and what it keeps of a run differ from one to the next; the function says both, and
    calling it by hand with the coordinates of an entry gives that entry again.

    Parameters
    ----------
    run : callable
        Called as ``run(**parameters, seed=seed)``. Returns a number, an array, an xarray DataArray or
        Dataset, a Simulation, or a mapping of names to numbers, arrays, DataArrays or pairs ``(dimensions,
        array)``: the same names and shapes in every run, of real or complex numbers, which are kept in double
        precision. What never varies is given by a closure or by ``functools.partial``.
    grid : mapping of str to sequence
        Values of each parameter, numbers or strings, none twice. The runs are all their combinations.
    seeds : int, sequence of int, or None
        k stands for the seeds 0 to k - 1. None calls the function without a seed.
    independent : bool
        False gives the function the very seeds: equal seeds draw equal phases and frequencies at all points
        of the grid, whose comparison then does not suffer from the draws. True gives each run a seed of its
        own, made by ``numpy.random.SeedSequence`` from its entry of `seeds` and the values of its parameters.
        In neither case does a result depend on the order of the runs or on who computes them.
    store : path, optional
        A Zarr directory, to which each result is written as it comes. Where it exists, its finished runs are
        not computed again, failed ones are. An axis may have more values than the stored ones, after these:
        more seeds add to the same store. Without a store results are kept in memory.
    workers : int
        Threads that call the function at once: the kernels of this package run side by side. One calls it in
        the calling thread.
    client : dask.distributed.Client, optional
        Computes the runs instead; results come back and are written here.
    errors : {"raise", "store"}
        What is done about runs that raised when all others are finished: raise a `SweepError`, or return the
        dataset with their parameters and messages in its attribute ``failures``.
    changed : {"refuse", "accept"}
        What is done when the function is not the one whose results are in the store, as its name, its code
        and what it holds (defaults, closure, arguments of a partial) tell. What it calls is not looked at.
    progress : bool
        Show a bar of the runs (needs tqdm).

    Returns
    -------
    xarray.Dataset
        With the names of the grid and ``seed`` as coordinates, then the dimensions of the results, ``name_0``
        and so on of an array that names none. A number alone is called ``result``. ``finished`` is True where
        a run went through; elsewhere results are NaN. Attributes tell the function, the version of this
        package, the time and the command. Of a store, files are read as they are needed.

    Raises
    ------
    SweepError
        If runs raised, naming their parameters; the results of the others are in its `dataset`.
    ValueError
        If an argument is of the wrong kind, or the store is of another sweep, telling what differs.
    RuntimeError
        If another process writes to the store.
    ImportError
        If xarray, for a store zarr, for a client distributed is missing, naming the extra.

    Notes
    -----
    Ctrl-C ends the sweep within about a second, and keeps what is finished; a thread whose function does not
    come back to Python is left to itself. A run costs about 1 ms a variable in a store, and a file each: keep
    what a study needs, not whole trajectories of thousands of short runs.

    Examples
    --------
    >>> from spo_fast import simulate
    >>> def order(coupling, seed):
    ...     rng = np.random.default_rng(seed)
    ...     theta, omega = rng.uniform(0.0, 6.28, 50), rng.normal(0.0, 1.0, 50)
    ...     run = simulate(theta, omega, np.full((50, 50), coupling / 50), dt=0.05, n_steps=200)
    ...     return {"R": run.R[100:].mean()}
    >>> result = sweep(order, {"coupling": [0.5, 1.0, 3.0]}, seeds=4)
    >>> result["R"].mean("seed").shape
    (3,)
    """
    package("xarray", "sweep", "studies")
    if not callable(run):
        raise ValueError(f"run must be callable, got {describe(run)}")
    axes = _axes(grid, seeds)
    if flag(independent, "independent") and seeds is None:
        raise ValueError("independent needs seeds, got None")
    choice(errors, "errors", ("raise", "store"))
    choice(changed, "changed", ("refuse", "accept"))
    crew_of = crew_for(integer(workers, "workers", 1), client)
    asked = {"format": FORMAT, "axes": axes, "independent": bool(independent), "function": _identity(run)}
    results = Memory(asked) if store is None else Store(as_path(store, "store"), asked, changed == "accept")
    with results:
        failures = _fill(results, axes, run, bool(independent), crew_of, bool(progress))
        results.note([_line(*failure) for failure in failures])
        dataset = results.dataset()
    if failures and errors == "raise":
        total = math.prod(map(len, axes.values()))
        raise SweepError(_told(failures, total), dataset, failures) from failures[0][1]
    return dataset


_Failures = list[tuple[dict[str, Any], BaseException]]


def _told(failures: _Failures, total: int) -> str:
    listed = "; ".join(_line(*failure) for failure in failures[:_FEW])
    more = f"; and {len(failures) - _FEW} more in .failures" if len(failures) > _FEW else ""
    return f"{len(failures)} of {total} runs failed: {listed}{more}; the others are in .dataset"


def _line(point: dict[str, Any], error: BaseException) -> str:
    where = ", ".join(f"{name}={value!r}" for name, value in point.items())
    what = " ".join(str(error).split())
    return f"{where}: {type(error).__name__}: {what}" if what else f"{where}: {type(error).__name__}"


# ---------------------------------------------------------------- what is asked for


def _axes(grid: Any, seeds: Any) -> Axes:
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid must be a mapping of names to values, got {describe(grid)}")
    axes: Axes = {}
    for name, values in grid.items():
        if not isinstance(name, str) or name in ("", SEED, FINISHED):
            raise ValueError(
                f"grid must have names other than '', 'seed' and 'finished', got {describe(name)}"
            )
        refuse_path(name, "grid must have names")
        axes[name] = _values(values, f"grid[{name!r}]")
    if seeds is not None:
        axes[SEED] = _seeds(seeds)
    return axes


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes):
        return _distinct([integer(seed, "seeds", 0) for seed in seeds], "seeds")
    return list(range(integer(seeds, "seeds", 1)))


def _values(values: Any, name: str) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a sequence of values, got {describe(values)}")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if all(type(value) is bool for value in plain) or all(isinstance(value, str) for value in plain):
        return _distinct(plain, name)
    for value in plain:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{name} must hold finite numbers, or strings, or bools, got {describe(value)}")
    whole = all(isinstance(value, Integral) for value in plain)
    return _distinct([integer(v, name) if whole else float(v) for v in plain], name)


def _distinct(values: list[Any], name: str) -> list[Any]:
    if not values:
        raise ValueError(f"{name} must hold at least one value, got none")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{name} must hold no value twice, got {value!r} {count} times")
    return values


def _point(axes: Axes, index: Index) -> dict[str, Any]:
    return {name: values[place] for (name, values), place in zip(axes.items(), index, strict=True)}


def _arguments(point: dict[str, Any], independent: bool) -> dict[str, Any]:
    """Return what the function is called with at a point."""
    if not independent:
        return point
    parameters = {  # 1 and 1.0 are the same value: an axis of integers may grow by 1.5
        name: value if isinstance(value, str | bool) or float(value) != value else float(value)
        for name, value in sorted(point.items())
        if name != SEED
    }
    words = np.frombuffer(hashlib.sha256(json.dumps(parameters).encode()).digest(), "<u4")
    sequence = np.random.SeedSequence(point[SEED], spawn_key=tuple(words.tolist()))
    return point | {SEED: int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))}


# ---------------------------------------------------------------- which function it is


def _identity(run: Any) -> dict[str, str]:
    """Return what tells a function from another, or from itself before a change."""
    inner = run
    while isinstance(inner, functools.partial):
        inner = inner.func
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    name = f"{named.__module__}.{named.__qualname__}"
    return {"name": name, "digest": _digest_of(run), "python": ".".join(platform.python_version_tuple()[:2])}


def _digest_of(value: Any, above: tuple[int, ...] = ()) -> str:
    total = hashlib.sha256()
    for part in _parts(value, above):
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


# What its repr tells whole.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)


def _parts(value: Any, above: tuple[int, ...] = ()) -> Iterator[bytes]:
    """Yield what an object is made of, in an order that another process finds too.

    Functions are their code, defaults and closure; line numbers and the docstring do not count. Other objects
    are what they would be pickled as, part by part, but for what they have only kept to be fast.
    """
    value = getattr(value, "py_func", value)  # of what Numba has compiled
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if id(value) in above:  # it holds itself
        yield b"above"
        return
    above = (*above, id(value))
    yield type(value).__qualname__.encode()
    if isinstance(value, types.FunctionType):
        yield from _code_parts(value.__code__, value.__doc__)
        cells = [_content(cell) for cell in value.__closure__ or ()]
        yield from _parts((value.__defaults__, sorted((value.__kwdefaults__ or {}).items()), cells), above)
    elif isinstance(value, types.MethodType):
        yield from _parts((value.__func__, value.__self__), above)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), above)
    elif isinstance(value, type | types.ModuleType):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}".encode()
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif type(value) in (list, tuple):
        yield str(len(value)).encode()
        for entry in value:
            yield from _parts(entry, above)
    elif type(value) in (set, frozenset):
        yield from sorted(_digest_of(entry, above).encode() for entry in value)
    elif type(value) is dict:
        pairs = value.items()
        yield from sorted(
            (_digest_of(name, above) + _digest_of(held, above)).encode() for name, held in pairs
        )
    else:
        yield from _state_parts(value, above)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return "no value"


def _state_parts(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    """Yield the contents of an object and, if it can be called, how."""
    method = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(method, types.FunctionType):
        yield from _parts(method, above)
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # what cannot be pickled is told apart by its kind, and by what it shows
        reduced = (type(value), (), getattr(value, "__dict__", None))
    if isinstance(reduced, str):
        yield reduced.encode()
        return
    made_by, arguments, state, entries, items = (*reduced, None, None, None)[:5]
    if isinstance(state, dict):
        state = {name: held for name, held in state.items() if not _only_kept(type(value), name)}
    held = (list(entries or ()), dict(items or ()))
    yield from _parts((made_by, arguments, state, *held), above)


def _only_kept(kind: type, name: Any) -> bool:
    """Whether an attribute holds what can be computed again: a cached property, or a private cache."""
    if not isinstance(name, str):
        return False
    return isinstance(inspect.getattr_static(kind, name, None), functools.cached_property) or (
        name.startswith("__") and name.endswith("__")
    )


def _code_parts(code: types.CodeType, doc: str | None) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant, None)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        elif constant is not None and constant != doc:
            yield repr(constant).encode()


# ---------------------------------------------------------------- runs


def _fill(
    results: Results, axes: Axes, run: Callable[..., Any], independent: bool, crew_of: Any, progress: bool
) -> _Failures:
    """Compute what is missing, keep it as it comes, and return what failed."""
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    left = [index for index in places if not results.finished[index]]
    tasks = [(index, _arguments(_point(axes, index), independent)) for index in left]
    failed: dict[Index, BaseException] = {}

    def keep(outcome: Outcome) -> None:
        index, value, error = outcome
        if error is None:
            try:
                results.keep(index, value)
            except ValueError as refusal:
                error = refusal
        if error is not None:
            failed[index] = error

    with progress_bar(progress, results.finished.size, "run") as bar:
        if bar is not None:
            bar.update(results.finished.size - len(left))
        crew = crew_of(run, tasks)
        try:
            while crew.wait():
                keep(crew.finished[0])
                crew.finished.popleft()
                if bar is not None:
                    bar.update(1)
        except BaseException as ended:
            crew.stop()
            if isinstance(ended, KeyboardInterrupt):
                for outcome in list(crew.finished):
                    keep(outcome)
            raise
    return [(_point(axes, index), failed[index]) for index in left if index in failed]
