"""The Numba backend: the kernels of ``spo_fast.kernels`` behind the backend protocol.

Loops over steps run in compiled code without the GIL. Every matrix enters the kernels as a read-only view
and every vector as a writable array, so that each kernel is compiled once, whatever the flags of the
caller's arrays are.
"""

from __future__ import annotations

import math

import numpy as np

from spo_fast.backends import paths
from spo_fast.backends.record import Record
from spo_fast.backends.status import Status
from spo_fast.kernels import daido, moments, sparse
from spo_fast.kernels import kuramoto as steps
from spo_fast.kernels import modulation as attention
from spo_fast.kernels.vectormath import wrap
from spo_fast.validation import (
    ModulationParameters,
    Network,
    SparseCoupling,
    as_coupling,
    as_output,
    as_phases,
    explain_coupling,
    explain_nonfinite,
    explain_refusal,
    unexplained,
)

NAME = "numba"
SHARES_MEMBERS = True  # threads may follow members of an ensemble at the same time

_METHODS = {"euler": steps.EULER, "rk4": steps.RK4, "rk45": steps.RK45}
_NO_ROW = np.empty(0)
_IDLE_ROOMS = 8  # kept by a modulation: as many as threads are likely to share it


def _no_matrix() -> np.ndarray:
    """An empty matrix that stands for "none"; a fresh one, since views of it are handed out."""
    return np.empty((0, 0))


