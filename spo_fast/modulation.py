"""Coupling that follows the phases: attention residuals over a phase embedding.

With x(theta) = [cos theta, sin theta, ..., cos(d/2) theta, sin(d/2) theta], per head q, k, v = x W_Q, x W_K,
x W_V, and the mask m_ij = 1 where i != j, K_ij != 0 and |i - j| <= block_size:

    A_h = softmax over the unmasked j of q_i . k_j / (sqrt(d_h) tau_h)
    O = concat_h(A_h V_h) W_O,   o_i = O_i / (|O_i| + 1e-12),   a_ij = (1 + o_i . o_j) m_ij / 2
    K' = (M + M^T) / 2 with M_ij = K_ij (1 + lambda a_ij), and a zero diagonal

A sparse coupling gives a sparse one: only stored entries are looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from spo_fast.backends import registry
from spo_fast.validation import (
    ModulationParameters,
    SparseCoupling,
    as_phases,
    as_sparse_coupling,
    choice,
    describe,
    integer,
    is_sparse,
    modulation_parameters,
    plain_matrix,
    real_array,
)

MODEL_WIDTH = 8  # d where no projection tells another
ALGORITHMS = ("auto", "direct", "moments", "band", "sparse")

_PLAN_LIMIT = 64  # plans kept; one with d = 8 and its workspaces for small N takes some 10 KB
_NUMBERS = frozenset((int, float))
_AUTO = "auto"
_Array = np.ndarray

_plans: dict[tuple[Any, ...], Any] = {}  # by keywords, default projections
_plans_by_content: dict[tuple[Any, ...], Any] = {}


def default_projections(
    n_heads: int = 4, seed: int = 0, d_model: int = MODEL_WIDTH
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw projections for a modulation.

    Standard normals of one ``numpy.random.default_rng(seed)`` in the order q, k, v, o, scaled by
    sqrt(2 / (d + d_h)).

    Parameters
    ----------
    n_heads : int
        H, a divisor of d.
    seed : int
        At least 0.
    d_model : int
        Model width d, even.

    Returns
    -------
    w_q, w_k, w_v : ndarray, shape (H, d, d/H)
        Projections to queries, keys and values.
    w_o : ndarray, shape (d, d)
        Output projection.

    Raises
    ------
    ValueError
        If an argument is no integer in its range, d is odd, or H does not divide d.
    """
    heads = integer(n_heads, "n_heads", 1)
    seed = integer(seed, "seed", 0)
    width = integer(d_model, "d_model", 2)
    if width % 2:
        raise ValueError(f"d_model must be even, got {width}")
    if width % heads:
        raise ValueError(f"n_heads must divide d_model = {width}, got {heads}")
    head_width = width // heads
    rng = np.random.default_rng(seed)
    scale = np.sqrt(1.0 / ((width + head_width) / 2.0))
    w_q, w_k, w_v = (rng.standard_normal((heads, width, head_width)) * scale for _ in range(3))
    return w_q, w_k, w_v, rng.standard_normal((heads * head_width, width)) * scale


