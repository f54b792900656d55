"""What modulation does to the dynamics: seeded set-ups and the five measures by which it is judged.

1. The order parameter drifts little: at lambda = 0.1 and strong coupling by less than 5 percent.
2. K' is symmetric, and lambda = 0 leaves the integration as it is, bit for bit.
3. The anchors of the 16-layer matrix stay within [K, (1 + lambda) K], and zeros stay zero.
4. Neighbouring trajectories do not part: small perturbations, Lyapunov exponents, R over a long run.
5. What it costs: reported, not judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spo_fast import datasets, lyapunov_spectrum, modulate, simulate

DT = 0.01
ANCHORS = (0.302, 0.201, 0.252, 0.154)  # between layers 1-2, 2-3, 3-4 and 4-5
DRIFT_LIMIT = 5.0  # percent
SLOPE_LIMIT = 0.05  # per time unit
EXPONENT_LIMIT = 0.1  # per time unit; also for how far it may lie above the un-modulated one
TAIL_LIMIT = 0.3
STABILITY_MODULATION = {"lambda_": 0.5, "block_size": 4}
PERTURBATION = 1e-8


@dataclass(frozen=True)
class Setup:
    """A random network at a chosen distance from the onset of synchrony, and how long it is followed.

    Attributes
    ----------
    name : str
        For tables.
    coupling : float, rad per time unit
        N times the mean coupling. For frequencies of standard deviation s and N without bound, synchrony sets
        in at 1.6 s: 0.8 for the default spread.
    spread : float, rad per time unit
        Standard deviation of the natural frequencies, whose mean is 0.
    warm_up, measured : int
        Euler steps of 0.01 before the measurement and during it.
    n : int
        Number of oscillators.
    """

    name: str
    coupling: float
    spread: float = 0.5
    warm_up: int = 300
    measured: int = 200
    n: int = 16

    def __str__(self) -> str:
        return f"{self.name}: mean K {self.coupling:g}/N, {self.warm_up} + {self.measured} steps"


STRONG = Setup("far above onset", 5.0)
ONSET = Setup("near onset", 1.5)
SETTLED = Setup("near onset, settled", 1.5, warm_up=2000, measured=2000)
STABILITY = Setup("stability", 5.0, spread=0.3, warm_up=400, measured=300)
SMALL = Setup("exponents", 5.0, spread=0.3, warm_up=0, measured=500, n=12)


@dataclass(frozen=True)
class Drift:
    """How much modulation changes the mean order parameter, over seeds.

    Attributes
    ----------
    plain, modulated : float
        Mean R over time and seeds.
    mean : float, percent
        Of ``modulated`` over ``plain``.
    error : float, percent
        Standard error of ``mean`` over the seeds.
    smallest, largest : float, percent
        Drifts of single seeds.
    """

    plain: float
    modulated: float
    mean: float
    error: float
    smallest: float
    largest: float


def problem(setup: Setup, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a network of a set-up.

    Parameters
    ----------
    setup : Setup
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    theta : ndarray, shape (n,), radians
        Uniform on the circle.
    omega : ndarray, shape (n,), rad per time unit
        Normal.
    knm : ndarray, shape (n, n), rad per time unit
        Symmetric, zero diagonal, other entries uniform between half and one and a half times their mean.
    """
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.5, 1.5, (setup.n, setup.n)), 1) * (setup.coupling / setup.n)
    theta = rng.uniform(0.0, 2.0 * np.pi, setup.n)
    return theta, rng.normal(0.0, setup.spread, setup.n), upper + upper.T


# ---------------------------------------------------------------- drift of R


def mean_orders(
    setup: Setup, modulation: dict[str, Any] | None, seeds: Iterable[int], *, backend: str | None = None
) -> np.ndarray:
    """Mean R over the measured steps, for each seed.

    Parameters
    ----------
    setup : Setup
    modulation : dict or None
        As for ``simulate``.
    seeds : iterable of int
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    ndarray, shape (seeds,)
    """
    return np.array([_mean_order(setup, modulation, seed, backend) for seed in seeds])


def _mean_order(setup: Setup, modulation: dict[str, Any] | None, seed: int, backend: str | None) -> float:
    steps = setup.warm_up + setup.measured
    run = simulate(
        *problem(setup, seed), dt=DT, n_steps=steps, method="euler", modulation=modulation, backend=backend
    )
    assert run.R is not None
    return float(run.R[setup.warm_up + 1 :].mean())


def drift(plain: np.ndarray, modulated: np.ndarray) -> Drift:
    """Compare mean order parameters seed by seed.

    Parameters
    ----------
    plain, modulated : ndarray, shape (seeds,)
        What ``mean_orders`` returned for the same seeds, at least two.

    Returns
    -------
    Drift
        The error is that of a ratio of two means (first order).
    """
    ratio = modulated.mean() / plain.mean()
    spread = np.std(modulated - ratio * plain, ddof=1) / (plain.mean() * np.sqrt(len(plain)))
    single = 100.0 * (modulated / plain - 1.0)
    return Drift(
        plain=float(plain.mean()),
        modulated=float(modulated.mean()),
        mean=float(100.0 * (ratio - 1.0)),
        error=float(100.0 * spread),
        smallest=float(single.min()),
        largest=float(single.max()),
    )


