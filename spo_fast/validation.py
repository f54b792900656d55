"""The one place where input is checked and refused.

Every refusal is a `ValueError` that names the argument and says what came. Good float64 arrays in C order
pass through untouched and unread: whether their entries are finite, symmetric and so on is seen by the
kernels, which read them anyway; after a kernel's refusal `explain_coupling` and `explain_nonfinite` find the
entry to blame.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from numbers import Real
from typing import Any, NoReturn

import numpy as np

TWO_PI = 2.0 * np.pi
SYMMETRY_TOLERANCE = 1e-12  # relative and absolute; also the bound on the diagonal

_FLOAT64 = np.dtype(np.float64)
_REAL_KINDS = "iuf"
_PLAIN = frozenset((np.ndarray, list, float, int, type(None)))  # no coupling of another package
_LARGEST_SPARSE = 2**31 - 1  # oscillators whose indices fit 32 bits
_LARGEST_BITS = 62  # of a count or an index: sums of two still fit 64 bits
_WHOLE = 1 << 31  # a block size beyond every N
_BLOCK_ENTRIES = 1 << 18  # entries looked at in one go by the explaining passes: 2 MB of doubles


@dataclass(frozen=True, slots=True, eq=False)
class ModulationParameters:
    """Checked parameters of a modulation; H heads, model width d, head width d_h = d/H.

    Attributes
    ----------
    n_heads, d_model : int
        H and d.
    block_size : int
        Largest |i - j| that is modulated; -1 means no limit.
    temperature : ndarray, shape (H,)
        Softmax temperature of each head.
    lambda_ : float
        Modulation strength.
    w_q, w_k, w_v : ndarray, shape (H, d, d_h)
        Projections of the phase embedding, C order.
    w_o : ndarray, shape (d, d)
        Output projection, C order.
    algorithm : str
        How a run is to compute it where there is a choice.
    workers : int
        Threads of a backend that has them; of a run the network's count.
    """

    n_heads: int
    d_model: int
    block_size: int
    temperature: np.ndarray
    lambda_: float
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray
    algorithm: str = "auto"
    workers: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class SparseCoupling:
    """A coupling by its stored entries, row after row; E of them.

    Attributes
    ----------
    n : int
        Number of oscillators N.
    indptr : ndarray, shape (N + 1,), int64
        Row i has the entries ``indptr[i]`` to ``indptr[i + 1]``.
    indices : ndarray, shape (E,), int32
        Columns, ascending in each row, none twice.
    data : ndarray, shape (E,), rad per time unit
        Values; explicit zeros are kept.
    mean : ndarray, shape (E,), or None
        (K + K^T) / 2 on the same pattern, which then equals its transpose, with zeros on the diagonal; only
        there where the coupling is to be modulated.
    kind : type
        ``csr_matrix`` or ``csr_array``: what results are made with.
    """

    n: int
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    mean: np.ndarray | None
    kind: type

    def rows(self) -> np.ndarray:
        """Return the row of each entry, shape (E,)."""
        return np.repeat(np.arange(self.n), np.diff(self.indptr))

    def with_data(self, data: np.ndarray) -> Any:
        """Return a SciPy matrix that holds `data`, shape (E,), and a copy of the pattern."""
        narrow = self.indices.dtype if self.indptr[-1] <= np.iinfo(self.indices.dtype).max else np.int64
        pattern = (
            data,
            self.indices.copy(),
            self.indptr.astype(narrow),
        )  # a caller may drop entries in place
        return self.kind(pattern, shape=(self.n, self.n))


@dataclass(slots=True, eq=False)
class Network:
    """Everything in the right-hand side but the phases.

    Attributes
    ----------
    omega : ndarray, shape (N,), rad per time unit
        Natural frequencies.
    knm : ndarray, shape (N, N), or SparseCoupling, rad per time unit
        Coupling, row i is pulled by its columns; C order.
    alpha : ndarray, shape (N, N), radians, or None
        Phase lags where they differ from pair to pair; of a sparse coupling one for each entry, shape (E,).
    uniform_alpha : float, radians
        The one phase lag where `alpha` is None, else 0.
    zeta, psi : float
        Strength (rad per time unit) and phase (radians) of the external drive.
    modulation : ModulationParameters or None
        How the coupling follows the phases.
    modulate_every : int
        Steps for which a modulated coupling is kept.
    persistent : bool
        Whether it will serve so many steps that a rearranged copy of the coupling pays.
    workers : int
        Threads of a backend that has them.
    """

    omega: np.ndarray
    knm: np.ndarray | SparseCoupling
    alpha: np.ndarray | None
    uniform_alpha: float
    zeta: float
    psi: float
    modulation: ModulationParameters | None = None
    modulate_every: int = 1
    persistent: bool = False
    workers: int = 1


# ---------------------------------------------------------------- optional packages


def package(name: str, who: str, extra: str) -> Any:
    """Import an optional package.

    Raises
    ------
    ImportError
        If it is missing, naming who needs it and the extra that brings it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{who} needs {name}: pip install 'spo-fast[{extra}]'") from error


# ---------------------------------------------------------------- scalars


def describe(value: Any) -> str:
    """Return a short text for an error message: the value of a scalar, type and shape of anything larger."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print very long ones
    if isinstance(value, str | bytes | bool | int | float | complex | np.generic) or value is None:
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    shape = getattr(value, "shape", None)
    if shape is not None:
        dtype = getattr(value, "dtype", None)
        kind = "" if dtype is None else f" and dtype {dtype}"
        return f"{type(value).__name__} of shape {shape}{kind}"
    return f"an object of type {type(value).__name__}"


def integer(value: Any, name: str, minimum: int | None = None, *, any_size: bool = False) -> int:
    """Return `value` as an int; bools and floats, also integral ones, are refused.

    Raises
    ------
    ValueError
        If `value` is no integer, is below `minimum`, or (unless `any_size`) is too large for 64 bits.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    try:
        if isinstance(value, bool) or kind == "b" or getattr(value, "ndim", 0) != 0:
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {describe(value)}") from None
    if minimum is not None and result < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, got {describe(result)}")
    if result.bit_length() > _LARGEST_BITS and not any_size:
        raise ValueError(f"{name} must be an integer below 2**{_LARGEST_BITS}, got {describe(result)}")
    return result


