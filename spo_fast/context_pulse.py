"""Context-pulse attention: queries that gather the past before they look back at it.

Four variants of causal self-attention in which the queries are no longer those of single tokens but states of
a recurrence, beside the standard form. `pulse_attention` works between the projections,
`context_pulse_attention` is the layer; each has its vector-Jacobian product. The parts are in
`spo_fast.pulse`, the recurrence token by token in `spo_fast.streaming`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spo_fast.backends import pulse as backends
from spo_fast.backends.pulse import statistics
from spo_fast.backends.pulse.reference import sigmoid
from spo_fast.pulse import angles, bases, fraction, rotary_tables, twist_of
from spo_fast.validation import (
    choice,
    describe,
    explain_nonfinite,
    flag,
    float_array,
    head_width,
    integer,
    like,
    like_sink,
    named_arrays,
    refuse_large_scores,
    refuse_overflow,
    token_input,
)

VARIANTS = ("standard", "leaky", "parseval", "chunked", "alpert")
WEDGES = ("published", "relative")

_WITH_GATE = ("parseval", "chunked")
_WITH_WEDGE = ("parseval", "chunked", "alpert")
_WITH_HEADS = ("chunked", "alpert")


@dataclass(frozen=True, slots=True)
class PulseOptions:
    """Checked options of a context-pulse attention, see `context_pulse_attention`."""

    variant: str
    chunk_size: int
    poly_order: int
    decay: float
    mask: bool
    strict_causal: bool
    wedge: str
    rotary: bool
    normalise: bool

    @classmethod
    def checked(
        cls,
        variant: Any = "standard",
        chunk_size: Any = 16,
        poly_order: Any = 1,
        decay: Any = 0.9,
        mask: Any = True,
        strict_causal: Any = False,
        wedge: Any = "published",
        rotary: Any = True,
        normalise: Any = True,
    ) -> PulseOptions:
        """Check everything.

        Raises
        ------
        ValueError
            If an option is of the wrong kind or out of range, or two do not go together.
        """
        result = cls(
            choice(variant, "variant", VARIANTS),
            integer(chunk_size, "chunk_size", 1),
            integer(poly_order, "poly_order", 0),
            fraction(decay, "decay"),
            flag(mask, "mask"),
            flag(strict_causal, "strict_causal"),
            choice(wedge, "wedge", WEDGES),
            flag(rotary, "rotary"),
            flag(normalise, "normalise"),
        )
        if result.strict_causal and not result.mask:
            raise ValueError("strict_causal must be False without a mask, got True and mask=False")
        if variant not in _WITH_WEDGE:
            for name, plain in (("wedge", "published"), ("rotary", True), ("normalise", True)):
                if getattr(result, name) != plain:
                    raise ValueError(
                        f"{name} must be {plain!r} for variant {variant!r}, which has none, "
                        f"got {getattr(result, name)!r}"
                    )
        return result

    @property
    def looks_back_only(self) -> bool:
        """Whether no output depends on a later token, nor on how many there are."""
        published = self.variant != "alpert" and self.over != "sample"
        return self.mask and (published or self.strict_causal)

    @property
    def twist_first(self) -> bool:
        """Whether the twist comes before the rotation."""
        return self.variant == "alpert" or self.wedge == "relative"

    @property
    def over(self) -> str:
        """What the normalisation goes over."""
        if not self.normalise:
            return statistics.NOTHING
        if self.variant != "parseval":
            return "point"
        return "running" if self.strict_causal else "sample"


# ---------------------------------------------------------------- between the projections


@dataclass(frozen=True, slots=True, eq=False)
class PulseState:
    """What `pulse_attention_vjp` needs of a forward pass; may be pickled.

    Attributes
    ----------
    backend : str
        Which backend made it and will use it.
    options : PulseOptions
        How it was computed.
    given : dict of str to ndarray
        The arguments, by reference: they must not change before the reverse pass.
    gated : ndarray, shape (B, N, H, d), or None
        Queries behind their gate, where there is one.
    states : ndarray, shape (B, N, H, d)
        What stands in the queries' place: the states of the recurrence.
    shared : Statistics or None
        Of the normalisation.
    sides : tuple of ndarray, shape (B, H, N, d)
        Queries, keys and values as softmax attention takes them.
    out, lse : ndarray, shapes (B, H, N, f) and (B, H, N)
        What it gave.
    """

    backend: str
    options: PulseOptions
    given: dict[str, np.ndarray]
    gated: np.ndarray | None
    states: np.ndarray
    shared: statistics.Statistics | None
    sides: tuple[np.ndarray, np.ndarray, np.ndarray]
    out: np.ndarray
    lse: np.ndarray


def pulse_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    variant: str = "standard",
    gate: Any = None,
    decay_logit: Any = None,
    A: Any = None,
    sink: Any = None,
    v_null: Any = None,
    chunk_size: int = 16,
    poly_order: int = 1,
    decay: float = 0.9,
    mask: bool = True,
    strict_causal: bool = False,
    wedge: str = "published",
    rotary: bool = True,
    normalise: bool = True,
    backend: str | None = None,
    workers: int = 1,
) -> tuple[np.ndarray, PulseState]:
    """`context_pulse_attention` between its projections, and what its reverse pass needs.

    Parameters
    ----------
    q, k, v : array_like, shape (B, N, H, d)
        Queries, keys and values; float32 or float64, like all other arrays. The variants "standard", "leaky"
        and "parseval" have one head; d is even for those that rotate.
    variant : {"standard", "leaky", "parseval", "chunked", "alpert"}
        Which one.
    gate : array_like, shape (B, N, H, d)
        Of "parseval" and "chunked": the queries are multiplied by its sigmoid.
    decay_logit : array_like, shape (1,)
        Of "parseval": the decay is its sigmoid.
    A : array_like, shape (H, d, d)
        Of "parseval", "chunked" and "alpert": the twist is I + A - A^T.
    sink : array_like, shape (H,)
        Of the same: score of one more column; -inf where there is none.
    v_null : array_like, shape (H, d)
        Of the same: its value.
    chunk_size, poly_order, decay, mask, strict_causal, wedge, rotary, normalise, backend, workers
        As for `context_pulse_attention`.

    Returns
    -------
    out : ndarray, shape (B, N, H, d)
        The result.
    state : PulseState
        For `pulse_attention_vjp`. It holds some six arrays of the size of q.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, missing or not one of the variant's, precisions are
        mixed, an entry is not finite, or states overflow.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    Cost and memory are those of `context_pulse_attention`.
    """
    options = PulseOptions.checked(
        variant, chunk_size, poly_order, decay, mask, strict_causal, wedge, rotary, normalise
    )
    queries = float_array(q, "q")
    if queries.ndim != 4 or queries.shape[3] < 1:
        raise ValueError(f"q must have shape (B, N, H, d) with d >= 1, got {queries.shape}")
    shape, dtype = queries.shape, queries.dtype
    check_heads(options, shape[2], shape[3])
    explain_nonfinite(q=queries)
    given = {"q": queries, "k": like(k, "k", shape, dtype), "v": like(v, "v", shape, dtype)}
    extras = {"gate": gate, "decay_logit": decay_logit, "A": A, "sink": sink, "v_null": v_null}
    expected = extra_shapes(options.variant, shape)
    for name, value in extras.items():
        if name not in expected:
            if value is not None:
                raise ValueError(f"{name} must be None for variant {variant!r}, got {describe(value)}")
            continue
        if value is None:
            raise ValueError(f"{name} must be given for variant {variant!r}, got None")
        check = like_sink if name == "sink" else like
        given[name] = check(value, name, expected[name], dtype)
    return attend(given, options, backend, workers)


def pulse_attention_vjp(state: PulseState, grad_out: Any, *, workers: int = 1) -> dict[str, np.ndarray]:
    """Gradients of sum(out * grad_out) for (out, state) = pulse_attention(...).

    Parameters
    ----------
    state : PulseState
        From `pulse_attention`; it may be used more than once.
    grad_out : array_like, shape (B, N, H, d)
        Gradient at the result.
    workers : int
        Threads that the backend may use; the result does not depend on it.

    Returns
    -------
    dict of str to ndarray
        For each array that `pulse_attention` was given the gradient, of the same name, shape and precision.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite.
    RuntimeError
        If the backend that made the state cannot be loaded.

    Notes
    -----
    Where a standard deviation is 0 it has no derivative, and passes no gradient on.
    """
    if not isinstance(state, PulseState):
        raise ValueError(
            f"state must come from pulse_attention, got an object of type {type(state).__name__}"
        )
    q = state.given["q"]
    grad = like(grad_out, "grad_out", q.shape, q.dtype)
    return attend_backwards(state, grad, integer(workers, "workers", 1))


def check_heads(options: PulseOptions, heads: int, width: int) -> None:
    """Refuse numbers of heads and widths that a variant does not have.

    Raises
    ------
    ValueError
        For more than one head where there is one, and for an odd width where pairs are rotated.
    """
    variant = options.variant
    if heads != 1 and variant not in _WITH_HEADS:
        raise ValueError(f"n_heads must be 1 for variant {variant!r}, got {heads}")
    if width % 2 and variant in _WITH_WEDGE:
        raise ValueError(f"the width of a head must be even for variant {variant!r}, got {width}")


def extra_shapes(variant: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Arrays that a variant takes beside queries, keys and values."""
    heads, width = shape[2:]
    shapes: dict[str, tuple[int, ...]] = {}
    if variant in _WITH_GATE:
        shapes["gate"] = shape
    if variant == "parseval":
        shapes["decay_logit"] = (1,)
    if variant in _WITH_WEDGE:
        shapes |= {"A": (heads, width, width), "sink": (heads,), "v_null": (heads, width)}
    return shapes