def modulate(
    knm: Any,
    theta: Any,
    w_q: Any = None,
    w_k: Any = None,
    w_v: Any = None,
    w_o: Any = None,
    *,
    n_heads: int = 4,
    block_size: int | None = None,
    temperature: Any = 1.0,
    lambda_: float = 0.5,
    projection_seed: int = 0,
    out: np.ndarray | None = None,
    algorithm: str = "auto",
    backend: str | None = None,
    workers: int = 1,
) -> Any:
    """Modulate a coupling by the phases it couples.

    Parameters
    ----------
    knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N)
        Coupling, symmetric and with a zero diagonal within 1e-12. It is read afresh at each call and never
        written to.
    theta : array_like, shape (N,), radians
        Phases, any real values.
    w_q, w_k, w_v : array_like, shape (H, d, d/H), optional
        Projections to queries, keys and values. Those not given come from `default_projections`.
    w_o : array_like, shape (d, d), optional
        Output projection.
    n_heads : int
        H, a divisor of the even model width d, which is 8 unless a given projection tells another.
    block_size : int, optional
        Pairs farther apart than this keep their coupling.
    temperature : float or array_like, shape (H,)
        Softmax temperature, positive.
    lambda_ : float
        Modulation strength, at least 0; 0 copies `knm`.
    projection_seed : int
        Seed of the projections that are not given.
    out : ndarray, shape (N, N), float64, optional
        Where the result goes: writable, in C order, not overlapping `knm`. None for a sparse `knm`.
    algorithm : {"auto", "direct", "moments", "band", "sparse"}
        How it is computed: pair by pair, or through the order parameters of the phases, which needs no
        exponential of a pair; "band" needs a `block_size`, "sparse" a sparse `knm`, for which it is the only
        one. "auto" takes the fastest. The result is the same within rounding.
    backend : str, optional
        One of those `spo_fast.backends` lists; the fastest available by default.
    workers : int
        Threads that may share the work, the calling one among them: the same bits for any number, and one
        thread where more would not be faster. They belong to the compiled core ("cython"); the other backends
        stay on the calling thread.

    Returns
    -------
    ndarray or csr matrix, shape (N, N)
        Modulated coupling; for ``lambda_ > 0`` exactly symmetric with an exactly zero diagonal. `out` if it
        was given. For a sparse `knm` a ``csr_array`` or, if that was a sparse matrix, a ``csr_matrix``, with
        the stored entries of `knm`.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, naming it and what came.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    O(N^2 (d + H exp)) for a full coupling pair by pair, O(N^2 d + N B (d + H)) through B order parameters
    (H. Daido, Prog. Theor. Phys. 88 (1992) 1213), O(E (d + H exp)) for E stored entries. What depends on
    projections, temperature and heads alone is kept between calls, by content; nothing that depends on `knm`
    is.
    """
    if (
        w_q is None
        and w_k is None
        and w_v is None
        and w_o is None
        and type(n_heads) is int  # bool hashes like int, so a key alone cannot refuse it
        and type(temperature) in _NUMBERS
        and type(lambda_) in _NUMBERS
        and type(projection_seed) is int
        and (block_size is None or type(block_size) is int)
        and (backend is None or type(backend) is str)
        and algorithm is _AUTO
        and type(workers) is int
        and workers > 0
    ):
        key = (backend, n_heads, block_size, temperature, lambda_, projection_seed, workers)
        plan = _plans.get(key)
        if plan is None:
            plan = _new_default_plan(key)
        if type(knm) is _Array:
            return plan(knm, theta, out)
        knm = plain_matrix(knm)
    else:
        crew = integer(workers, "workers", 1)
        knm = plain_matrix(knm)
        algorithm_for(knm, algorithm, block_size)
        weights = (w_q, w_k, w_v, w_o)
        plan = _plan(weights, n_heads, block_size, temperature, lambda_, projection_seed, backend, crew)
    if is_sparse(knm):
        return _modulate_sparse(plan, as_sparse_coupling(knm, symmetric=True), theta, out)
    return plan(knm, theta, out, algorithm)


def _modulate_sparse(plan: Any, coupling: SparseCoupling, theta: Any, out: Any) -> Any:
    if out is not None:
        raise ValueError(f"out must be None for a sparse knm, got {describe(out)}")
    return coupling.with_data(plan.modulate_sparse(coupling, as_phases(theta, coupling.n)))


def _new_default_plan(key: tuple[Any, ...]) -> Any:
    backend, n_heads, block_size, temperature, lambda_, seed, workers = key
    parameters = _parameters((None,) * 4, n_heads, block_size, temperature, lambda_, seed)
    parameters = replace(parameters, workers=workers)
    return _remember(_plans, key, registry.load(backend).ModulationPlan(parameters))