def number(value: Any, name: str, *, minimum: float | None = None, positive: bool = False) -> float:
    """Return `value` as a finite float; bools, complex numbers and strings are refused.

    Raises
    ------
    ValueError
        If `value` is no real number, not finite, below `minimum`, or not positive where that is asked.
    """
    result: float = value if type(value) is float else _as_float(value, name)
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {describe(value)}")
    if positive and result <= 0.0:
        raise ValueError(f"{name} must be positive, got {result!r}")
    if minimum is not None and result < minimum:
        raise ValueError(f"{name} must be >= {minimum:g}, got {result!r}")
    return result


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a real number, got {describe(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def choice(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of the `allowed` strings.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"{name} must be one of {listed}, got {describe(value)}")
    return value


def flag(value: Any, name: str) -> bool:
    """Return `value` as a bool if it is one; numbers that could pass for one are refused.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {describe(value)}")
    return bool(value)


def is_scalar(value: Any) -> bool:
    """Whether `value` is meant as one number (anything without dimension or length), whatever its type."""
    dimensions = getattr(value, "ndim", None)
    if dimensions is not None:
        return bool(dimensions == 0)
    return isinstance(value, str | bytes) or not hasattr(value, "__len__")


# ---------------------------------------------------------------- arrays


def real_array(value: Any, name: str) -> np.ndarray:
    """Return `value` as a float64 array in C order, the very object when it is one already.

    Integers, float16, float32, long doubles, any strides and byte orders are converted. Data that is no real
    number is refused, also where a conversion would hide it: ``[0.0, True]``. Entries of arrays are not read.

    Raises
    ------
    ValueError
        For sparse and masked arrays, and for bool, complex, string or object data.
    """
    if type(value) is np.ndarray and value.dtype is _FLOAT64:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value  # read-only arrays and memory maps included
    array = _plain_array(value, name)
    if array.dtype.kind not in _REAL_KINDS:
        raise ValueError(f"{name} must hold real numbers, got {describe(value)}")
    with np.errstate(over="ignore"):  # a long double too large for float64 becomes inf, refused later
        return np.require(array, _FLOAT64, ["C", "A"])


def float_array(value: Any, name: str) -> np.ndarray:
    """Return `value` as a float32 or float64 array in C order, in the precision it came in.

    Any strides and byte orders are converted, lists become float64; no other type is taken, because the
    precision of a result is that of its inputs. Entries of arrays are not read.

    Raises
    ------
    ValueError
        For sparse and masked arrays and for data of any other type.
    """
    array = _plain_array(value, name)
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise ValueError(f"{name} must have dtype float32 or float64, got {describe(value)}")
    plain = array.view(np.ndarray)
    return np.require(plain, plain.dtype.newbyteorder("="), ["C", "A"])


def _plain_array(value: Any, name: str) -> np.ndarray:
    """Return `value` as some array; lists, whose entries are looked at, as float64."""
    _refuse_sparse(value, name)
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name} must be a plain array, got a masked array of shape {value.shape}")
    if isinstance(value, list | tuple):
        return _from_list(value, name)
    try:
        return np.asarray(value)
    except Exception as error:  # whatever an object's __array__ raises
        what = describe(value)
        raise ValueError(f"{name} must be an array of real numbers, got {what}: {error}") from error


def is_sparse(value: Any) -> bool:
    """Whether `value` is a SciPy sparse matrix or array; SciPy is not imported to tell."""
    sparse = sys.modules.get("scipy.sparse")  # a sparse matrix exists only where this already is
    return sparse is not None and bool(sparse.issparse(value))


def _refuse_sparse(value: Any, name: str, wanted: str = "a dense array") -> None:
    if is_sparse(value):
        raise ValueError(f"{name} must be {wanted}, got {type(value).__name__} of shape {value.shape}")


def _from_list(value: list | tuple, name: str) -> np.ndarray:
    boxed = _boxed(value, name)
    for index, entry in np.ndenumerate(boxed):
        if isinstance(entry, list | tuple):
            raise ValueError(f"{name} must be a regular array, got rows of different lengths")
        if isinstance(entry, bool | np.bool_) or not isinstance(entry, Real):
            raise ValueError(f"{name} must hold real numbers, got {describe(entry)} at {_place(index)}")
    try:
        return np.array(boxed, dtype=_FLOAT64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must hold real numbers that fit float64: {error}") from error


def _boxed(value: list | tuple, name: str) -> np.ndarray:
    """Return the entries as Python objects, so that a bool among floats is still a bool."""
    try:
        return np.array(value, dtype=object)
    except Exception as error:
        raise ValueError(f"{name} must be a regular array of real numbers: {error}") from error


def _place(index: tuple[int, ...]) -> str:
    return f"index {index[0]}" if len(index) == 1 else f"index ({', '.join(map(str, index))})"


def as_coupling(knm: Any, name: str = "knm") -> np.ndarray:
    """Return `knm` as a square float64 matrix in C order, the very object when it is one already.

    Raises
    ------
    ValueError
        If it is sparse, not square, or no array of real numbers. Its entries are not read.
    """
    if type(knm) is not np.ndarray:
        _refuse_sparse(knm, name, "a dense (N, N) array")
    array = real_array(knm, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} must be a square (N, N) matrix, got shape {array.shape}")
    return array


def as_phases(theta: Any, n: int | None, name: str = "theta") -> np.ndarray:
    """Return `theta` as a float64 vector of length `n` (any length for None), never broadcast.

    Raises
    ------
    ValueError
        For any other shape, (n, 1) and (1, n) included, and for data that is no real number.
    """
    array = real_array(theta, name)
    if array.ndim != 1 or (n is not None and array.shape[0] != n):
        wanted = "(N,)" if n is None else f"({n},)"
        raise ValueError(f"{name} must have shape {wanted}, got {array.shape}")
    return array


def as_trajectory(theta: Any, name: str = "theta") -> np.ndarray:
    """Return `theta` as a float64 array of shape (N,) or (T, N).

    Raises
    ------
    ValueError
        For any other number of dimensions, and for data that is no real number.
    """
    array = real_array(theta, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (N,) or (T, N), got {array.shape}")
    return array


def as_output(
    out: Any, n: int, knm: Any, coupling: np.ndarray | None = None, name: str = "out"
) -> np.ndarray:
    """Return `out` itself if a kernel may write an (n, n) result to it.

    Parameters
    ----------
    knm : object
        The coupling as the caller gave it, before any conversion: `out` may not share its memory.
    coupling : ndarray, optional
        The same after conversion, which may still lie in the caller's memory (a memoryview, a data frame).

    Raises
    ------
    ValueError
        If `out` is no writable, aligned float64 array of that shape in C order, or overlaps `knm`.
    """
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise ValueError(f"{name} must be a float64 array of shape ({n}, {n}), got {describe(out)}")
    if out.dtype != _FLOAT64 or not out.dtype.isnative:
        raise ValueError(f"{name} must have dtype float64, got {out.dtype.str}")
    if out.shape != (n, n):
        raise ValueError(f"{name} must have shape ({n}, {n}), got {out.shape}")
    flags = out.flags
    if not (flags.c_contiguous and flags.aligned):
        raise ValueError(f"{name} must be an aligned array in C order, got strides {out.strides}")
    if not flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array")
    for given in (knm, coupling):
        if isinstance(given, np.ndarray) and _overlap(out, given):
            raise ValueError(f"{name} must not overlap knm, got an array that shares its memory")
    return out


def _overlap(first: np.ndarray, second: np.ndarray) -> bool:
    if not np.may_share_memory(first, second):
        return False
    try:
        return np.shares_memory(first, second, max_work=1000)  # type: ignore[arg-type]  # any bound is taken
    except np.exceptions.TooHardError:
        return True


def _require_shape(array: np.ndarray, name: str, shape: tuple[int, ...], symbols: str = "") -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {symbols}{shape}, got {array.shape}")


# ---------------------------------------------------------------- couplings of other packages


def plain_matrix(value: Any, name: str = "knm") -> Any:
    """Return what stands for a graph or a labelled matrix here; anything else as it is.

    Parameters
    ----------
    value : object
        A NetworkX graph, directed or not, with one or several edges between two nodes: ``theta[i]`` is the
        phase of the i-th node of ``list(graph)``. An edge from u to v lets u pull v, K[v, u], with the
        strength of its attribute ``weight``, 1 where it has none; parallel edges are added up and what has
        no edge, the diagonal too, is not stored. A pandas DataFrame or a two-dimensional xarray DataArray
        whose rows and columns, where both are labelled, have the same labels in the same order.

    Returns
    -------
    csr_array, ndarray or object
        Of a graph, O(E), of a labelled matrix, the very object given. None of these packages is imported.

    Raises
    ------
    ValueError
        If labels differ, or a weight is no real number.
    ImportError
        If a graph came and SciPy is missing.
    """
    if type(value) in _PLAIN:
        return value
    if _comes_from("networkx", "Graph", value):
        return _graph_matrix(value, name)
    if _comes_from("pandas", "DataFrame", value):
        _require_same_labels(value, value.index, value.columns, name)
    elif _comes_from("xarray", "DataArray", value):
        if value.ndim == 2 and all(dimension in value.indexes for dimension in value.dims):
            rows, columns = (value.indexes[dimension] for dimension in value.dims)
            _require_same_labels(value, rows, columns, name)
    else:
        return value
    return _plain_array(value, name)


def _comes_from(package: str, kind: str, value: Any) -> bool:
    """Whether `value` is of a class of a package; such an object exists only where that is imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, kind, ()))


