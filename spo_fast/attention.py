"""Softmax attention, and attention among oscillators that the attention itself moves.

`causal_attention` is exact softmax attention whose memory is linear in the number of tokens. On it stands
`phase_attention`, in which queries and keys are phases: two tokens match when their phases agree, and
Kuramoto-Sakaguchi dynamics with the attention as coupling pulls those that match together before the result
is read. `oscillator_attention` is the layer around it. `context_pulse_attention` is a family of layers whose
queries are states of a recurrence, and `step` runs them token by token. Each attention comes with its
vector-Jacobian product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spo_fast.backends import attention as backends
from spo_fast.context_pulse import PulseState as PulseState
from spo_fast.context_pulse import context_pulse_attention as context_pulse_attention
from spo_fast.context_pulse import context_pulse_attention_vjp as context_pulse_attention_vjp
from spo_fast.context_pulse import pulse_attention as pulse_attention
from spo_fast.context_pulse import pulse_attention_vjp as pulse_attention_vjp
from spo_fast.streaming import PulseStream as PulseStream
from spo_fast.streaming import step as step
from spo_fast.streaming import stream as stream
from spo_fast.validation import (
    PhaseInput,
    attention_input,
    choice,
    flag,
    integer,
    like,
    number,
    oscillator_parameters,
    phase_dynamics,
    phase_input,
    refuse_large_phases,
    refuse_overflow,
    token_input,
)

__all__ = [  # noqa: RUF022  (in the order of the documentation)
    "causal_attention",
    "causal_attention_vjp",
    "oscillator_attention",
    "oscillator_attention_vjp",
    "phase_attention",
    "phase_attention_vjp",
    "PhaseState",
    "position_ramp",
    "context_pulse_attention",
    "context_pulse_attention_vjp",
    "pulse_attention",
    "pulse_attention_vjp",
    "PulseState",
    "stream",
    "step",
    "PulseStream",
]

POSITIONS = ("full", "low", "none")
CHECKPOINTS = ("all", "sqrt")

_Gradients = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


def causal_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = True,
    key_mask: np.ndarray | None = None,
    sink: Any = None,
    sink_value: Any = None,
    return_lse: bool = False,
    backend: str | None = None,
    workers: int = 1,
) -> Any:
    """Softmax attention, exact and without an N x M array.

    out_i = sum_j p_ij v_j with p_ij = exp(scale q_i . k_j) / sum_j' exp(scale q_i . k_j'), the sums over the
    keys that query i sees and over the sink, if there is one.

    Parameters
    ----------
    q : array_like, shape (..., H, N, e)
        Queries of H heads; float32 or float64, like all other arrays.
    k : array_like, shape (..., H, M, e)
        Keys.
    v : array_like, shape (..., H, M, f)
        Values.
    scale : float, optional
        Factor of the scores; 1 / sqrt(e) by default.
    causal : bool
        Whether query i sees only keys j <= i + M - N: the last query sees all of them.
    key_mask : ndarray of bool, shape (..., M), optional
        True where a key may be attended to. What stands in the others and in their values never shows, NaN
        included.
    sink : array_like, shape (H,), optional
        Score of one more column, which every row sees [3]_; -inf is the same, bit for bit, as none.
    sink_value : array_like, shape (H, f), optional
        Value of that column, 0 by default.
    return_lse : bool
        Return the logarithms of the denominators as well.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    out : ndarray, shape (..., H, N, f)
        The result; a row without any key has the sink's value, or 0.
    lse : ndarray, shape (..., H, N)
        Only with `return_lse`: log sum_j exp(score_ij), the sink included; -inf in a row without any column.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, an entry is not finite (but for
        masked keys and values and a sink of -inf), or scores are so large that they overflow.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    Cost G H N M (e + f) multiply-adds and G H N M exponentials for G samples, half of it when causal; memory
    linear in N and M. The softmax keeps a running maximum and sum [1]_ over tiles [2]_.

    References
    ----------
    .. [1] M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, 2018.
    .. [2] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact
       attention with IO-awareness", NeurIPS 2022.
    .. [3] G. Xiao, Y. Tian, B. Chen, S. Han, M. Lewis, "Efficient streaming language models with attention
       sinks", arXiv:2309.17453, 2023.

    Examples
    --------
    >>> q = k = np.zeros((1, 2, 3))
    >>> causal_attention(q, k, np.array([[[1.0], [3.0]]]))
    array([[[1.],
            [2.]]])
    """
    given = attention_input(
        q, k, v, scale=scale, causal=causal, key_mask=key_mask, sink=sink, sink_value=sink_value
    )
    with_lse = flag(return_lse, "return_lse")
    module = _module(backend, given.q)
    threads = integer(workers, "workers", 1)
    out, lse = module.attend(given.q, given.k, given.v, **given.options(), workers=threads)
    out = out.reshape(*given.leading, *out.shape[1:])
    return (out, lse.reshape(out.shape[:-1])) if with_lse else out


def causal_attention_vjp(
    q: Any,
    k: Any,
    v: Any,
    grad_out: Any,
    *,
    scale: float | None = None,
    causal: bool = True,
    key_mask: np.ndarray | None = None,
    sink: Any = None,
    sink_value: Any = None,
    out: Any = None,
    lse: Any = None,
    backend: str | None = None,
    workers: int = 1,
) -> _Gradients:
    """Gradients of sum(out * grad_out) for out = causal_attention(q, k, v, ...).

    Parameters
    ----------
    q, k, v, scale, causal, key_mask, sink, sink_value, backend, workers
        As for `causal_attention`.
    grad_out : array_like, shape (..., H, N, f)
        Gradient at the result.
    out, lse : array_like, shapes (..., H, N, f) and (..., H, N), optional
        What ``causal_attention(..., return_lse=True)`` gave for the same arguments. Without them it is
        computed again.

    Returns
    -------
    dq, dk, dv : ndarray
        Of the shapes of q, k and v. Exactly 0 for masked keys and their values, and for queries without any
        key.
    dsink : ndarray, shape (H,), or None
        None without a sink.
    dsink_value : ndarray, shape (H, f), or None
        None where no `sink_value` was given.

    Raises
    ------
    ValueError
        As `causal_attention`, and if one of `out` and `lse` is given without the other.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    The weights are computed again, tile by tile, from the logarithms of the denominators [1]_. Cost
    G H N M (3 e + 2 f) multiply-adds and G H N M exponentials, half of it when causal; memory linear in N
    and M.

    References
    ----------
    .. [1] T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact
       attention with IO-awareness", NeurIPS 2022.
    """
    given = attention_input(
        q, k, v, scale=scale, causal=causal, key_mask=key_mask, sink=sink, sink_value=sink_value
    )
    if (out is None) != (lse is None):
        raise ValueError("out and lse must be given together, got one of them")
    joined = (*given.q.shape[:3], given.v.shape[3])
    shape = (*given.leading, *joined[1:])
    dtype = given.q.dtype
    grad = like(grad_out, "grad_out", shape, dtype).reshape(joined)
    module = _module(backend, given.q)
    threads = integer(workers, "workers", 1)
    if out is None:
        result, sums = module.attend(given.q, given.k, given.v, **given.options(), workers=threads)
    else:
        result = like(out, "out", shape, dtype, finite=False).reshape(joined)
        sums = like(lse, "lse", shape[:-1], dtype, finite=False).reshape(joined[:-1])
    dq, dk, dv, dsink, dvalue = module.attend_vjp(
        given.q, given.k, given.v, result, sums, grad, **given.options(), workers=threads
    )
    back = [array.reshape(*given.leading, *array.shape[1:]) for array in (dq, dk, dv)]
    return back[0], back[1], back[2], dsink, None if given.sink_value is None else dvalue


@dataclass(frozen=True, slots=True, eq=False)
class PhaseState:
    """What `phase_attention_vjp` needs of a forward pass; may be pickled.

    Attributes
    ----------
    backend : str
        Which backend made it and will use it.
    shape : tuple of int
        Shape of the result.
    dtype : dtype
        Its precision.
    data : object
        The backend's own. It holds the arguments by reference: they must not change before the reverse pass.
    """

    backend: str
    shape: tuple[int, ...]
    dtype: np.dtype
    data: Any


def phase_attention(
    c: Any,
    s: Any,
    v: Any,
    weight: Any,
    alpha: Any,
    kappa: Any,
    ramp: Any,
    *,
    steps: int,
    dt: float,
    queries: tuple[Any, Any] | None = None,
    static_query: bool = False,
    value_consensus: float = 0.0,
    keep: str = "none",
    backend: str | None = None,
    workers: int = 1,
) -> tuple[np.ndarray, PhaseState | None]:
    """Causal attention among phases that the attention moves: `oscillator_attention` between its projections.

    The phases start at theta_i = atan2(s_i, c_i) + ramp i, i = 0 ... N - 1. In each step, with

        A_ij = softmax over j <= i of sum_k weight_k cos(theta_ik - theta_jk - alpha_k),

    theta_ik += dt kappa sum_j A_ij sin(theta_jk + alpha_k - theta_ik), a Kuramoto-Sakaguchi model [1]_ whose
    coupling is the attention. The result is sum_j A_ij v_j with the A of the last phases.

    Parameters
    ----------
    c, s : array_like, shape (B, N, H, m)
        Cosine and sine parts of m phases for each token and head, of any common length; float32 or float64,
        like all other arrays.
    v : array_like, shape (B, N, H, f)
        Values.
    weight : array_like, shape (H, m)
        Weights of the cosines in the score.
    alpha : array_like, shape (H, m), radians
        Phase lags.
    kappa : array_like, shape (H,)
        Coupling strength of each head.
    ramp : array_like, shape (m,), radians
        What one place in the sequence adds to the phases, in float64 whatever the precision of the rest.
    steps : int
        Number of steps, at least 0.
    dt : float
        Step size.
    queries : pair of array_like, shape (B, N, H, m), optional
        Cosine and sine parts of phases of their own for the queries. They do not move.
    static_query : bool
        Keep the queries at their first phases.
    value_consensus : float
        kappa_v: in every step v_i += dt kappa_v (sum_j A_ij v_j - v_i) before the phases move.
    keep : {"none", "all", "sqrt"}
        What to keep for the reverse pass: nothing, the phases of every step, or those of every
        ceil(sqrt(steps))-th step, from which the others are computed again.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    out : ndarray, shape (B, N, H, f)
        The result.
    state : PhaseState or None
        For `phase_attention_vjp`; None with ``keep="none"``.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, precisions are mixed, or an entry is not finite.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    As cos(a - b) = cos a cos b + sin a sin b, each step is softmax attention with queries, keys and values of
    width 2 m, and a rotation of its result: B H N^2 / 2 (4 m) multiply-adds and B H N^2 / 2 exponentials a
    step. Memory is linear in N.

    References
    ----------
    .. [1] H. Sakaguchi, Y. Kuramoto, "A soluble active rotator model showing phase transitions via mutual
       entrainment", Progress of Theoretical Physics 76, 576-581, 1986.
    """
    dynamics = {
        "steps": steps,
        "dt": dt,
        "static_query": static_query,
        "value_consensus": value_consensus,
    }
    given = phase_input(c, s, v, weight, alpha, kappa, ramp, queries=queries, dynamics=dynamics)
    choice(keep, "keep", ("none", *CHECKPOINTS))
    return _phase_attend(given, keep, backend, workers)


def phase_attention_vjp(state: PhaseState, grad_out: Any, *, workers: int = 1) -> dict[str, np.ndarray]:
    """Gradients of sum(out * grad_out) for (out, state) = phase_attention(...).

    Parameters
    ----------
    state : PhaseState
        From `phase_attention` with ``keep="all"`` or ``keep="sqrt"``; it may be used more than once.
    grad_out : array_like, shape (B, N, H, f)
        Gradient at the result.
    workers : int
        Threads that the backend may use; the result does not depend on it.

    Returns
    -------
    dict of str to ndarray
        ``dc``, ``ds``, ``dv``, ``dweight``, ``dalpha``, ``dkappa``, and ``dcq``, ``dsq`` where there were
        `queries`, each of the shape and precision of its argument. Where both parts of a phase are 0 it has
        no angle, and their gradients are 0.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite.
    RuntimeError
        If the backend that made the state cannot be loaded.

    Notes
    -----
    Cost some three forward passes, four with ``keep="sqrt"``.
    """
    if not isinstance(state, PhaseState):
        raise ValueError(
            f"state must come from phase_attention, got an object of type {type(state).__name__}"
        )
    grad = like(grad_out, "grad_out", state.shape, state.dtype)
    threads = integer(workers, "workers", 1)
    result: dict[str, np.ndarray] = backends.load(state.backend).phase_attend_vjp(
        state.data, grad, workers=threads
    )
    return result


def oscillator_attention(
    x: Any,
    params: Mapping[str, Any],
    *,
    n_heads: int,
    steps: int = 4,
    dt: float = 1.0,
    static_query: bool = False,
    separate_qk: bool = False,
    value_consensus: float = 0.0,
    pos: str = "full",
    lag: bool = True,
    freq_base: float = 10000.0,
    score_scale: float = 1.0,
    backend: str | None = None,
    workers: int = 1,
) -> np.ndarray:
    """Attention layer whose tokens are oscillators: projections, `phase_attention`, output projection.

    Per head, theta_i = atan2(W_s x_i, W_c x_i) + f i with f_k = freq_base^(-k/m), m = d/H phases a token; the
    weights of the cosines are beta score_scale w, the values W_v x_i + b_v, and the output W_o o_i + b_o with
    the heads' results side by side in o_i. All matrices are (out, in); rows h m ... h m + m - 1 belong to
    head h.

    Parameters
    ----------
    x : array_like, shape (B, N, d)
        Input, float32 or float64, like all parameters.
    params : mapping of str to array_like
        ``W_c``, ``W_s``, ``W_v``, ``W_o``: (d, d); ``w``, ``alpha`` (radians): (H, m); ``beta``, ``kappa``:
        (H,); optionally ``b_v``, ``b_o``: (d,). With `separate_qk`, ``W_qp`` and ``W_kp``, (d, d), stand in
        place of ``W_c`` and ``W_s``; without `lag` there is no ``alpha``.
    n_heads : int
        H, a divisor of d.
    steps : int
        Number of steps of the dynamics; 0 is plain attention on circles.
    dt : float
        Step size.
    static_query : bool
        Keep the queries at their first phases.
    separate_qk : bool
        Phases of their own for the queries, which do not move: ``W_qp`` and ``W_kp`` give all cosine parts in
        their first d/2 rows and all sine parts in the rest, m = d/(2 H).
    value_consensus : float
        kappa_v: in every step v_i += dt kappa_v (sum_j A_ij v_j - v_i) before the phases move.
    pos : {"full", "low", "none"}
        Whether all f_k are used, only those of k >= m // 2, or none.
    lag : bool
        Whether there are phase lags.
    freq_base : float
        Base of the f_k, positive.
    score_scale : float
        Fixed factor of the scores.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    ndarray, shape (B, N, d)
        The layer's output.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, an entry of `params` is missing or unknown, precisions
        are mixed, or an entry is not finite.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    Cost 4 B N d^2 multiply-adds for the projections and those of `phase_attention`; memory linear in N.
    """
    layer = _Layer.checked(
        x,
        params,
        n_heads,
        separate_qk=separate_qk,
        pos=pos,
        lag=lag,
        freq_base=freq_base,
        score_scale=score_scale,
        steps=steps,
        dt=dt,
        static_query=static_query,
        value_consensus=value_consensus,
    )
    mixed, _ = _phase_attend(layer.phases(), "none", backend, workers, "x and params")
    return layer.output(mixed)


def oscillator_attention_vjp(
    x: Any,
    params: Mapping[str, Any],
    grad_out: Any,
    *,
    n_heads: int,
    steps: int = 4,
    dt: float = 1.0,
    static_query: bool = False,
    separate_qk: bool = False,
    value_consensus: float = 0.0,
    pos: str = "full",
    lag: bool = True,
    freq_base: float = 10000.0,
    score_scale: float = 1.0,
    checkpoints: str = "all",
    backend: str | None = None,
    workers: int = 1,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Gradients of sum(out * grad_out) for out = oscillator_attention(x, params, ...).

    Parameters
    ----------
    x, params, n_heads, steps, dt, static_query, separate_qk, value_consensus, pos, lag, freq_base
        As for `oscillator_attention`.
    grad_out : array_like, shape (B, N, d)
        Gradient at the output.
    score_scale, backend, workers
        As for `oscillator_attention`.
    checkpoints : {"all", "sqrt"}
        Keep the phases of every step, or those of every ceil(sqrt(steps))-th, from which the others are
        computed again.

    Returns
    -------
    dx : ndarray, shape (B, N, d)
        Gradient at the input.
    gradients : dict of str to ndarray
        For each entry of `params` the gradient, of the same shape.

    Raises
    ------
    ValueError
        As `oscillator_attention`, and if `grad_out` is not of the output's shape and precision.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    The forward pass is part of the work. Memory is linear in N; what is kept is B N d numbers for each state.
    """
    layer = _Layer.checked(
        x,
        params,
        n_heads,
        separate_qk=separate_qk,
        pos=pos,
        lag=lag,
        freq_base=freq_base,
        score_scale=score_scale,
        steps=steps,
        dt=dt,
        static_query=static_query,
        value_consensus=value_consensus,
    )
    grad = like(grad_out, "grad_out", layer.shape, layer.x.dtype)
    choice(checkpoints, "checkpoints", CHECKPOINTS)
    mixed, state = _phase_attend(layer.phases(), checkpoints, backend, workers, "x and params")
    grad = grad.reshape(layer.x.shape)
    inner = (grad @ layer.params["W_o"]).reshape(mixed.shape)
    return layer.gradients(grad, mixed, phase_attention_vjp(state, inner, workers=workers))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A checked oscillator attention layer and its input; tokens of all samples are rows of one matrix.

    Attributes
    ----------
    x : ndarray, shape (B N, d)
        Input.
    shape : tuple of int
        (B, N, d).
    heads, m : int
        Number of heads and of phases a head.
    params : dict of str to ndarray
        Checked parameters.
    ramp : ndarray, shape (m,), radians
        What one place in the sequence adds to the phases.
    separate_qk, score_scale, dynamics
        Options.
    """

    x: np.ndarray
    shape: tuple[int, int, int]
    heads: int
    m: int
    params: dict[str, np.ndarray]
    ramp: np.ndarray
    separate_qk: bool
    score_scale: float
    dynamics: dict[str, Any]

    @classmethod
    def checked(
        cls,
        x: Any,
        params: Any,
        n_heads: Any,
        *,
        separate_qk: Any,
        pos: Any,
        lag: Any,
        freq_base: Any,
        score_scale: Any,
        **dynamics: Any,
    ) -> _Layer:
        """Check everything; see `oscillator_attention`."""
        tokens = token_input(x)
        batch, n, width = tokens.shape
        heads = integer(n_heads, "n_heads", 1)
        separate = flag(separate_qk, "separate_qk")
        checked = oscillator_parameters(
            params, width, heads, tokens.dtype, separate_qk=separate, lag=flag(lag, "lag")
        )
        m = checked["w"].shape[1]
        return cls(
            tokens.reshape(batch * n, width),
            (batch, n, width),
            heads,
            m,
            checked,
            position_ramp(m, pos, freq_base),
            separate,
            number(score_scale, "score_scale"),
            phase_dynamics(**dynamics),
        )

    def _parts(self) -> Iterator[tuple[str, str, slice]]:
        """Which rows of which matrix give each part of the phases."""
        if not self.separate_qk:
            yield from (("c", "W_c", slice(None)), ("s", "W_s", slice(None)))
            return
        cosines, sines = slice(None, self.heads * self.m), slice(self.heads * self.m, None)
        for suffix, name in (("", "W_kp"), ("q", "W_qp")):
            yield from (("c" + suffix, name, cosines), ("s" + suffix, name, sines))

    def phases(self) -> PhaseInput:
        """Return the projections as `phase_attention` takes them."""
        batch, n, _ = self.shape
        p = self.params
        parts = {
            part: (self.x @ p[name][rows].T).reshape(batch, n, self.heads, self.m)
            for part, name, rows in self._parts()
        }
        values = self.x @ p["W_v"].T
        if "b_v" in p:
            values += p["b_v"]
        return PhaseInput(
            parts["c"],
            parts["s"],
            values.reshape(batch, n, self.heads, self.shape[2] // self.heads),
            p["w"] * (p["beta"] * self.score_scale)[:, None],
            p["alpha"] if "alpha" in p else np.zeros_like(p["w"]),
            p["kappa"],
            self.ramp,
            (parts["cq"], parts["sq"]) if self.separate_qk else None,
            self.dynamics,
        )

    def output(self, mixed: np.ndarray) -> np.ndarray:
        """Project the heads' results, shape (B, N, H, d/H)."""
        out = mixed.reshape(self.x.shape) @ self.params["W_o"].T
        if "b_o" in self.params:
            out += self.params["b_o"]
        return out.reshape(self.shape)

    def gradients(
        self, grad: np.ndarray, mixed: np.ndarray, inner: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Gradients at the input and the parameters from those of the phases' attention.

        Parameters
        ----------
        grad : ndarray, shape (B N, d)
            Gradient at the output.
        mixed : ndarray, shape (B, N, H, d/H)
            Result of the phases' attention.
        inner : dict of str to ndarray
            What `phase_attention_vjp` gives.
        """
        p = self.params
        result = {name: np.empty_like(value) for name, value in p.items()}
        result["W_o"] = grad.T @ mixed.reshape(grad.shape)
        dv = inner["dv"].reshape(grad.shape)
        result["W_v"] = dv.T @ self.x
        for name, gradient in (("b_v", dv), ("b_o", grad)):
            if name in p:
                result[name] = gradient.sum(axis=0, dtype=np.float64).astype(grad.dtype)
        dx = dv @ p["W_v"]
        for part, name, rows in self._parts():
            gradient = inner["d" + part].reshape(-1, self.heads * self.m)
            result[name][rows] = gradient.T @ self.x
            dx += gradient @ p[name][rows]
        result["w"] = inner["dweight"] * (p["beta"] * self.score_scale)[:, None]
        result["beta"] = (inner["dweight"] * p["w"]).sum(axis=1) * self.score_scale
        result["kappa"] = inner["dkappa"]
        if "alpha" in p:
            result["alpha"] = inner["dalpha"]
        return dx.reshape(self.shape), result


def position_ramp(m: int, pos: str = "full", freq_base: float = 10000.0) -> np.ndarray:
    """What one place in the sequence adds to each of a token's phases.

    Parameters
    ----------
    m : int
        Number of phases.
    pos : {"full", "low", "none"}
        f_k = freq_base^(-k/m) for all k, for k >= m // 2 alone, or for none; the others are 0.
    freq_base : float
        Positive.

    Returns
    -------
    ndarray, shape (m,), float64, radians
        The f_k.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or out of range.
    """
    phases = integer(m, "m", 0)
    choice(pos, "pos", POSITIONS)
    freq_base = number(freq_base, "freq_base", positive=True)
    if pos == "none":
        return np.zeros(phases)
    ramp = freq_base ** (-np.arange(phases) / phases)
    if pos == "low":
        ramp[: phases // 2] = 0.0
    return ramp


def _phase_attend(
    given: PhaseInput, keep: str, backend: str | None, workers: int, names: str = "c, s and v"
) -> tuple[np.ndarray, Any]:
    refuse_large_phases(given)
    module = _module(backend, given.c)
    threads = integer(workers, "workers", 1)
    arrays = (given.c, given.s, given.v, given.weight, given.alpha, given.kappa, given.ramp)
    out, data = module.phase_attend(
        *arrays, queries=given.queries, **given.dynamics, keep=keep, workers=threads
    )
    refuse_overflow(names, out)
    state = None if keep == "none" else PhaseState(module.NAME, out.shape, out.dtype, data)
    return out, state


def _module(backend: str | None, tokens: np.ndarray) -> Any:
    """Return a backend's module; where there are no tokens NumPy returns what is empty."""
    module = backends.load(backend)
    return module if tokens.size else backends.load("numpy")