def _readonly(array: np.ndarray) -> np.ndarray:
    """The same data as a plain read-only array."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def _writable(array: np.ndarray) -> np.ndarray:
    """The array itself, or a copy when it may not be written to or is of a subclass."""
    return array if type(array) is np.ndarray and array.flags.writeable else np.array(array)


def _plain(array: np.ndarray) -> np.ndarray:
    """The array itself, or the same data without its subclass."""
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def _pattern(coupling: SparseCoupling) -> tuple[np.ndarray, np.ndarray]:
    """Row bounds and columns as the kernels take them."""
    return _readonly(coupling.indptr), _readonly(coupling.indices)


def _symmetric_values(coupling: SparseCoupling) -> tuple[np.ndarray, np.ndarray]:
    """Values of K and of (K + K^T)/2 as the kernels take them; the latter come with a check of symmetry."""
    if coupling.mean is None:
        raise ValueError("knm must have been checked for symmetry to be modulated")
    return _readonly(coupling.data), _readonly(coupling.mean)


def _weights(parameters: ModulationParameters) -> tuple[np.ndarray | int | float, ...]:
    """The kernels' arguments from ``w_q`` to ``lambda_``.

    Arrays are copies, which stay writable when pickled.
    """
    p = parameters
    projections = (np.array(p.w_q), np.array(p.w_k), np.array(p.w_v), np.array(p.w_o))
    return (*projections, p.block_size, np.array(p.temperature), p.lambda_)


# ---------------------------------------------------------------- modulation


class ModulationPlan:
    """Modulation with given parameters of whatever coupling comes; may be shared by threads.

    Parameters
    ----------
    parameters : ModulationParameters
        Checked parameters.
    """

    def __init__(self, parameters: ModulationParameters) -> None:
        self.parameters = parameters
        self._arguments = _weights(parameters)
        self._rooms = _Rooms()

    def __call__(
        self, knm: object, theta: object, out: np.ndarray | None = None, algorithm: str = "auto"
    ) -> np.ndarray:
        """Modulated coupling of one state.

        Parameters
        ----------
        knm : array_like, shape (N, N)
            Symmetric coupling with a zero diagonal; only read.
        theta : array_like, shape (N,), radians
            Phases.
        out : ndarray, shape (N, N), optional
            Receives the result.
        algorithm : {"auto", "direct", "moments"}
            How to compute it; "auto" takes what is faster.

        Returns
        -------
        ndarray, shape (N, N)
            K'; `out` if given. Cost N^2 H exponentials and N^2 (3 d + 1) multiply-adds, or through order
            parameters N^2 (d + 1) and some 2000 N multiply-adds.

        Raises
        ------
        ValueError
            For input that is not of that form or not finite, or an algorithm that does not fit it.
        """
        coupling = as_coupling(knm)
        n = coupling.shape[0]
        phases = _writable(as_phases(theta, n))
        result = np.empty((n, n)) if out is None else as_output(out, n, knm, coupling)
        if _considers_moments(n, self.parameters, algorithm):
            structure = _inspect(coupling)
            _refuse_nonfinite(phases)
            series = _series_for(coupling, structure, self.parameters, algorithm)
            _modulate(coupling, structure, phases, self._arguments, series, self._rooms, _plain(result))
            return result
        status = attention.modulate(_readonly(coupling), phases, *self._arguments, _plain(result))
        if status != Status.OK:
            explain_refusal(coupling, phases, status)
        return result

    def modulate_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray:
        """Modulated coupling of one state, on the pattern of a sparse K.

        Parameters
        ----------
        coupling : SparseCoupling
            Checked for symmetry; E stored entries.
        theta : ndarray, shape (N,), radians
            Phases.

        Returns
        -------
        ndarray, shape (E,)
            Values of K'. Cost E H exponentials and E (3 d + 1) multiply-adds.

        Raises
        ------
        ValueError
            For phases that are not finite.
        """
        data, mean = _symmetric_values(coupling)
        phases = _finite_phases(theta, coupling.n)
        result = np.empty(data.size)
        sparse.apply_modulation_sparse(*_pattern(coupling), data, mean, phases, *self._arguments, result)
        return result

    def factors_sparse(self, coupling: SparseCoupling, theta: np.ndarray) -> np.ndarray:
        """Unit outputs for a sparse K, shape (N, d). ValueError for phases that are not finite."""
        phases = _finite_phases(theta, coupling.n)
        units = np.empty((coupling.n, self.parameters.d_model))
        status = sparse.factors_sparse(
            *_pattern(coupling), _readonly(coupling.data), phases, *self._arguments[:-1], units
        )
        if status != Status.OK:
            unexplained(status)
        return units

    def bind(self, knm: object, algorithm: str = "auto") -> BoundModulation:
        """Return the modulation of a copy of `knm`.

        Parameters
        ----------
        knm : array_like, shape (N, N)
            Symmetric coupling with a zero diagonal.
        algorithm : {"auto", "direct", "moments"}
            As in a call.

        Raises
        ------
        ValueError
            If it is not of that form or not finite, or the algorithm does not fit it.
        """
        return BoundModulation(self.parameters, knm, algorithm)


class BoundModulation:
    """Modulation of one coupling, of which it keeps a copy; may be shared by threads.

    Parameters
    ----------
    parameters : ModulationParameters
        Checked parameters.
    knm : array_like, shape (N, N)
        Symmetric coupling with a zero diagonal.
    algorithm : {"auto", "direct", "moments"}
        How to compute it.

    Attributes
    ----------
    knm : ndarray, shape (N, N)
        The copy, read-only.
    """

    def __init__(self, parameters: ModulationParameters, knm: object, algorithm: str = "auto") -> None:
        self.parameters = parameters
        self.knm = np.array(as_coupling(knm), subok=False)
        self.knm.flags.writeable = False
        self._arguments = _weights(parameters)
        self._structure = _inspect(self.knm)
        self._series = _series_for(self.knm, self._structure, parameters, algorithm)
        self._rooms = _Rooms()

    @property
    def algorithm(self) -> str:
        """Either "moments" or "direct"."""
        return "direct" if self._series is None else "moments"

    def __call__(self, theta: object, out: np.ndarray | None = None) -> np.ndarray:
        """Modulated coupling of one state; shape (N, N), `out` if given.

        ValueError for phases that are not finite.
        """
        n = self.knm.shape[0]
        phases = _finite_phases(theta, n)
        result = np.empty((n, n)) if out is None else as_output(out, n, self.knm)
        _modulate(
            self.knm, self._structure, phases, self._arguments, self._series, self._rooms, _plain(result)
        )
        return result

    def factors(self, theta: object) -> np.ndarray:
        """Unit outputs of one state, shape (N, d). ValueError for phases that are not finite."""
        phases = _finite_phases(theta, self.knm.shape[0])
        if self._series is not None:
            return self._units(phases)[0]
        units = np.empty((phases.size, self.parameters.d_model))
        attention.apply_factors(_readonly(self.knm), self._structure, phases, *self._arguments[:-1], units)
        return units

    def rows_redone(self, theta: object) -> int:
        """Number of oscillators whose sums through order parameters could not be trusted."""
        phases = _finite_phases(theta, self.knm.shape[0])
        return 0 if self._series is None else self._units(phases)[1]

    def _units(self, phases: np.ndarray) -> tuple[np.ndarray, int]:
        """Unit outputs through order parameters, and how many of them were done again pair by pair."""
        assert self._series is not None
        n, width = phases.size, self.parameters.d_model
        *weights, _, temperature, _ = self._arguments
        series, (room, keys) = self._series.arrays, self._rooms.take(n, self._series)
        redone = moments.apply_modulation_moments(
            _readonly(self.knm), self._structure, phases, *weights, temperature, 2.0,
            series, room, keys, _no_matrix(),
        )  # fmt: skip
        units = np.ascontiguousarray(moments.units_in(room, n, series)[:width, :n].T)
        self._rooms.give(room, keys)
        return units, int(redone)


class _Rooms:
    """Scratch of the moments kernels, kept for the next calls; threads that share it get one each."""

    def __init__(self) -> None:
        self._idle: list[tuple[np.ndarray, np.ndarray]] = []

    def __reduce__(self) -> tuple[type[_Rooms], tuple[()]]:
        return _Rooms, ()

    def take(self, n: int, series: daido.Series) -> tuple[np.ndarray, np.ndarray]:
        """Room for N oscillators and this series."""
        try:
            room, keys = self._idle.pop()
        except IndexError:
            return _room(n, series)
        return (room, keys) if keys.shape[1] == n else _room(n, series)

    def give(self, room: np.ndarray, keys: np.ndarray) -> None:
        """Take it back."""
        if len(self._idle) < _IDLE_ROOMS:
            self._idle.append((room, keys))


def _room(n: int, series: daido.Series) -> tuple[np.ndarray, np.ndarray]:
    """Arrays `room` and `keys` of the moments kernels."""
    return np.empty(moments.moments_room_size(n, series.arrays)), np.empty((2, n), dtype=np.int64)


def _modulate(
    knm: np.ndarray,
    structure: int,
    phases: np.ndarray,
    arguments: tuple[np.ndarray | int | float, ...],
    series: daido.Series | None,
    rooms: _Rooms,
    out: np.ndarray,
) -> None:
    """K' of an inspected coupling, through order parameters where there is a series."""
    if series is None:
        attention.apply_modulation(_readonly(knm), structure, phases, *arguments, out)
        return
    *weights, _, temperature, lambda_ = arguments
    room, keys = rooms.take(phases.size, series)
    moments.apply_modulation_moments(
        _readonly(knm), structure, phases, *weights, temperature, lambda_, series.arrays, room, keys, out
    )
    rooms.give(room, keys)