def _require_same_labels(value: Any, rows: Any, columns: Any, name: str) -> None:
    if rows.equals(columns) or (_counts(rows) and _names(columns)) or (_counts(columns) and _names(rows)):
        return
    raise ValueError(
        f"{name} must have the same labels in the same order along rows and columns, got {describe(value)} "
        f"with rows {_few(rows)} and columns {_few(columns)}"
    )


def _few(labels: Any) -> str:
    listed = ", ".join(str(label) for label in labels[:3])
    return f"{listed}, ..." if len(labels) > 3 else listed


def _counts(labels: Any) -> bool:
    """Whether labels are the plain numbers that stand where none were given."""
    return type(labels).__name__ == "RangeIndex" and labels.start == 0 and labels.step == 1


def _names(labels: Any) -> bool:
    """Whether labels are no numbers: plain ones on the other side cannot be at odds with them."""
    return labels.dtype.kind not in "iuf"


def _graph_matrix(graph: Any, name: str) -> Any:
    try:
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ImportError(f"{name} is a graph, which needs SciPy: pip install scipy") from error
    place = {node: index for index, node in enumerate(graph)}
    both_ways = not graph.is_directed()
    rows, columns, weights = [], [], []
    for source, target, weight in graph.edges(data="weight", default=1.0):
        if isinstance(weight, bool | np.bool_) or not isinstance(weight, Real):
            what = f"{describe(weight)} at edge ({source!r}, {target!r})"
            raise ValueError(f"{name} must have weights that are real numbers, got {what}")
        ends = [(target, source)]
        if both_ways and source != target:
            ends.append((source, target))
        for pulled, pulling in ends:
            rows.append(place[pulled])
            columns.append(place[pulling])
            weights.append(float(weight))
    shape = (len(place), len(place))
    return coo_array((np.array(weights), (np.array(rows, int), np.array(columns, int))), shape=shape).tocsr()


# ---------------------------------------------------------------- sparse couplings


def as_sparse_coupling(knm: Any, name: str = "knm", *, symmetric: bool = False) -> SparseCoupling:
    """Return the stored entries of a sparse matrix, sorted and without duplicates. O(E), never (N, N).

    Parameters
    ----------
    knm : SciPy sparse matrix or array of any format, shape (N, N), or SparseCoupling
        Duplicate entries are added up; explicit zeros are kept. It is not written to; arrays that fit are
        not copied.
    symmetric : bool
        Demand K_ij = K_ji and a zero diagonal, both within 1e-12, and provide the mean. An entry that is
        stored on one side only gets an explicit zero on the other.

    Raises
    ------
    ValueError
        If it is not sparse, not square, malformed, no matrix of real numbers, not finite, or not symmetric.
    """
    coupling = knm if isinstance(knm, SparseCoupling) else _canonical(knm, name)
    return _symmetric(coupling, name) if symmetric and coupling.mean is None else coupling


def _canonical(value: Any, name: str) -> SparseCoupling:
    if not is_sparse(value):
        raise ValueError(f"{name} must be a sparse matrix, got {describe(value)}")
    if len(value.shape) != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(f"{name} must be a square (N, N) matrix, got {describe(value)}")
    if value.dtype.kind not in _REAL_KINDS:
        raise ValueError(f"{name} must hold real numbers, got {describe(value)}")
    n = int(value.shape[0])
    if n > _LARGEST_SPARSE:
        raise ValueError(f"{name} must have at most {_LARGEST_SPARSE} rows, got {n}")
    csr = _well_formed_csr(value, name)
    coupling = SparseCoupling(
        n,
        np.require(csr.indptr, np.int64, ["C", "A"]),
        np.require(csr.indices, np.int32, ["C", "A"]),
        np.require(csr.data, _FLOAT64, ["C", "A"]),
        None,
        type(csr),
    )
    if not _all_finite(coupling.data):
        _explain_entry(coupling, ~np.isfinite(coupling.data), f"{name} must be finite")
    return coupling