# ---------------------------------------------------------------- the matrix


def asymmetry(seed: int, **modulation: Any) -> float:
    """Largest difference between K' and its transpose, for a random state.

    Parameters
    ----------
    seed : int
    **modulation
        Keywords of ``modulate``.

    Returns
    -------
    float, rad per time unit
    """
    theta, _, knm = problem(STRONG, seed)
    changed = modulate(knm, theta, **modulation)
    return float(np.abs(changed - changed.T).max())


def zero_changes_bits(seed: int, *, backend: str | None = None) -> bool:
    """Tell whether a run with lambda = 0 differs in any bit from one without modulation.

    Parameters
    ----------
    seed : int
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    bool
    """
    runs = [
        simulate(*problem(STRONG, seed), dt=DT, n_steps=100, modulation=modulation, backend=backend)
        for modulation in (None, {"lambda_": 0.0})
    ]
    return runs[0].final.tobytes() != runs[1].final.tobytes()


def anchor_factors(seed: int, **modulation: Any) -> np.ndarray:
    """K' over K at the four anchors of the 16-layer matrix, for a random state.

    Parameters
    ----------
    seed : int
    **modulation
        Keywords of ``modulate``.

    Returns
    -------
    ndarray, shape (4,), dimensionless
        Within [1, 1 + lambda].
    """
    changed = modulate(datasets.scpn16(), datasets.initial_phases(datasets.LAYERS, seed=seed), **modulation)
    return np.diagonal(changed, 1)[: len(ANCHORS)] / ANCHORS


# ---------------------------------------------------------------- stability


def growth_slope(
    setup: Setup, seed: int, modulation: dict[str, Any] | None, *, backend: str | None = None
) -> float:
    """Rate at which a small perturbation of a warmed-up state grows.

    Parameters
    ----------
    setup : Setup
    seed : int
        Of the network and of the direction.
    modulation : dict or None
        As for ``simulate``.
    backend : str, optional
        As for ``simulate``.

    Returns
    -------
    float, per time unit
        Slope of a line through the logarithm of the distance at every measured step.
    """
    theta, omega, knm = problem(setup, seed)

    def follow(start: np.ndarray, steps: int, every: int | None) -> Any:
        return simulate(
            start,
            omega,
            knm,
            dt=DT,
            n_steps=steps,
            method="euler",
            modulation=modulation,
            record_every=every,
            observe=(),
            backend=backend,
        )

    start = follow(theta, setup.warm_up, None).final
    direction = np.random.default_rng([seed, 1]).standard_normal(setup.n)
    moved = start + PERTURBATION * direction / np.linalg.norm(direction)
    first, second = (follow(state, setup.measured, 1) for state in (start, moved))
    apart = np.remainder(second.theta - first.theta + np.pi, 2.0 * np.pi) - np.pi
    return float(np.polyfit(first.t, np.log(np.linalg.norm(apart, axis=1)), 1)[0])


def leading_exponents(setup: Setup, seed: int, modulation: dict[str, Any]) -> tuple[float, float]:
    """Leading Lyapunov exponent without modulation, and with K' of the first state kept throughout.

    Parameters
    ----------
    setup : Setup
        Its ``measured`` steps are followed from random phases.
    seed : int
    modulation : dict
        Keywords of ``modulate``.

    Returns
    -------
    plain, frozen : float, per time unit
        QR decomposition every 10 steps.
    """
    theta, omega, knm = problem(setup, seed)
    plain, frozen = (
        lyapunov_spectrum(theta, omega, matrix, dt=DT, n_steps=setup.measured, qr_interval=10, k=1)
        for matrix in (knm, modulate(knm, theta, **modulation))
    )
    return float(plain[0]), float(frozen[0])


def order_range(
    setup: Setup, seed: int, modulation: dict[str, Any] | None, *, steps: int = 2000, tail: int = 500
) -> tuple[float, float, float]:
    """Follow R over a long run.

    Parameters
    ----------
    setup : Setup
    seed : int
    modulation : dict or None
        As for ``simulate``.
    steps, tail : int
        Steps followed, and how many of the last ones make the tail.

    Returns
    -------
    smallest, largest, tail : float
        Extremes of R over the run, and largest less smallest R over the tail.
    """
    run = simulate(*problem(setup, seed), dt=DT, n_steps=steps, method="euler", modulation=modulation)
    assert run.R is not None
    return float(run.R.min()), float(run.R.max()), float(np.ptp(run.R[-tail:]))