def _considers_moments(n: int, parameters: ModulationParameters, algorithm: str) -> bool:
    """Whether the series are worth a look."""
    if n == 0 or algorithm == "direct":
        return False
    return algorithm == "moments" or paths.moments_possible(n, parameters)


def _series_for(
    knm: np.ndarray, structure: int, parameters: ModulationParameters, algorithm: str
) -> daido.Series | None:
    """The series where they are to be used for an inspected coupling; ValueError if "moments" cannot be."""
    n = knm.shape[0]
    if not _considers_moments(n, parameters, algorithm):
        return None
    p, insists = parameters, algorithm == "moments"
    if not paths.reaches_all(n, p):
        raise ValueError(
            f"algorithm 'moments' needs a block_size that reaches all {n} oscillators, got {p.block_size}"
        )
    series = daido.series_of(p.w_q, p.w_k, p.w_v, p.w_o, p.temperature)
    if series.refusal and insists:
        raise ValueError(
            "algorithm 'moments' cannot keep the accuracy with these projections and temperature: "
            f"{series.refusal}"
        )
    if insists:
        return series
    if series.refusal or not paths.moments_pay(n, p, series, 0):
        return None
    if structure & attention.WITHOUT_ZEROS:
        return series
    hidden = moments.count_hidden(
        _readonly(knm), structure, np.empty(n, np.int64), np.empty((n, paths.GROUP))
    )
    return series if paths.moments_pay(n, p, series, int(hidden)) else None


def _finite_phases(theta: object, n: int) -> np.ndarray:
    """Phases as the kernels take them; ValueError for others than n finite ones."""
    phases = _writable(as_phases(theta, n))
    _refuse_nonfinite(phases)
    return phases


def _refuse_nonfinite(phases: np.ndarray) -> None:
    """Raise the ValueError for phases that are not finite; a sum of squares that is tells that all are."""
    if not math.isfinite(phases.dot(phases)):
        explain_nonfinite(theta=phases)


def _inspect(knm: np.ndarray) -> int:
    """Structure bits of a good coupling; ValueError for any other."""
    status, structure = attention.inspect_coupling(_readonly(knm))
    if status != Status.OK:
        explain_coupling(knm)
        unexplained(status)
    return int(structure)