def attend(
    given: dict[str, np.ndarray], options: PulseOptions, backend: str | None, workers: Any
) -> tuple[np.ndarray, PulseState]:
    """`pulse_attention` of checked arrays."""
    threads = integer(workers, "workers", 1)
    q, k, v = (given[name] for name in "qkv")
    parts, softmax = backends.load(backend if q.size else "numpy")
    gated, states = _states(given, options, parts, threads)
    shared = None
    if options.variant in _WITH_WEDGE and q.size:
        moments_q, moments_k = (parts.token_moments(array, workers=threads) for array in (states, k))
        explain_overflow(moments_q, options)
        shared = statistics.gather(moments_q, moments_k, q.shape[3], options.over)
        tables = tables_of(options, 0, q.shape[1], q.shape[3], q.dtype)
        scales = _spread(q.shape[:3], shared.shift, shared.factor)
        turned = [
            parts.turn(array, *scales, twist, *tables, twist_first=options.twist_first, workers=threads)
            for array, twist in zip((states, k), twists_of(given["A"], options), strict=True)
        ]
    else:  # without a normalisation scores are as large as what comes in
        turned = [_heads_first(states), _heads_first(k)]
        refuse_large_scores(turned[0], turned[1], None, 1.0 / math.sqrt(q.shape[3]))
    sides = turned[0], turned[1], _heads_first(v)
    out, lse = softmax.attend(*sides, **softmax_options(given, options, threads))
    refuse_overflow("q, k and v", out)
    state = PulseState(softmax.NAME, options, given, gated, states, shared, sides, out, lse)
    return np.array(out.transpose(0, 2, 1, 3), order="C"), state  # a copy: the state keeps its own