def _well_formed_csr(value: Any, name: str) -> Any:
    """Return `value` in rows of ascending columns; an object of its own, though it may share arrays."""
    sparse = sys.modules["scipy.sparse"]
    kind = sparse.csr_array if isinstance(value, sparse.sparray) else sparse.csr_matrix
    try:
        _refuse_wild_indices(value)
        with np.errstate(over="ignore"):  # a long double too large for float64 becomes inf, refused later
            rows = value.astype(_FLOAT64, copy=False).tocsr()  # first: duplicates of int8 may sum past 127
        csr = kind((rows.data, rows.indices, rows.indptr), shape=rows.shape)
        csr.check_format(full_check=True)
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{name} must be a well-formed sparse matrix, got {describe(value)}: {error}"
        ) from None
    if not _ascending(csr.indptr, csr.indices):  # looked at: the flags that SciPy keeps may be stale
        csr = csr.copy()
        csr = kind((csr.data, csr.indices, csr.indptr), shape=csr.shape)
        csr.sum_duplicates()
    return csr


def _refuse_wild_indices(value: Any) -> None:
    """Raise ValueError or IndexError for indices that would make SciPy's conversion leave its arrays."""
    if value.format == "coo":
        for index, size in zip(value.coords, value.shape, strict=True):
            if index.size and not (index.min() >= 0 and index.max() < size):
                raise IndexError("an index is out of range")
    elif value.format in ("csc", "bsr"):
        parts = (value.data, value.indices, value.indptr)
        type(value)(parts, shape=value.shape).check_format(full_check=True)  # a check may replace the arrays


def _ascending(indptr: np.ndarray, indices: np.ndarray) -> bool:
    rising = indices[1:] > indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < indices.size)]
    rising[starts - 1] = True  # from one row to the next the columns may fall
    return bool(rising.all())


def _symmetric(coupling: SparseCoupling, name: str) -> SparseCoupling:
    """Return the coupling with its mean, on the union of its pattern and its transpose's."""
    turned = coupling.with_data(coupling.data).T.tocsr()  # sorted rows
    transpose = replace(coupling, indptr=turned.indptr, indices=turned.indices, data=turned.data)
    if not same_pattern(coupling, transpose):
        coupling, transpose = _on_union(coupling, transpose), _on_union(transpose, coupling)
    values, mirrored = coupling.data, transpose.data
    with np.errstate(over="ignore"):
        allowed = SYMMETRY_TOLERANCE * (1.0 + np.minimum(np.abs(values), np.abs(mirrored)))
        bad = np.abs(values - mirrored) > allowed
        mean = np.where(values == mirrored, values, 0.5 * values + 0.5 * mirrored)
    if bad.any():
        at = int(np.argmax(bad))
        i, j = _row(coupling, at), int(coupling.indices[at])
        raise _asymmetric(name, i, j, values[at], mirrored[at])
    diagonal = coupling.indices == coupling.rows()
    bad = diagonal & (np.abs(values) > SYMMETRY_TOLERANCE)
    if bad.any():
        _explain_entry(coupling, bad, f"{name} must have a zero diagonal")
    mean[diagonal] = 0.0
    return replace(coupling, mean=mean)


def same_pattern(first: SparseCoupling, second: SparseCoupling) -> bool:
    """Whether both store the same entries, zeros included. O(E)."""
    return np.array_equal(first.indptr, second.indptr) and np.array_equal(first.indices, second.indices)


def _on_union(coupling: SparseCoupling, other: SparseCoupling) -> SparseCoupling:
    """Return the coupling with explicit zeros where only `other` has entries. O(E log E)."""
    n, own = coupling.n, _keys(coupling)
    keys = np.union1d(own, _keys(other))
    rows, columns = np.divmod(keys, max(n, 1))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    data = np.zeros(keys.size)
    data[np.searchsorted(keys, own)] = coupling.data
    return SparseCoupling(n, indptr, columns.astype(np.int32), data, None, coupling.kind)


def _keys(coupling: SparseCoupling) -> np.ndarray:
    """One ascending number for each entry; below 2^62."""
    return coupling.rows() * np.int64(coupling.n) + coupling.indices


def _row(coupling: SparseCoupling, at: int) -> int:
    return int(np.searchsorted(coupling.indptr, at, side="right")) - 1


def _explain_entry(coupling: SparseCoupling, bad: np.ndarray, wanted: str) -> NoReturn:
    """Raise for the first entry that is marked."""
    at = int(np.argmax(bad))
    index = (_row(coupling, at), int(coupling.indices[at]))
    raise ValueError(f"{wanted}, got {float(coupling.data[at])!r} at {_place(index)}")


# ---------------------------------------------------------------- composites


def modulation_parameters(
    w_q: Any,
    w_k: Any,
    w_v: Any,
    w_o: Any,
    *,
    n_heads: Any,
    block_size: Any,
    temperature: Any,
    lambda_: Any,
) -> ModulationParameters:
    """Check the parameters of a modulation; all four projections must be given. O(d^2).

    Parameters
    ----------
    w_q, w_k, w_v : array_like, shape (H, d, d/H)
        Projections to queries, keys and values.
    w_o : array_like, shape (d, d)
        Output projection.
    n_heads : int
        H, a divisor of d.
    block_size : int or None
        Largest modulated distance |i - j|, at least 1; None for no limit.
    temperature : float or array_like, shape (H,)
        Positive.
    lambda_ : float
        At least 0.

    Returns
    -------
    ModulationParameters
        With arrays of its own, read-only.

    Raises
    ------
    ValueError
        If anything is of the wrong kind, shape or range, or so large that logits or outputs would overflow.
    """
    heads = integer(n_heads, "n_heads", 1)
    block = -1 if block_size is None else min(integer(block_size, "block_size", 1, any_size=True), _WHOLE)
    strength = number(lambda_, "lambda_", minimum=0.0)
    tau = _temperature(temperature, heads)
    queries, keys, values, output = _projections(w_q, w_k, w_v, w_o, heads)
    _refuse_overflow(queries, keys, values, output, tau)
    d_model = output.shape[0]
    return ModulationParameters(heads, d_model, block, tau, strength, queries, keys, values, output)


