"""Drop-in names for code written against the SCPN phase orchestrator: its names and meaning, these kernels.

Where the orchestrator insists on an array, these functions also take what `spo_fast` takes: ``alpha=None``
for no lag, numbers for equal frequencies, temperatures per head, self-coupling in the integrators, SciPy
sparse couplings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast import kuramoto, modulation, observables
from spo_fast.backends import registry
from spo_fast.modulation import default_projections
from spo_fast.validation import as_phases, explain_nonfinite, integer, number

if TYPE_CHECKING:
    ACTIVE_BACKEND: str
    AVAILABLE_BACKENDS: list[str]

PHASE_EMBED_DIM = modulation.MODEL_WIDTH

__all__ = [
    "ACTIVE_BACKEND",
    "AVAILABLE_BACKENDS",
    "PHASE_EMBED_DIM",
    "UPDEEngine",
    "attnres_modulate",
    "compute_layer_coherence",
    "compute_order_parameter",
    "compute_plv",
    "default_projections",
    "entropy_production_rate",
    "lyapunov_spectrum",
]


def __getattr__(name: str) -> Any:
    if name == "ACTIVE_BACKEND":
        return registry.load().NAME
    if name == "AVAILABLE_BACKENDS":
        return [known for known, state in registry.backends().items() if state == "available"]
    raise AttributeError(f"module 'spo_fast.compat' has no attribute {name!r}")


def attnres_modulate(
    knm: Any,
    theta: Any,
    *,
    w_q: Any = None,
    w_k: Any = None,
    w_v: Any = None,
    w_o: Any = None,
    n_heads: int = 4,
    block_size: int | None = None,
    temperature: float = 1.0,
    lambda_: float = 0.5,
    projection_seed: int = 0,
) -> Any:
    """Modulate a coupling by the phases.

    Parameters
    ----------
    knm, theta, w_q, w_k, w_v, w_o, n_heads, block_size, temperature, lambda_, projection_seed
        As for `spo_fast.modulate`.

    Returns
    -------
    ndarray or csr matrix, shape (N, N)
        Modulated coupling, sparse where `knm` is.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range.
    """
    return modulation.modulate(
        knm,
        theta,
        w_q,
        w_k,
        w_v,
        w_o,
        n_heads=n_heads,
        block_size=block_size,
        temperature=temperature,
        lambda_=lambda_,
        projection_seed=projection_seed,
    )


class UPDEEngine:
    """Kuramoto integrator with an outer clock for frequencies that change in time.

    Parameters
    ----------
    n_oscillators : int
        N, at least 1.
    dt : float
        Step size, positive; for rk45 the first one.
    method : {"euler", "rk4", "rk45"}
        Integrator.
    atol, rtol : float
        Tolerances of rk45.
    omega : array_like, shape (N,), or callable, optional
        Frequencies, rad per time unit, for steps that bring none; a callable takes the time.
    t0 : float
        Where the clock starts.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range.
    """

    def __init__(
        self,
        n_oscillators: int,
        dt: float,
        method: str = "euler",
        atol: float = 1e-6,
        rtol: float = 1e-3,
        *,
        omega: Any = None,
        t0: float = 0.0,
    ) -> None:
        integer(n_oscillators, "n_oscillators", 1)
        self._engine = kuramoto.Engine(n_oscillators, dt, method, atol, rtol)
        self._time = number(t0, "t0")
        self._omega = omega
        self._omega_current = np.zeros(self._engine.n_oscillators)
        if omega is not None:
            self._omega_current = self._resolve(omega)

    @property
    def last_dt(self) -> float:
        """Step size that the next step will try; `dt` unless the method is rk45."""
        return self._engine.last_dt

    @property
    def time(self) -> float:
        """Outer clock: `t0` plus `dt` for each step."""
        return self._time

    @property
    def omega_current(self) -> np.ndarray:
        """Frequencies of the last step, shape (N,); a copy."""
        return self._omega_current.copy()

    def step(
        self,
        phases: Any,
        omegas: Any = None,
        knm: Any = None,
        zeta: float = 0.0,
        psi: float = 0.0,
        alpha: Any = None,
    ) -> np.ndarray:
        """Take one step.

        Parameters
        ----------
        phases : array_like, shape (N,), radians
            State.
        omegas : array_like, shape (N,), or callable, optional
            Frequencies, or a function of the clock; the constructor's by default.
        knm : array_like, shape (N, N)
            Coupling.
        zeta, psi : float
            Strength and phase of the external drive.
        alpha : None, float or array_like, shape (N, N), radians
            Phase lag.

        Returns
        -------
        ndarray, shape (N,), radians
            New state, wrapped to [0, 2 pi).

        Raises
        ------
        ValueError
            If an argument is missing, of the wrong kind or shape, or not finite.
        SimulationError
            If the state turns non-finite although the input is finite.
        """
        return self.run(phases, omegas, knm, zeta, psi, alpha, n_steps=1)

    def run(
        self,
        phases: Any,
        omegas: Any = None,
        knm: Any = None,
        zeta: float = 0.0,
        psi: float = 0.0,
        alpha: Any = None,
        n_steps: int = 1,
    ) -> np.ndarray:
        """Take several steps.

        Parameters
        ----------
        phases, omegas, knm, zeta, psi, alpha
            As for `step`.
        n_steps : int
            At least 0.

        Returns
        -------
        ndarray, shape (N,), radians
            Last state, wrapped to [0, 2 pi).

        Raises
        ------
        ValueError
            If an argument is missing, of the wrong kind or shape, or not finite.
        SimulationError
            If the state turns non-finite although the input is finite.
        """
        if knm is None:
            raise ValueError("knm must be given, got None")
        count = integer(n_steps, "n_steps", 0)
        source = self._omega if omegas is None else omegas
        if source is None:
            raise ValueError("omegas must be given unless omega was given to the constructor, got None")
        if callable(source):
            return self._run_scheduled(phases, source, knm, zeta, psi, alpha, count)
        current = self._resolve(source)
        state = self._engine.run(phases, current, knm, zeta, psi, alpha, n_steps=count)
        self._omega_current = current
        self._time += count * self._engine.dt
        return state

    def compute_order_parameter(self, phases: Any) -> tuple[float, float]:
        """Sum up a state.

        Parameters
        ----------
        phases : array_like, shape (N,), radians
            State.

        Returns
        -------
        R, psi : float
            In [0, 1], and in [0, 2 pi).

        Raises
        ------
        ValueError
            If `phases` has another number of dimensions or is not finite.
        """
        return compute_order_parameter(phases)

    def _run_scheduled(
        self,
        phases: Any,
        schedule: Callable[[float], Any],
        knm: Any,
        zeta: Any,
        psi: Any,
        alpha: Any,
        count: int,
    ) -> np.ndarray:
        """Ask the schedule for the frequencies at the start of each step and hold them over it."""
        current = self._resolve(schedule)
        state = self._engine.run(phases, current, knm, zeta, psi, alpha, n_steps=0)
        for _ in range(count):
            current = self._resolve(schedule)
            state = self._engine.step(state, current, knm, zeta, psi, alpha)
            self._omega_current = current
            self._time += self._engine.dt
        return state

    def _resolve(self, source: Any) -> np.ndarray:
        values = source(self._time) if callable(source) else source
        n = self._engine.n_oscillators
        omegas = (
            np.full(n, number(values, "omegas")) if np.ndim(values) == 0 else as_phases(values, n, "omegas")
        )
        explain_nonfinite(omegas=omegas)
        return omegas.copy()


def compute_order_parameter(phases: Any) -> tuple[float, float]:
    """Sum up a state.

    Parameters
    ----------
    phases : array_like, shape (N,), radians
        State.

    Returns
    -------
    R, psi : float
        In [0, 1], and in [0, 2 pi).

    Raises
    ------
    ValueError
        If `phases` has another number of dimensions or is not finite.
    """
    state = as_phases(phases, None, "phases")
    explain_nonfinite(phases=state)
    return observables.order_parameter(state)


def compute_plv(phases_a: Any, phases_b: Any) -> float:
    """Phase-locking value of two series.

    Parameters
    ----------
    phases_a, phases_b : array_like, shape (T,), radians
        The series.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If they have different lengths or are not finite.
    """
    first = as_phases(phases_a, None, "phases_a")
    second = as_phases(phases_b, first.size, "phases_b")
    explain_nonfinite(phases_a=first, phases_b=second)
    return observables.plv(first, second)


def compute_layer_coherence(phases: Any, layer_mask: Any) -> float:
    """Order parameter of some of the oscillators.

    Parameters
    ----------
    phases : array_like, shape (N,), radians
        State.
    layer_mask : array_like
        A boolean mask of shape (N,), or unique indices.

    Returns
    -------
    float
        R in [0, 1]; 0 when none is selected.

    Raises
    ------
    ValueError
        If the mask or the indices do not fit.
    """
    state = as_phases(phases, None, "phases")
    explain_nonfinite(phases=state)
    return observables.layer_coherence(state, layer_mask)


def entropy_production_rate(phases: Any, omegas: Any, knm: Any, alpha: Any, dt: Any) -> float:
    """Dissipation dt sum_i (omega_i + (alpha / N) sum_j K_ij sin(theta_j - theta_i))^2.

    Parameters
    ----------
    phases : array_like, shape (N,), radians
        State.
    omegas, knm, alpha, dt
        As for `spo_fast.entropy_production_rate`.

    Returns
    -------
    float
        Not negative.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite.
    """
    return observables.entropy_production_rate(as_phases(phases, None, "phases"), omegas, knm, alpha, dt)


def lyapunov_spectrum(
    phases_init: Any,
    omegas: Any,
    knm: Any,
    alpha: Any,
    dt: Any = 0.01,
    n_steps: Any = 1000,
    qr_interval: Any = 10,
    zeta: Any = 0.0,
    psi: Any = 0.0,
) -> np.ndarray:
    """All N Lyapunov exponents, descending.

    Parameters
    ----------
    phases_init : array_like, shape (N,), radians
        First state.
    omegas, knm, alpha, dt, n_steps, qr_interval, zeta, psi
        As for `spo_fast.lyapunov_spectrum`. Steps after the last full `qr_interval` count in the time but not
        in the growth, as in the orchestrator; fewer steps than one interval give zeros.

    Returns
    -------
    ndarray, shape (N,), per time unit

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, or not finite.
    SimulationError
        If the state turns non-finite although the input is finite.
    """
    phases = as_phases(phases_init, None, "phases_init")
    count, interval = integer(n_steps, "n_steps", 0), integer(qr_interval, "qr_interval", 1)
    whole = count - count % interval
    spectrum = observables.lyapunov_spectrum(
        phases, omegas, knm, alpha, dt=dt, n_steps=max(whole, 1), qr_interval=interval, zeta=zeta, psi=psi
    )
    return spectrum * (whole / count) if whole else np.zeros_like(spectrum)