def _structure(knm: np.ndarray | SparseCoupling) -> int:
    """Structure bits of a good coupling, none for a sparse one; ValueError for any other."""
    if isinstance(knm, SparseCoupling):
        _symmetric_values(knm)
        return 0
    return _inspect(knm)


# ---------------------------------------------------------------- integration


class _Window:
    """The part of a recorded array that a call writes, as the contiguous array that a kernel takes.

    Parameters
    ----------
    array : ndarray or None
        Recorded array, any strides.
    start, count : int
        First row to be written and number of rows.
    empty : ndarray
        Stands for "not wanted".
    """

    def __init__(self, array: np.ndarray | None, start: int, count: int, empty: np.ndarray) -> None:
        self._part = None if array is None else array[start : start + count]
        self.rows = empty if self._part is None else np.ascontiguousarray(self._part)

    def close(self, count: int) -> None:
        """Bring the rows that were written home, when the kernel wrote to a copy."""
        if self._part is not None and not np.shares_memory(self._part, self.rows):
            self._part[:count] = self.rows[:count]


def _values(knm: np.ndarray | SparseCoupling) -> np.ndarray:
    """The numbers of a coupling: shape (N, N), or (E,) of a sparse one."""
    return knm.data if isinstance(knm, SparseCoupling) else knm


def _as_rows(values: np.ndarray) -> np.ndarray:
    """The same numbers as a matrix; those of a sparse one as one row."""
    return values if values.ndim == 2 else values.reshape(1, -1)


class _Lag:
    """Lagged parts of a coupling, made once per network.

    Parameters
    ----------
    network : Network
        Whose lag matrix to use; with modulation only its cosines and sines are kept, the parts follow K'.
    """

    def __init__(self, network: Network) -> None:
        values = _values(network.knm)
        none = (0,) * values.ndim
        shape = none if network.alpha is None else values.shape
        self.cos, self.sin = np.empty(shape), np.empty(shape)
        self.knm_cos, self.knm_sin = np.empty(none), np.empty(none)
        if network.alpha is None:
            return
        unmodulated = network.modulation is None
        factor = values if unmodulated else np.ones(shape)
        given = (_readonly(_as_rows(factor)), _readonly(_as_rows(network.alpha)))
        steps.lagged_coupling(*given, _as_rows(self.cos), _as_rows(self.sin))
        if not unmodulated:
            self.knm_cos, self.knm_sin = np.empty(shape), np.empty(shape)