def attend_backwards(state: PulseState, grad: np.ndarray, workers: int) -> dict[str, np.ndarray]:
    """`pulse_attention_vjp` of a checked gradient."""
    given, options = state.given, state.options
    parts, softmax = backends.load(state.backend)
    if not given["q"].size:
        return {name: np.zeros_like(array) for name, array in given.items()}
    dq, dk, dv, dsink, dvalue = softmax.attend_vjp(
        *state.sides, state.out, state.lse, _heads_first(grad), **softmax_options(given, options, workers)
    )
    result = {"v": _tokens_first(dv)}
    sides = [dq, dk]  # emptied by what follows, so that memory is used again
    del dq, dk, dv
    if state.shared is None:
        sides = [_tokens_first(side) for side in sides]
    else:
        result |= {"sink": dsink, "v_null": dvalue, "A": _turn_backwards(state, parts, sides, workers)}
    return result | _states_backwards(state, parts, sides, workers)


def softmax_options(given: dict[str, np.ndarray], options: PulseOptions, workers: int) -> dict[str, Any]:
    """Options of the softmax attention."""
    return {
        "scale": 1.0 / math.sqrt(given["q"].shape[3]),
        "causal": options.mask,
        "key_mask": None,
        "sink": given.get("sink"),
        "sink_value": given.get("v_null"),
        "workers": workers,
    }