def checked_parameters(
    weights: tuple[Any, ...],
    n_heads: Any,
    block_size: Any,
    temperature: Any,
    lambda_: Any,
    seed: Any,
    backend: str,
) -> ModulationParameters:
    """Check the keywords of `modulate`; where they are numbers, those of a plan that is kept.

    Raises
    ------
    ValueError
        For values that do not fit.
    """
    numbers = (n_heads, block_size, temperature, lambda_, seed)
    counts = (n_heads, seed) if block_size is None else (n_heads, seed, block_size)
    if (
        all(w is None for w in weights)
        and all(type(count) is int for count in counts)
        and type(temperature) in _NUMBERS
        and type(lambda_) in _NUMBERS
    ):
        key = (backend, *numbers, 1)
        return (_plans.get(key) or _new_default_plan(key)).parameters
    return _parameters(weights, *numbers)


def _parameters(
    weights: tuple[Any, ...], n_heads: Any, block_size: Any, temperature: Any, lambda_: Any, seed: Any
) -> ModulationParameters:
    """Check everything and fill in the projections that are not given."""
    heads = integer(n_heads, "n_heads", 1)
    seed = integer(seed, "projection_seed", 0)
    given = [
        None if w is None else real_array(w, n)
        for w, n in zip(weights, ("w_q", "w_k", "w_v", "w_o"), strict=True)
    ]
    if any(w is None for w in given):
        drawn = default_projections(heads, seed, _model_width(given, heads))
        given = [own if own is not None else w for own, w in zip(given, drawn, strict=True)]
    w_q, w_k, w_v, w_o = given
    return modulation_parameters(
        w_q, w_k, w_v, w_o, n_heads=heads, block_size=block_size, temperature=temperature, lambda_=lambda_
    )