class Integration:
    """One trajectory being advanced; owns its scratch, so it serves one thread at a time.

    Parameters
    ----------
    n : int
        Number of oscillators.
    method : {"euler", "rk4", "rk45"}
        Integrator.
    dt : float
        Step size in units of time; for rk45 the first one, and a tenth of the largest.
    atol, rtol : float
        Tolerances of rk45.

    Attributes
    ----------
    theta : ndarray, shape (n,), radians
        Current state, wrapped into [0, 2 pi).
    t : float
        Current time.
    dt : float
        Step size that will be tried next.
    step : int
        Steps taken since `start`.
    """

    def __init__(self, n: int, method: str, dt: float, atol: float, rtol: float) -> None:
        self._method = _METHODS[method]
        self._dt0, self._atol, self._rtol = float(dt), float(atol), float(rtol)
        self._work = np.empty((steps.SPARSE_WORK_ROWS, n))
        self._network: Network | None = None
        self.theta = np.zeros(n)
        self.start(self.theta)

    def set_network(self, network: Network) -> None:
        """Take a right-hand side, which is kept by reference.

        Parameters
        ----------
        network : Network
            Checked kinds and shapes; its arrays may be read-only.

        Raises
        ------
        ValueError
            If the coupling is to be modulated and is not symmetric, finite and of zero diagonal.
        """
        self._network = network
        self._omega = _writable(network.omega)
        self._drive = steps.make_drive(network.uniform_alpha, network.zeta, network.psi)
        self._lag = _Lag(network)
        self._current = False
        if network.modulation is not None:
            self._structure = _structure(network.knm)
            self._arguments = _weights(network.modulation)
            self._moments = self._chosen_path(network.knm, network.modulation)
            self._modulated = np.empty(_values(network.knm).shape)

    def _chosen_path(
        self, knm: np.ndarray | SparseCoupling, parameters: ModulationParameters
    ) -> tuple[object, ...]:
        """What the moments kernels need beyond the coupling where they are used, else nothing."""
        if isinstance(knm, SparseCoupling):
            return ()
        series = _series_for(knm, self._structure, parameters, parameters.algorithm)
        return () if series is None else (series.arrays, *_room(knm.shape[0], series))

    def start(self, theta: np.ndarray) -> None:
        """Begin at step 0 and time 0 from phases of any size, shape (n,), radians, which are wrapped."""
        wrap(np.array(theta, dtype=np.float64), self.theta)
        self.t, self.step, self.dt = 0.0, 0, self._dt0
        self._current = False  # a modulated coupling kept from another run does not belong to this one

    def advance(self, n_steps: int, record: Record | None = None) -> int:
        """Take steps until `n_steps` are done or the state turns non-finite.

        Parameters
        ----------
        n_steps : int
            Number of steps.
        record : Record, optional
            What to write on the way.

        Returns
        -------
        Status
            ``OK``, or ``NONFINITE_STATE`` with the last good state, time and step kept. Cost of a step: one
            right-hand side (2 N^2 multiply-adds, or 2 E for E edges; twice that with a lag matrix) for euler,
            4 for rk4, 6 or more for rk45.
        """
        if self._network is None:
            raise RuntimeError("set_network must come before advance")
        record = record or Record()
        observed = [
            _Window(a, self.step, n_steps + 1, _NO_ROW) for a in (record.R, record.psi, record.t_observe)
        ]
        stored = self._stored(record, n_steps)
        clock = np.array((self.t, self.dt, self._dt0))
        common = (
            self._method, self.step, n_steps, self.theta, clock, self._atol, self._rtol, self._omega,
            self._coupling(self._network), self._drive, self._work,
            record.every, *(window.rows for window in (*stored, *observed)),
        )  # fmt: skip
        if self._network.modulation is None:
            status, taken = steps.advance(*common)
        else:
            status, taken = steps.advance_modulated(*common, *self._modulation(self._network))
        self._close(taken, clock, record, stored, observed)
        return Status(status)

    def _stored(self, record: Record, n_steps: int) -> list[_Window]:
        """Windows on the stored states and times that fall into the coming steps."""
        done = self.step // record.every if record.every else 0
        count = (self.step + n_steps) // record.every - done if record.every else 0
        theta, times = (record.theta, record.t) if count else (None, None)
        return [_Window(theta, done + 1, count, _no_matrix()), _Window(times, done + 1, count, _NO_ROW)]

    def _close(
        self, taken: int, clock: np.ndarray, record: Record, stored: list[_Window], observed: list[_Window]
    ) -> None:
        """Adopt what a kernel did."""
        rows = (self.step + taken) // record.every - self.step // record.every if record.every else 0
        for window in stored:
            window.close(rows)
        for window in observed:
            window.close(taken + 1)
        self.step += int(taken)
        self.t, self.dt = float(clock[0]), float(clock[1])
        self._current = self._current or taken > 0

    def _coupling(self, network: Network) -> tuple[np.ndarray, ...]:
        """Coupling, its sine part, and the pattern of a sparse one, as the right-hand side reads them."""
        lag = self._lag
        if network.modulation is None:
            followed, followed_sin = _values(network.knm) if network.alpha is None else lag.cos, lag.sin
        else:
            followed, followed_sin = self._modulated if network.alpha is None else lag.knm_cos, lag.knm_sin
        pattern = _pattern(network.knm) if isinstance(network.knm, SparseCoupling) else ()
        return (_readonly(followed), _readonly(followed_sin), *pattern)

    def _modulation(self, network: Network) -> tuple[object, ...]:
        """What ``advance_modulated`` takes beyond ``advance``."""
        knm, lag = network.knm, self._lag
        source: tuple[object, ...]
        if isinstance(knm, SparseCoupling):
            source = _symmetric_values(knm)
        else:
            source = (_readonly(knm), *self._moments)
        parts = (part.reshape(-1) for part in (lag.cos, lag.sin, lag.knm_cos, lag.knm_sin))
        return (
            source, self._structure, *self._arguments, network.modulate_every, self._current,
            self._modulated, *parts,
        )  # fmt: skip


def order_parameter(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order parameter and mean phase of each row.

    Parameters
    ----------
    theta : ndarray, shape (T, N), radians
        States, C order.

    Returns
    -------
    r : ndarray, shape (T,)
        In [0, 1]; 0 for N = 0.
    psi : ndarray, shape (T,), radians
        In [0, 2 pi). Cost O(T N).
    """
    r, psi = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    steps.order_parameter(_readonly(theta), r, psi)
    return r, psi