def _heads_first(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3))


_tokens_first = _heads_first  # the same exchange of axes


def twists_of(a: np.ndarray, options: PulseOptions) -> tuple[np.ndarray, np.ndarray | None]:
    """Twists of queries and keys."""
    twist = twist_of(a)
    return twist, None if options.wedge == "relative" else twist


def tables_of(
    options: PulseOptions, first: int, n: int, width: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of the rotation for n tokens, shape (n, d / 2); those of 0 where there is none."""
    if not options.rotary:
        return np.ones((n, width // 2), dtype), np.zeros((n, width // 2), dtype)
    return rotary_tables(n, width, dtype) if first == 0 else angles(first, n, width, dtype)


def explain_overflow(moments: tuple[np.ndarray, np.ndarray], options: PulseOptions) -> None:
    """Raise ValueError where states, whose `token_moments` these are, overflow."""
    if not np.isfinite(moments[1]).all():
        raise ValueError(
            f"q must not be so large, nor so long, that the states of variant {options.variant!r} overflow: "
            "those of chunks may double from one to the next"
        )


def _resonance(given: dict[str, np.ndarray], options: PulseOptions, workers: int) -> dict[str, Any]:
    """Options of the resonance with past chunks."""
    q = given["q"]
    order = options.poly_order if options.variant == "alpert" else None
    basis, last = bases(q.shape[1], options.chunk_size, order, options.strict_causal, q.dtype)
    return {
        "chunk": options.chunk_size,
        "scale": 1.0 / math.sqrt(q.shape[3]),
        "basis": basis,
        "last_basis": last,
        "per_token": order is None or options.strict_causal,
        "workers": workers,
    }


def decay_of(given: Mapping[str, np.ndarray], options: PulseOptions) -> float:
    """Decay of the leaky scan: fixed, or learned."""
    if options.variant == "leaky":
        return options.decay
    return float(sigmoid(given["decay_logit"].astype(np.float64))[0])


def _flat(array: np.ndarray) -> np.ndarray:
    """(B, N, H, d) as (B, N, H d)."""
    return array.reshape(*array.shape[:2], array.shape[2] * array.shape[3])


def _states(
    given: dict[str, np.ndarray], options: PulseOptions, parts: Any, workers: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """Gated queries, or None, and the states of the recurrence."""
    q, variant = given["q"], options.variant
    if variant == "standard" or not q.size:
        return None, q
    gated = parts.gate(q, given["gate"], workers=workers) if variant in _WITH_GATE else None
    entering = q if gated is None else gated
    if variant in ("leaky", "parseval"):
        states = np.empty_like(q)
        parts.leaky_scan(_flat(entering), decay_of(given, options), _flat(states), workers=workers)
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # refused by what follows
            states = parts.resonance(entering, given["k"], **_resonance(given, options, workers))
    return gated, states


def _states_backwards(
    state: PulseState, parts: Any, sides: list[np.ndarray], workers: int
) -> dict[str, np.ndarray]:
    """Gradients at queries, keys, gate and decay from those at states and keys, in `sides`."""
    given, options = state.given, state.options
    q, variant = given["q"], options.variant
    entering = q if state.gated is None else state.gated
    result = {"k": sides.pop(), "q": sides.pop()}
    if variant in ("leaky", "parseval"):
        decay = decay_of(given, options)
        learned = None if variant == "leaky" else _flat(state.states)
        dentering, ddecay = parts.leaky_scan_vjp(
            _flat(entering), decay, learned, _flat(result["q"]), workers=workers
        )
        result["q"] = dentering.reshape(q.shape)
        if variant == "parseval":
            result["decay_logit"] = np.array([ddecay * decay * (1.0 - decay)], q.dtype)
    elif variant in _WITH_HEADS:
        resonance = _resonance(given, options, workers)
        result["q"], more = parts.resonance_vjp(entering, given["k"], state.states, result["q"], **resonance)
        result["k"] += more
        del more
    if state.gated is not None:
        result["q"], result["gate"] = parts.gate_vjp(q, given["gate"], result["q"], workers=workers)
    return result


def _turn_backwards(state: PulseState, parts: Any, sides: list[np.ndarray], workers: int) -> np.ndarray:
    """Gradient at A; those at what softmax took, in `sides`, give way to those at states and keys."""
    given, options, shared = state.given, state.options, state.shared
    assert shared is not None
    tokens = state.states, given["k"]
    shape = tokens[1].shape
    tables = tables_of(options, 0, shape[1], shape[3], tokens[1].dtype)
    shift, factor = _spread(shape[:3], shared.shift, shared.factor)
    slopes, products = np.zeros(shape[:3]), np.zeros(shape[:3])
    dtwist = np.zeros(given["A"].shape)
    for side, (array, twist) in enumerate(zip(tokens, twists_of(given["A"], options), strict=True)):
        sides[side], slope, product, bend = parts.turn_vjp(
            array,
            shift,
            factor,
            twist,
            *tables,
            sides[side],
            twist_first=options.twist_first,
            workers=workers,
        )
        slopes += slope
        products += product
        if bend is not None:
            dtwist += bend
    added = statistics.gather_backwards(shared, slopes, products)
    for g, array, terms, mean in zip(sides, tokens, added, shared.means, strict=True):
        parts.unnormalise(g, array, factor, *_spread(shape[:3], *terms, mean), workers=workers)
    result: np.ndarray = (dtwist - dtwist.swapaxes(1, 2)).astype(tokens[1].dtype)
    return result


def _spread(shape: tuple[int, ...], *arrays: np.ndarray) -> list[np.ndarray]:
    """A number for each token and head, whatever they share."""
    return [np.ascontiguousarray(np.broadcast_to(array, shape)) for array in arrays]


# ---------------------------------------------------------------- the layer


def context_pulse_attention(
    x: Any,
    params: Mapping[str, Any],
    *,
    variant: str = "standard",
    n_heads: int = 1,
    chunk_size: int = 16,
    poly_order: int = 1,
    decay: float = 0.9,
    mask: bool = True,
    strict_causal: bool = False,
    wedge: str = "published",
    rotary: bool = True,
    normalise: bool = True,
    backend: str | None = None,
    workers: int = 1,
) -> np.ndarray:
    """Causal self-attention whose queries are states of a recurrence; `variant` says of which.

    Per head, with q, k, v = W_Q x, W_K x, W_V x + b_v (matrices are (out, in); rows h d_h ... of head h),
    sigma the logistic function and c the states in place of the queries:

    ========  ==========================================================================
    standard  c = q
    leaky     c_t = decay c_{t-1} + (1 - decay) q_t from 0
    parseval  the same of u = sigma(gate x) q, with sigma(decay_logit) for the decay
    chunked   `spo_fast.pulse.chunked_resonance` of u = sigma(gate x) q and k
    alpert    `spo_fast.pulse.moment_resonance` of q and k
    ========  ==========================================================================

    The first two end with softmax(c k^T / sqrt(d_h)) v. The others normalise c and k together
    (`spo_fast.pulse.symbiotic_norm`, over the whole sample in parseval, else by token and head), rotate and
    twist both, c' = rotary(c) (I + A - A^T), in alpert twist before they rotate, and end with softmax
    attention in which each row has one more column, of score `sink` and value `v_null`. W_O and b_o follow in
    chunked and alpert.

    Parameters
    ----------
    x : array_like, shape (B, N, d)
        Input, float32 or float64, like all parameters.
    params : mapping of str to array_like
        ``W_Q``, ``W_K``, ``W_V``: (H d_h, d); where there is one head, d_h is the number of their rows, else
        d/H. chunked and alpert: ``W_O``, (d, d). parseval, chunked and alpert: ``A``, (H, d_h, d_h), with d_h
        even; ``gate_proj.weight``, (H d_h, d); ``gate_proj.bias``, (H d_h,); ``sink``, (1,), and ``v_null``,
        (d_h,), of parseval, (1, H, 1, 1) and (1, H, 1, d_h) of the others. parseval: ``decay_logit``, (1,).
        alpert: ``jump_scale`` and ``jump_bias``, (1,), which like its gate have no effect. A ``sink`` of -inf
        is none. Optionally
        ``b_v``, (H d_h,), and where there is a ``W_O`` ``b_o``, (d,).
    variant : {"standard", "leaky", "parseval", "chunked", "alpert"}
        Which one.
    n_heads : int
        H of chunked and alpert, a divisor of d; 1 for the others.
    chunk_size : int
        Tokens of a chunk, of chunked and alpert.
    poly_order : int
        Last moment of alpert: 0, 1 or 2; higher ones act as 2.
    decay : float
        Of leaky, between 0 and 1.
    mask : bool
        Whether the softmax sees past keys alone; the recurrence always does.
    strict_causal : bool
        As published, parseval normalises over the whole sample and alpert looks at all keys of a chunk, so
        that outputs depend on later tokens. If True, parseval's statistics run along, and alpert's tokens
        recall by themselves (`spo_fast.pulse.moment_resonance`): no output depends on what comes later. The
        other variants are so in any case.
    wedge : {"published", "relative"}
        As published, the twist of parseval and chunked is on both sides behind the rotation: its effect
        begins with the square of A, with no gradient but rounding at A = 0. "relative": it is on the queries
        alone, before the rotation, c' = rotary(c (I + A - A^T)), k' = rotary(k); scores depend on it to first
        order and on positions by their distance.
    rotary, normalise : bool
        Of parseval, chunked and alpert: False leaves the rotation, or the normalisation, out.
    backend : {"auto", "cython", "numba", "numpy"}, optional
        The fastest available by default.
    workers : int
        Threads that a backend may use; the result does not depend on it.

    Returns
    -------
    ndarray, shape (B, N, d), or (B, N, d_h) of standard, leaky and parseval
        The layer's output.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, an entry of `params` is missing or unknown, precisions
        are mixed, an entry is not finite, or states overflow.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    The softmax costs B H N^2 d_h multiply-adds and B H N^2 / 2 exponentials, everything else is linear in N
    but for the scores of past chunks (see the resonances in `spo_fast.pulse`). Memory is linear in N.
    """
    layer = Layer.checked(
        x,
        params,
        n_heads,
        PulseOptions.checked(
            variant, chunk_size, poly_order, decay, mask, strict_causal, wedge, rotary, normalise
        ),
    )
    mixed, _ = attend(layer.projected(), layer.options, backend, workers)
    return layer.output(mixed)


def context_pulse_attention_vjp(
    x: Any,
    params: Mapping[str, Any],
    grad_out: Any,
    *,
    variant: str = "standard",
    n_heads: int = 1,
    chunk_size: int = 16,
    poly_order: int = 1,
    decay: float = 0.9,
    mask: bool = True,
    strict_causal: bool = False,
    wedge: str = "published",
    rotary: bool = True,
    normalise: bool = True,
    backend: str | None = None,
    workers: int = 1,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Gradients of sum(out * grad_out) for out = context_pulse_attention(x, params, ...).

    Parameters
    ----------
    x, params, variant, n_heads, chunk_size, poly_order, decay, mask, strict_causal, wedge
        As for `context_pulse_attention`.
    rotary, normalise, backend, workers
        As for `context_pulse_attention`.
    grad_out : array_like, shape of the output
        Gradient at the output.

    Returns
    -------
    dx : ndarray, shape (B, N, d)
        Gradient at the input.
    gradients : dict of str to ndarray
        For each entry of `params` the gradient, of the same shape; zeros for those that the variant does not
        use.

    Raises
    ------
    ValueError
        As `context_pulse_attention`, and if `grad_out` is not of the output's shape and precision.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    The forward pass is part of the work. Memory is linear in N.
    """
    layer = Layer.checked(
        x,
        params,
        n_heads,
        PulseOptions.checked(
            variant, chunk_size, poly_order, decay, mask, strict_causal, wedge, rotary, normalise
        ),
    )
    grad = like(grad_out, "grad_out", layer.output_shape, layer.x.dtype)
    mixed, state = attend(layer.projected(), layer.options, backend, workers)
    return layer.gradients(grad, mixed, state, integer(workers, "workers", 1))


def parameter_shapes(variant: str, width: int, heads: int, head_width: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a variant's parameters.

    Parameters
    ----------
    variant : str
        One of `VARIANTS`.
    width, heads, head_width : int
        Of the input, number of heads, and of a head.
    """
    inner = heads * head_width
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("W_Q", "W_K", "W_V"), (inner, width))
    if variant in _WITH_HEADS:
        shapes["W_O"] = (width, inner)
    if variant not in _WITH_WEDGE:
        return shapes
    shapes["A"] = (heads, head_width, head_width)
    if variant == "parseval":
        shapes |= {"decay_logit": (1,), "sink": (1,), "v_null": (head_width,)}
    else:
        shapes |= {"sink": (1, heads, 1, 1), "v_null": (1, heads, 1, head_width)}
    shapes |= {"gate_proj.weight": (inner, width), "gate_proj.bias": (inner,)}
    if variant == "alpert":
        shapes |= {"jump_scale": (1,), "jump_bias": (1,)}
    return shapes


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A checked context-pulse attention layer and its input.

    Attributes
    ----------
    x : ndarray, shape (B, N, d)
        Input.
    heads, head_width : int
        Number of heads and their width.
    params : dict of str to ndarray
        Checked parameters.
    options : PulseOptions
        Checked options.
    """

    x: np.ndarray
    heads: int
    head_width: int
    params: dict[str, np.ndarray]
    options: PulseOptions

    @classmethod
    def checked(cls, x: Any, params: Any, n_heads: Any, options: PulseOptions) -> Layer:
        """Check everything; see `context_pulse_attention`."""
        tokens = token_input(x)
        heads = integer(n_heads, "n_heads", 1)
        width = tokens.shape[2]
        if options.variant in _WITH_HEADS:
            per_head = head_width(width, heads)
        else:
            if not isinstance(params, Mapping):
                raise ValueError(f"params must be a dictionary of arrays, got {describe(params)}")
            rows = np.shape(params.get("W_Q", np.empty((0, width))))
            per_head = rows[0] if rows and rows[0] else width
        check_heads(options, heads, per_head)
        shapes = parameter_shapes(options.variant, width, heads, per_head)
        optional = {"b_v": (heads * per_head,)}
        if "W_O" in shapes:
            optional["b_o"] = (width,)
        arrays = named_arrays(params, shapes, optional, tokens.dtype)
        return cls(tokens, heads, per_head, arrays, options)

    def of(self, x: np.ndarray) -> Layer:
        """The same layer with another input, which is checked."""
        return replace(self, x=x)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of the layer's output."""
        last = self.x.shape[2] if "W_O" in self.params else self.head_width
        return (*self.x.shape[:2], last)

    def _rows(self) -> np.ndarray:
        """Tokens of all samples as rows of one matrix."""
        return self.x.reshape(math.prod(self.x.shape[:2]), self.x.shape[2])

    def _heads(self, projected: np.ndarray) -> np.ndarray:
        return projected.reshape(*self.x.shape[:2], self.heads, self.head_width)

    def projected(self) -> dict[str, np.ndarray]:
        """Arguments of `pulse_attention`."""
        p, rows = self.params, self._rows()
        given = {name[-1].lower(): self._heads(rows @ p[name].T) for name in ("W_Q", "W_K", "W_V")}
        if "b_v" in p:
            given["v"] += self._heads(np.broadcast_to(p["b_v"], (len(rows), len(p["b_v"]))))
        for name, shape in extra_shapes(self.options.variant, given["q"].shape).items():
            if name == "gate":
                given[name] = self._heads(rows @ p["gate_proj.weight"].T + p["gate_proj.bias"])
            else:
                given[name] = p[name].reshape(shape)
        return given

    def output(self, mixed: np.ndarray) -> np.ndarray:
        """Project the heads' results, shape (B, N, H, d_h), where there is a projection."""
        p = self.params
        out = mixed.reshape(math.prod(self.x.shape[:2]), self.heads * self.head_width)
        if "W_O" in p:
            out = out @ p["W_O"].T
        if "b_o" in p:
            out += p["b_o"]
        return out.reshape(self.output_shape)

    def gradients(
        self, grad: np.ndarray, mixed: np.ndarray, state: PulseState, workers: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Gradients at the input and the parameters.

        Parameters
        ----------
        grad : ndarray, shape of the output
            Gradient at the output.
        mixed : ndarray, shape (B, N, H, d_h)
            The heads' results.
        state : PulseState
            Their state.
        """
        p, rows = self.params, self._rows()
        grad = grad.reshape(len(rows), grad.shape[2])
        result = {name: np.zeros_like(value) for name, value in p.items()}
        if "W_O" in p:
            result["W_O"] = grad.T @ mixed.reshape(len(rows), self.heads * self.head_width)
        if "b_o" in p:
            result["b_o"] = _column_sums(grad)
        inner = grad @ p["W_O"] if "W_O" in p else grad
        found = attend_backwards(state, inner.reshape(mixed.shape), workers)
        dx = np.zeros_like(rows)
        sources = {"q": "W_Q", "k": "W_K", "v": "W_V", "gate": "gate_proj.weight"}
        for name, gradient in found.items():
            if name not in sources:
                result[name] = gradient.reshape(p[name].shape)
                continue
            gradient = gradient.reshape(len(rows), self.heads * self.head_width)
            result[sources[name]] = gradient.T @ rows
            dx += gradient @ p[sources[name]]
            bias = {"v": "b_v", "gate": "gate_proj.bias"}.get(name)
            if bias in p:
                result[bias] = _column_sums(gradient)
        return dx.reshape(self.x.shape), result


def _column_sums(rows: np.ndarray) -> np.ndarray:
    """Sums over tokens, in double precision."""
    return rows.sum(axis=0, dtype=np.float64).astype(rows.dtype)