def _model_width(weights: list[np.ndarray | None], heads: int) -> int:
    """Return the model width that the first well-shaped projection tells; others are refused later."""
    for w in weights:
        if w is None or w.ndim not in (2, 3) or w.shape[-2] < 2 or w.shape[-2] % 2:
            continue
        if w.shape in ((heads, w.shape[-2], w.shape[-2] // heads), (w.shape[-2],) * 2):
            return int(w.shape[-2])
    return MODEL_WIDTH


def _plan(
    weights: tuple[Any, ...],
    n_heads: Any,
    block_size: Any,
    temperature: Any,
    lambda_: Any,
    seed: Any,
    backend: str | None,
    workers: int,
) -> Any:
    """Return a plan for these parameters, one kept from an earlier call with the same contents if any."""
    module = registry.load(backend)
    p = replace(_parameters(weights, n_heads, block_size, temperature, lambda_, seed), workers=workers)
    numbers = (p.n_heads, p.d_model, p.block_size, p.lambda_, workers)
    key = (module.NAME, *numbers, *(a.tobytes() for a in (p.temperature, p.w_q, p.w_k, p.w_v, p.w_o)))
    plan = _plans_by_content.pop(key, None)  # taken out and put back: the order is that of last use
    return _remember(_plans_by_content, key, plan if plan is not None else module.ModulationPlan(p))


def _remember(plans: dict[tuple[Any, ...], Any], key: tuple[Any, ...], plan: Any) -> Any:
    """Keep a plan. No lock: dictionary operations are atomic, and a plan lost to a race is made again."""
    plans[key] = plan
    while len(plans) > _PLAN_LIMIT:
        try:
            plans.pop(next(iter(plans)), None)
        except (RuntimeError, StopIteration):  # another thread changed it meanwhile
            break
    return plan


def algorithm_for(knm: Any, algorithm: Any, block_size: Any) -> str:
    """Return the name of the algorithm that is used for a coupling.

    Raises
    ------
    ValueError
        If the one asked for does not exist or does not fit the coupling.
    """
    choice(algorithm, "algorithm", ALGORITHMS)
    if is_sparse(knm) or isinstance(knm, SparseCoupling):
        if algorithm not in ("auto", "sparse"):
            raise ValueError(f"algorithm must be 'auto' or 'sparse' for a sparse knm, got {algorithm!r}")
        return "sparse"
    if algorithm == "sparse":
        raise ValueError(f"algorithm 'sparse' needs a sparse knm, got {describe(knm)}")
    if algorithm == "band" and block_size is None:
        raise ValueError("algorithm 'band' needs a block_size, got block_size None")
    if algorithm == "moments":
        return "moments"
    return "direct" if block_size is None or algorithm == "direct" else "band"


def _frozen(array: Any) -> np.ndarray:
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


class _BoundSparse:
    """Modulation of one sparse coupling, of which it keeps a copy."""

    def __init__(self, plan: Any, knm: Any) -> None:
        coupling = as_sparse_coupling(knm, symmetric=True)
        if hasattr(plan, "refuse_sparse"):
            plan.refuse_sparse(coupling)
        indptr, indices, data, mean = (
            _frozen(array) for array in (coupling.indptr, coupling.indices, coupling.data, coupling.mean)
        )
        self._plan = plan
        self.coupling = replace(coupling, indptr=indptr, indices=indices, data=data, mean=mean)

    @property
    def knm(self) -> Any:
        return self.coupling.with_data(self.coupling.data.copy())

    def __call__(self, theta: Any, out: Any = None) -> Any:
        return _modulate_sparse(self._plan, self.coupling, theta, out)

    def factors(self, theta: Any) -> np.ndarray:
        return self._plan.factors_sparse(self.coupling, as_phases(theta, self.coupling.n))


class Modulator:
    """Modulation of one coupling, prepared once.

    Parameters
    ----------
    knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N)
        Coupling, symmetric and with a zero diagonal within 1e-12; copied.
    w_q, w_k, w_v, w_o, n_heads, block_size, temperature, lambda_, projection_seed, algorithm, backend,
    workers
        As for `modulate`.

    Attributes
    ----------
    knm : ndarray or csr matrix, shape (N, N)
        The coupling; an array is read-only, a csr matrix a copy.
    algorithm : str
        The algorithm in use.
    backend : str
        The backend in use.
    parameters : ModulationParameters
        The checked parameters.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind, shape or range, naming it and what came.
    RuntimeError
        If the backend asked for cannot be loaded.

    Notes
    -----
    Making one looks at the N^2 entries of K and, where attention goes through order parameters and the
    weights are new, takes some milliseconds for their series; a call then costs what `modulate` tells.

    Examples
    --------
    >>> modulator = Modulator([[0.0, 1.0], [1.0, 0.0]])
    >>> modulator([0.0, 0.5]).shape
    (2, 2)
    """

    def __init__(
        self,
        knm: Any,
        w_q: Any = None,
        w_k: Any = None,
        w_v: Any = None,
        w_o: Any = None,
        *,
        n_heads: int = 4,
        block_size: int | None = None,
        temperature: Any = 1.0,
        lambda_: float = 0.5,
        projection_seed: int = 0,
        algorithm: str = "auto",
        backend: str | None = None,
        workers: int = 1,
    ) -> None:
        crew = integer(workers, "workers", 1)
        self._requested = algorithm, block_size
        knm = plain_matrix(knm)
        algorithm_for(knm, algorithm, block_size)
        weights = (w_q, w_k, w_v, w_o)
        self._plan = _plan(weights, n_heads, block_size, temperature, lambda_, projection_seed, backend, crew)
        self.backend: str = registry.load(backend).NAME
        self.update(knm)

    def __call__(self, theta: Any, out: np.ndarray | None = None) -> Any:
        """Return the coupling modulated by `theta`.

        Parameters
        ----------
        theta : array_like, shape (N,), radians
            Phases.
        out : ndarray, shape (N, N), float64, optional
            Where the result goes; None for a sparse coupling.

        Returns
        -------
        ndarray or csr matrix, shape (N, N)
            Modulated coupling. O(N^2 (d + H exp)), or O(E (d + H exp)) for E stored entries.

        Raises
        ------
        ValueError
            If `theta` or `out` does not fit.
        """
        return self._bound(theta, out)

    def factors(self, theta: Any) -> np.ndarray:
        """Return the unit outputs o_i, whose products are the affinities.

        Parameters
        ----------
        theta : array_like, shape (N,), radians
            Phases.

        Returns
        -------
        ndarray, shape (N, d)
            Rows of length 1, or 0 for an oscillator without neighbours.

        Raises
        ------
        ValueError
            If `theta` does not fit.

        Notes
        -----
        The attention alone, see `modulate`: O(N B) through order parameters, O(N^2) pair by pair, O(E) along
        edges.
        """
        return self._bound.factors(theta)

    def update(self, knm: Any) -> None:
        """Take a copy of another coupling, of any size.

        Parameters
        ----------
        knm : array_like, SciPy sparse matrix or NetworkX graph, shape (N, N)
            Symmetric and with a zero diagonal within 1e-12.

        Raises
        ------
        ValueError
            If it is not; the old coupling then stays.
        """
        knm = plain_matrix(knm)
        algorithm = algorithm_for(knm, *self._requested)
        if algorithm == "sparse":
            self._bound: Any = _BoundSparse(self._plan, knm)
        else:
            self._bound = self._plan.bind(knm, self._requested[0])
        self.algorithm = getattr(self._bound, "algorithm", algorithm) if algorithm == "direct" else algorithm

    @property
    def knm(self) -> Any:
        """The coupling, shape (N, N): a read-only array, or a copy as a csr matrix."""
        return self._bound.knm

    @property
    def coupling(self) -> np.ndarray | SparseCoupling:
        """The coupling as a backend takes it, read-only."""
        return self._bound.coupling if isinstance(self._bound, _BoundSparse) else self._bound.knm

    @property
    def parameters(self) -> ModulationParameters:
        """The checked parameters."""
        return replace(self._plan.parameters, algorithm=self._requested[0])

    def __repr__(self) -> str:
        p = self.parameters
        return (
            f"<Modulator: N={self.knm.shape[0]}, n_heads={p.n_heads}, d_model={p.d_model}, "
            f"lambda_={p.lambda_:g}, algorithm={self.algorithm!r}, backend={self.backend!r}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        p = self.parameters
        contents = (p.w_q, p.w_k, p.w_v, p.w_o, p.temperature, p.n_heads, p.block_size, p.lambda_)
        knm = self.knm if self.algorithm == "sparse" else np.array(self.knm)
        return _rebuild, (knm, contents, self._requested[0], self.backend, p.workers)


def _rebuild(knm: Any, contents: tuple[Any, ...], algorithm: str, backend: str, workers: int) -> Modulator:
    w_q, w_k, w_v, w_o, temperature, n_heads, block_size, lambda_ = contents
    return Modulator(
        knm,
        w_q,
        w_k,
        w_v,
        w_o,
        n_heads=n_heads,
        block_size=None if block_size < 0 else block_size,
        temperature=temperature,
        lambda_=lambda_,
        algorithm=algorithm,
        backend=backend,
        workers=workers,
    )


MODULATION_KEYWORDS = (
    "w_q",
    "w_k",
    "w_v",
    "w_o",
    "n_heads",
    "block_size",
    "temperature",
    "lambda_",
    "projection_seed",
    "algorithm",
)


def parameters_from_keywords(keywords: dict[str, Any], knm: Any) -> ModulationParameters:
    """Check the keywords of a `Modulator` of `knm`, given as a dictionary.

    Raises
    ------
    ValueError
        For an unknown key, listing the allowed ones, and for values that do not fit.
    """
    for name in keywords:
        if name not in MODULATION_KEYWORDS:
            allowed = ", ".join(MODULATION_KEYWORDS)
            raise ValueError(f"modulation must have keys among {allowed}; got {describe(name)}")
    block_size = keywords.get("block_size")
    algorithm = keywords.get("algorithm", "auto")
    algorithm_for(knm, algorithm, block_size)
    parameters = _parameters(
        tuple(keywords.get(name) for name in ("w_q", "w_k", "w_v", "w_o")),
        keywords.get("n_heads", 4),
        block_size,
        keywords.get("temperature", 1.0),
        keywords.get("lambda_", 0.5),
        keywords.get("projection_seed", 0),
    )
    return replace(parameters, algorithm=algorithm)