def _temperature(value: Any, heads: int) -> np.ndarray:
    if is_scalar(value):
        return _own(np.full(heads, number(value, "temperature", positive=True)))
    tau = real_array(value, "temperature")
    if tau.shape != (heads,):
        raise ValueError(f"temperature must be a number or have shape ({heads},), got {tau.shape}")
    explain_nonfinite(temperature=tau)
    for head, entry in enumerate(tau.tolist()):
        number(entry, f"temperature[{head}]", positive=True)
    return _own(tau)


def _projections(w_q: Any, w_k: Any, w_v: Any, w_o: Any, heads: int) -> tuple[np.ndarray, ...]:
    given = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    arrays = {name: real_array(value, name) for name, value in given.items()}
    width = _model_width(arrays["w_q"], heads)
    for name in ("w_q", "w_k", "w_v"):
        _require_shape(arrays[name], name, (heads, width, width // heads), "(n_heads, d, d/n_heads) = ")
    _require_shape(arrays["w_o"], "w_o", (width, width), "(d, d) = ")
    explain_nonfinite(**arrays)
    return tuple(_own(array) for array in arrays.values())


def _model_width(w_q: np.ndarray, heads: int) -> int:
    if w_q.ndim != 3:
        raise ValueError(f"w_q must have shape (n_heads, d, d/n_heads), got {w_q.shape}")
    width = w_q.shape[1]
    if width < 2 or width % 2:
        raise ValueError(f"w_q must have shape (n_heads, d, d/n_heads) with an even d >= 2, got {w_q.shape}")
    head_width(width, heads)
    return width


def _own(array: np.ndarray) -> np.ndarray:
    copy = np.array(array, dtype=_FLOAT64, order="C")
    copy.flags.writeable = False
    return copy


def _refuse_overflow(
    w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, w_o: np.ndarray, tau: np.ndarray
) -> None:
    """Refuse weights that let a logit or a squared output overflow; the embedding's entries are at most 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        bound_q, bound_k, bound_v = (np.abs(w).sum(axis=1) for w in (w_q, w_k, w_v))
        logits = (bound_q * bound_k).sum(axis=1) / tau
        output = ((bound_v.reshape(-1) @ np.abs(w_o)) ** 2).sum()
        inverse = 1.0 / tau
    if not (np.isfinite(logits).all() and np.isfinite(inverse).all()):
        largest = max(np.abs(w_q).max(), np.abs(w_k).max())
        raise ValueError(
            "temperature must not be so small, nor w_q and w_k so large, that attention logits overflow, "
            f"got a smallest temperature of {tau.min():g} and a largest weight of {largest:g}"
        )
    if not np.isfinite(output):
        largest = max(np.abs(w_v).max(), np.abs(w_o).max())
        raise ValueError(
            f"w_v and w_o must not be so large that outputs overflow, got a largest weight of {largest:g}"
        )


def refuse_moments(algorithm: str) -> None:
    """Refuse what a backend without the path through order parameters cannot do.

    Raises
    ------
    ValueError
        If `algorithm` asks for that path.
    """
    if algorithm == "moments":
        raise ValueError("algorithm 'moments' needs backend 'cython' or 'numba'")


def network(
    n: int,
    omega: Any,
    knm: Any,
    alpha: Any,
    zeta: Any,
    psi: Any,
    *,
    omega_name: str = "omega",
    modulated: bool = False,
) -> Network:
    """Check kinds and shapes of a right-hand side for `n` oscillators.

    The entries of arrays are not read, those of sparse matrices are.

    Parameters
    ----------
    omega : float or array_like, shape (n,), rad per time unit
        A number stands for n equal frequencies.
    knm : array_like or sparse matrix, shape (n, n)
        Coupling.
    alpha : None, float or array_like, shape (n, n), radians
        Phase lag; with a sparse `knm` a sparse matrix of the same pattern instead of an array.
    zeta, psi : float
        External drive.
    omega_name : str
        What the caller calls the frequencies.
    modulated : bool
        Whether the coupling will be modulated: a sparse one must then be symmetric.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape; nothing is broadcast but a number.
    """
    knm, alpha = plain_matrix(knm), plain_matrix(alpha, "alpha")
    if is_sparse(knm) or isinstance(knm, SparseCoupling):
        coupling, lags, lag = _sparse_interaction(n, knm, alpha, modulated)
    else:
        coupling, lags, lag = _interaction(n, knm, alpha)
    if is_scalar(omega):
        frequencies = np.full(n, number(omega, omega_name))
    else:
        frequencies = as_phases(omega, n, omega_name)
    return Network(frequencies, coupling, lags, lag, number(zeta, "zeta"), number(psi, "psi"))


_Interaction = tuple[np.ndarray | SparseCoupling, np.ndarray | None, float]


def _interaction(n: int, knm: Any, alpha: Any) -> _Interaction:
    coupling = as_coupling(knm)
    _require_shape(coupling, "knm", (n, n))
    if alpha is None or is_scalar(alpha):
        return coupling, None, _uniform_lag(alpha)
    lags = as_coupling(alpha, "alpha")
    _require_shape(lags, "alpha", (n, n))
    return coupling, lags, 0.0


def _uniform_lag(alpha: Any) -> float:
    return 0.0 if alpha is None else number(alpha, "alpha")


def _sparse_interaction(n: int, knm: Any, alpha: Any, modulated: bool) -> _Interaction:
    plain = as_sparse_coupling(knm)
    if plain.n != n:
        raise ValueError(f"knm must have shape {(n, n)}, got {(plain.n, plain.n)}")
    coupling = as_sparse_coupling(plain, symmetric=True) if modulated else plain
    if alpha is None or is_scalar(alpha):
        return coupling, None, _uniform_lag(alpha)
    if not is_sparse(alpha):
        wanted = "None, a number or a sparse matrix of the pattern of knm"
        raise ValueError(f"alpha must be {wanted}, got {describe(alpha)}")
    lags = as_sparse_coupling(alpha, "alpha")
    if lags.n != n:
        raise ValueError(f"alpha must have shape {(n, n)}, got {(lags.n, lags.n)}")
    if not same_pattern(lags, plain):
        _explain_pattern(lags, plain)
        lags = _on_union(lags, plain)
    return (
        coupling,
        lags.data if coupling.data.size == lags.data.size else _on_union(lags, coupling).data,
        0.0,
    )


def _explain_pattern(lags: SparseCoupling, coupling: SparseCoupling) -> None:
    """Refuse lags without a coupling, and couplings without a lag unless they are zero."""
    own, wanted = _keys(lags), _keys(coupling)
    surplus = np.setdiff1d(own, wanted, assume_unique=True)
    missing = np.setdiff1d(wanted[coupling.data != 0.0], own, assume_unique=True)
    if not (surplus.size or missing.size):
        return
    key, what = (surplus[0], "one more") if surplus.size else (missing[0], "none")
    index = tuple(int(part) for part in divmod(key, coupling.n))
    raise ValueError(f"alpha must have the stored entries of knm, got {what} at {_place(index)}")


def explain_network(net: Network, omega_name: str = "omega") -> None:
    """Raise for the first non-finite entry of a right-hand side; sparse matrices are known to have none.

    Raises
    ------
    ValueError
        With the array's name, the index and the value.
    """
    explain_nonfinite(**{omega_name: net.omega})
    if not isinstance(net.knm, SparseCoupling):
        explain_nonfinite(knm=net.knm)
        if net.alpha is not None:
            explain_nonfinite(alpha=net.alpha)


# ---------------------------------------------------------------- explanations after a kernel's refusal


def explain_nonfinite(**arrays: np.ndarray) -> None:
    """Raise for the first array that holds a non-finite entry; return None if all are finite.

    Raises
    ------
    ValueError
        With the array's name, the index and the value.
    """
    for name, array in arrays.items():
        if not _all_finite(array):
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(f"{name} must be finite, got {float(array[index])} at {_place(index)}")


def _all_finite(array: np.ndarray) -> bool:
    """Tell whether all entries are finite, without a temporary of their number in the usual case."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = array.sum()  # a NaN or an infinity never leaves a sum
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def explain_coupling(knm: np.ndarray, name: str = "knm") -> None:
    """Raise for what a modulation does not take in a coupling; return None if all is well. O(N^2).

    A pair is symmetric when |K_ij - K_ji| <= 1e-12 (1 + min(|K_ij|, |K_ji|)).

    Raises
    ------
    ValueError
        For the first of: a non-finite entry, an asymmetric pair, a diagonal entry beyond 1e-12.
    """
    explain_nonfinite(**{name: knm})
    n = knm.shape[0]
    rows = max(1, _BLOCK_ENTRIES // max(n, 1))
    for start in range(0, n, rows):
        _explain_asymmetry(knm, start, min(n, start + rows), name)
    diagonal = np.abs(np.diagonal(knm))
    if n and diagonal.max() > SYMMETRY_TOLERANCE:
        i = int(np.argmax(diagonal > SYMMETRY_TOLERANCE))
        raise ValueError(f"{name} must have a zero diagonal, got {float(knm[i, i])!r} at index ({i}, {i})")


def _explain_asymmetry(knm: np.ndarray, start: int, stop: int, name: str) -> None:
    upper, lower = knm[start:stop], knm[:, start:stop].T
    with np.errstate(over="ignore"):
        allowed = SYMMETRY_TOLERANCE * (1.0 + np.minimum(np.abs(upper), np.abs(lower)))
        bad = np.abs(upper - lower) > allowed
    if bad.any():
        i, j = (int(entry) for entry in np.argwhere(bad)[0])
        i += start
        raise _asymmetric(name, i, j, knm[i, j], knm[j, i])


def _asymmetric(name: str, i: int, j: int, there: float, back: float) -> ValueError:
    return ValueError(
        f"{name} must be symmetric, got {float(there)!r} at index ({i}, {j}) "
        f"and {float(back)!r} at index ({j}, {i})"
    )


def unexplained(status: int) -> NoReturn:
    """Raise for a kernel's refusal that no explanation was found for.

    Raises
    ------
    ValueError
        Always.
    """
    raise ValueError(f"the input was refused with status {int(status)}")


def explain_refusal(knm: np.ndarray, theta: np.ndarray, status: int) -> NoReturn:
    """Raise for a coupling and phases that a kernel refused.

    Raises
    ------
    ValueError
        Naming the array and the entry; should both be good, the status.
    """
    explain_coupling(knm)
    explain_nonfinite(theta=theta)
    unexplained(status)


# ---------------------------------------------------------------- attention

_ROOM_OF_SCORES = 4.0  # kernels multiply scores by log2(e) and add few of them
_OPTIONAL_BIASES = ("b_v", "b_o")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInput:
    """Checked arguments of softmax attention; G samples, H heads, N queries, M keys.

    Attributes
    ----------
    q, k, v : ndarray, shapes (G, H, N, e), (G, H, M, e), (G, H, M, f)
        Queries, keys and values, C order, all float32 or all float64.
    scale : float
        Factor of the scores.
    causal : bool
        Whether queries see no later keys.
    key_mask : ndarray of bool, shape (G, M), or None
        Which keys may be attended to.
    sink, sink_value : ndarray, shapes (H,) and (H, f), or None
        Score and value of one more column.
    leading : tuple of int
        The dimensions that were joined to G.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    causal: bool
    key_mask: np.ndarray | None
    sink: np.ndarray | None
    sink_value: np.ndarray | None
    leading: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        """Return what is no array of tokens, as keywords."""
        names = ("scale", "causal", "key_mask", "sink", "sink_value")
        return {name: getattr(self, name) for name in names}


def attention_input(
    q: Any, k: Any, v: Any, *, scale: Any, causal: Any, key_mask: Any, sink: Any, sink_value: Any
) -> AttentionInput:
    """Check the arguments of softmax attention. O(G H (N e + M e + M f)).

    Raises
    ------
    ValueError
        For wrong kinds, shapes and mixed precisions, for a `sink_value` without a `sink`, and for entries
        that are not finite, but for those of masked keys and values and a sink of -inf.
    """
    queries, keys, values = float_array(q, "q"), float_array(k, "k"), float_array(v, "v")
    if queries.ndim < 3:
        raise ValueError(f"q must have shape (..., H, N, e), got {queries.shape}")
    *lead, heads, n, width = queries.shape
    leading = tuple(lead)
    if keys.ndim != queries.ndim or keys.shape[:-2] != (*leading, heads) or keys.shape[-1] != width:
        wanted = _shape_text(*leading, heads, "M", width)
        raise ValueError(f"k must have shape (..., H, M, e) = {wanted}, got {keys.shape}")
    if values.ndim != queries.ndim or values.shape[:-1] != keys.shape[:-1]:
        wanted = _shape_text(*keys.shape[:-1], "f")
        raise ValueError(f"v must have shape (..., H, M, f) = {wanted}, got {values.shape}")
    m, value_width = values.shape[-2:]
    for name, columns in (("q", width), ("v", value_width)):
        if columns < 1:
            raise ValueError(f"{name} must have at least one column, got none")
    mask = None if key_mask is None else _key_mask(key_mask, (*leading, m))
    score = None if sink is None else float_array(sink, "sink")
    own = None if sink_value is None else float_array(sink_value, "sink_value")
    if score is not None:
        _require_shape(score, "sink", (heads,), "(H,) = ")
        _refuse_sink(score)
    if own is not None:
        if score is None:
            raise ValueError("sink_value must be None without a sink, got " + describe(sink_value))
        _require_shape(own, "sink_value", (heads, value_width), "(H, f) = ")
        explain_nonfinite(sink_value=own)
    one_precision(q=queries, k=keys, v=values, sink=score, sink_value=own)
    explain_nonfinite(q=queries)
    _explain_unmasked(mask, k=keys, v=values)
    factor = 1.0 / math.sqrt(width) if scale is None else number(scale, "scale")
    refuse_large_scores(queries, keys, mask, factor)
    groups = math.prod(leading)
    return AttentionInput(
        queries.reshape(groups, heads, n, width),
        keys.reshape(groups, heads, m, width),
        values.reshape(groups, heads, m, value_width),
        factor,
        flag(causal, "causal"),
        None if mask is None else mask.reshape(groups, m),
        score,
        own,
        leading,
    )


def _shape_text(*sizes: int | str) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"


def _key_mask(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"key_mask must be an array of bool, got {describe(value)}")
    _require_shape(value, "key_mask", shape, "(..., M) = ")
    return np.ascontiguousarray(value.view(np.ndarray))


def _refuse_sink(sink: np.ndarray, name: str = "sink") -> None:
    bad = ~(sink.ravel() < np.inf)
    if bad.any():
        head = int(np.argmax(bad))
        raise ValueError(f"{name} must be finite or -inf, got {float(sink.flat[head])} at index {head}")


def _explain_unmasked(mask: np.ndarray | None, **arrays: np.ndarray) -> None:
    """Refuse entries that are not finite unless their key is masked; arrays (..., H, M, width)."""
    for name, array in arrays.items():
        if not _all_finite(array):
            visible = array if mask is None else np.where(mask[..., None, :, None], array, 0.0)
            explain_nonfinite(**{name: visible})


def refuse_large_scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float) -> None:
    """Refuse what lets a score overflow, in whatever order its factors are multiplied. O(size).

    Raises
    ------
    ValueError
        If `q`, `k` and `scale` are that large.
    """
    visible = True if mask is None else mask[..., None, :, None]
    top_q, top_k = (
        max(float(array.max(initial=0.0, where=seen)), -float(array.min(initial=0.0, where=seen)))
        for array, seen in ((q, True), (k, visible))
    )
    factor = max(1.0, _ROOM_OF_SCORES * abs(scale))
    bound = factor * max(top_q, top_k, 1.0, q.shape[-1] * top_q * top_k)
    if bound > float(np.finfo(q.dtype).max):
        raise ValueError(
            "scale, q and k must not be so large that scores overflow, "
            f"got a scale of {scale:g}, and entries up to {top_q:g} and {top_k:g}"
        )


def token_input(x: Any) -> np.ndarray:
    """Return the input of an attention layer, (B, N, d), in C order. O(B N d).

    Raises
    ------
    ValueError
        For wrong kinds and shapes, and entries that are not finite.
    """
    tokens = float_array(x, "x")
    if tokens.ndim != 3:
        raise ValueError(f"x must have shape (B, N, d), got {tokens.shape}")
    explain_nonfinite(x=tokens)
    return tokens


def head_width(width: int, heads: int) -> int:
    """Return the width of one of `heads` heads that share a model's width.

    Raises
    ------
    ValueError
        If there is no such width.
    """
    if width < 1 or width % heads:
        raise ValueError(f"n_heads must divide the model width d = {width}, got {heads}")
    return width // heads


def one_precision(**arrays: np.ndarray | None) -> np.dtype:
    """Return the dtype of all arrays that are given.

    Raises
    ------
    ValueError
        If they are not of one dtype, naming the first that differs.
    """
    given = [(name, array.dtype) for name, array in arrays.items() if array is not None]
    first, dtype = given[0]
    for name, other in given:
        if other != dtype:
            raise ValueError(f"{name} must have the dtype of {first}, {dtype}, got {other}")
    return dtype


def like(
    value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype, *, finite: bool = True
) -> np.ndarray:
    """Return `value` as an array of just this shape and precision, in C order.

    Raises
    ------
    ValueError
        If it is anything else, or not finite where that is asked.
    """
    array = float_array(value, name)
    _require_shape(array, name, shape)
    if array.dtype != dtype:
        raise ValueError(f"{name} must have dtype {dtype}, got {array.dtype}")
    if finite:
        explain_nonfinite(**{name: array})
    return array


def like_sink(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return the scores of sinks as `like` does; -inf, which is no sink, is allowed.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    array = like(value, name, shape, dtype, finite=False)
    _refuse_sink(array, name)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class PhaseInput:
    """Checked arguments of attention among moving phases; B samples, N tokens, H heads, m phases a head.

    Attributes
    ----------
    c, s, v : ndarray, shapes (B, N, H, m), (B, N, H, m), (B, N, H, f)
        Parts of the phases, and values.
    weight, alpha, kappa : ndarray, shapes (H, m), (H, m), (H,)
        Weights of the cosines, lags (radians) and strengths.
    ramp : ndarray, shape (m,), float64, radians
        What one place in the sequence adds.
    queries : pair of ndarray, shape (B, N, H, m), or None
        Parts of phases of their own for the queries.
    dynamics : dict
        steps, dt, static_query, value_consensus.
    """

    c: np.ndarray
    s: np.ndarray
    v: np.ndarray
    weight: np.ndarray
    alpha: np.ndarray
    kappa: np.ndarray
    ramp: np.ndarray
    queries: tuple[np.ndarray, np.ndarray] | None
    dynamics: dict[str, Any]


def phase_input(
    c: Any,
    s: Any,
    v: Any,
    weight: Any,
    alpha: Any,
    kappa: Any,
    ramp: Any,
    *,
    queries: Any,
    dynamics: dict[str, Any],
) -> PhaseInput:
    """Check the arguments of attention among moving phases. O(B N H (m + f)).

    Raises
    ------
    ValueError
        For wrong kinds and shapes, mixed precisions, and entries that are not finite.
    """
    cosines = float_array(c, "c")
    if cosines.ndim != 4:
        raise ValueError(f"c must have shape (B, N, H, m), got {cosines.shape}")
    batch, n, heads, m = cosines.shape
    explain_nonfinite(c=cosines)
    values = float_array(v, "v")
    if values.ndim != 4 or values.shape[:3] != (batch, n, heads):
        wanted = _shape_text(batch, n, heads, "f")
        raise ValueError(f"v must have shape (B, N, H, f) = {wanted}, got {values.shape}")
    for name, array in (("c", cosines), ("v", values)):
        if array.shape[-1] < 1:
            raise ValueError(f"{name} must have at least one column, got none")
    one_precision(c=cosines, v=values)
    explain_nonfinite(v=values)
    dtype = cosines.dtype
    parts = None
    if queries is not None:
        if not isinstance(queries, list | tuple) or len(queries) != 2:
            raise ValueError(f"queries must be None or a pair of arrays, got {describe(queries)}")
        parts = (
            like(queries[0], "queries[0]", cosines.shape, dtype),
            like(queries[1], "queries[1]", cosines.shape, dtype),
        )
    turns = real_array(ramp, "ramp")
    _require_shape(turns, "ramp", (m,), "(m,) = ")
    explain_nonfinite(ramp=turns)
    return PhaseInput(
        cosines,
        like(s, "s", cosines.shape, dtype),
        values,
        like(weight, "weight", (heads, m), dtype),
        like(alpha, "alpha", (heads, m), dtype),
        like(kappa, "kappa", (heads,), dtype),
        turns,
        parts,
        phase_dynamics(**dynamics),
    )


def refuse_overflow(names: str, out: np.ndarray) -> None:
    """Refuse arguments that are finite, but so large that what an attention made of them is not. O(size).

    Raises
    ------
    ValueError
        If an entry of `out` is not finite.
    """
    if not np.isfinite(out).all():
        raise ValueError(
            f"{names} must not be so large that scores or outputs overflow, got a result not finite"
        )


def refuse_large_phases(given: PhaseInput) -> None:
    """Refuse what lets scores or phases overflow. O(H m).

    Raises
    ------
    ValueError
        If `weight`, or `dt` times `kappa`, is that large.
    """
    limit = float(np.finfo(given.c.dtype).max)
    largest = float(np.abs(given.weight).max(initial=0.0))
    if _ROOM_OF_SCORES * given.weight.shape[1] * largest > limit:
        raise ValueError(f"weight must not be so large that scores overflow, got entries up to {largest:g}")
    steps, dt = given.dynamics["steps"], given.dynamics["dt"]
    strength = float(np.abs(given.kappa).max(initial=0.0))
    if 2.0 * steps * abs(dt) * strength > limit:
        raise ValueError(
            "dt and kappa must not be so large that phases overflow, "
            f"got {steps} steps of {dt:g} and entries up to {strength:g}"
        )


def phase_dynamics(*, steps: Any, dt: Any, static_query: Any, value_consensus: Any) -> dict[str, Any]:
    """Check how phases move, and return the same as plain Python values.

    Raises
    ------
    ValueError
        If `steps` is no integer >= 0, a number not finite, or `static_query` no bool.
    """
    return {
        "steps": integer(steps, "steps", 0),
        "dt": number(dt, "dt"),
        "static_query": flag(static_query, "static_query"),
        "value_consensus": number(value_consensus, "value_consensus"),
    }


def oscillator_parameters(
    params: Any, width: int, heads: int, dtype: np.dtype, *, separate_qk: bool, lag: bool
) -> dict[str, np.ndarray]:
    """Check the parameters of an oscillator attention layer, in the order of their names' list.

    Parameters
    ----------
    params : mapping of str to array_like
        W_c and W_s, or W_qp and W_kp with `separate_qk`; W_v, W_o: (d, d); w: (H, m); alpha: (H, m) with
        `lag`; beta, kappa: (H,); optionally b_v, b_o: (d,).
    width, heads : int
        d and H, which divides it into heads of width d/H: m = d/H, half of it with `separate_qk`.
    dtype : dtype
        Precision that all must have.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, of the wrong shape or precision, or not finite.
    """
    per_head = head_width(width, heads)
    if separate_qk and per_head % 2:
        raise ValueError(f"separate_qk needs heads of even width, got {per_head} = {width} / {heads}")
    m = per_head // 2 if separate_qk else per_head
    phases = ("W_qp", "W_kp") if separate_qk else ("W_c", "W_s")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*phases, "W_v", "W_o"), (width, width))
    shapes |= dict.fromkeys(("w", "alpha") if lag else ("w",), (heads, m))
    shapes |= dict.fromkeys(("beta", "kappa"), (heads,))
    return named_arrays(params, shapes, dict.fromkeys(_OPTIONAL_BIASES, (width,)), dtype)


def named_arrays(
    params: Any,
    shapes: Mapping[str, tuple[int, ...]],
    optional: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
) -> dict[str, np.ndarray]:
    """Check a dictionary of parameters, and return its arrays in the order of `shapes`, then `optional`.

    Parameters
    ----------
    params : mapping of str to array_like
        What came.
    shapes, optional : mapping of str to tuple of int
        Shapes of the entries that must and that may be there.
    dtype : dtype
        Precision that all must have.

    Raises
    ------
    ValueError
        If an entry is missing, unknown, of the wrong shape or precision, or not finite, but for a ``sink`` of
        -inf.
    """
    if not isinstance(params, Mapping):
        raise ValueError(f"params must be a dictionary of arrays, got {describe(params)}")
    for name in params:
        if name not in shapes and name not in optional:
            listed = ", ".join((*shapes, *optional))
            raise ValueError(f"params must have no entry but {listed}, got {name!r}")
    for name in shapes:
        if name not in params:
            raise ValueError(
                f"params must have an entry {name!r}, got {', '.join(map(str, params)) or 'none'}"
            )
    wanted = dict(shapes) | {name: shape for name, shape in optional.items() if name in params}
    checks = {"sink": like_sink}
    return {
        name: checks.get(name, like)(params[name], f"params[{name!r}]", shape, dtype)
        for name, shape in wanted.items()
    }
