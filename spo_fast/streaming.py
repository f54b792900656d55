"""Context-pulse attention token by token: a state that holds the past, and a step that takes one more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spo_fast.backends import attention as backends
from spo_fast.backends.pulse import reference, statistics
from spo_fast.context_pulse import (
    Layer,
    PulseOptions,
    decay_of,
    explain_overflow,
    softmax_options,
    tables_of,
    twists_of,
)
from spo_fast.pulse import moment_basis
from spo_fast.validation import describe, float_array, integer, like, refuse_large_scores, refuse_overflow

_FIRST_ROOM = 16  # tokens that a new stream has room for; it doubles when they are there


@dataclass(slots=True, eq=False)
class PulseStream:
    """A context-pulse attention and all that it remembers of B sequences; may be pickled and copied.

    Attributes
    ----------
    layer : Layer
        Options and checked parameters; its input is empty.
    backend : str
        Which backend does the softmax.
    workers : int
        Threads that it may use.
    seen : int
        Tokens so far.
    keys, values : ndarray, shape (B, H, room, d)
        As softmax attention takes them, room >= seen.
    recurrence : object
        What the states of the variant need.
    running : Running or None
        Running statistics, where there are any.
    """

    layer: Layer
    backend: str
    workers: int
    seen: int
    keys: np.ndarray
    values: np.ndarray
    recurrence: Any
    running: statistics.Running | None


def stream(
    params: Mapping[str, Any],
    *,
    batch: int = 1,
    variant: str = "leaky",
    n_heads: int = 1,
    chunk_size: int = 16,
    poly_order: int = 1,
    decay: float = 0.9,
    strict_causal: bool = False,
    wedge: str = "published",
    rotary: bool = True,
    normalise: bool = True,
    backend: str | None = None,
    workers: int = 1,
) -> PulseStream:
    """Begin a context-pulse attention that is given its tokens one by one.

    Parameters
    ----------
    params, variant, n_heads, chunk_size, poly_order, decay, strict_causal, wedge, rotary, normalise
        As for `context_pulse_attention`, in which no output may depend on a later token: "parseval" and
        "alpert" need ``strict_causal=True``.
    backend, workers
        As for `context_pulse_attention`.
    batch : int
        Number B of sequences that go side by side.

    Returns
    -------
    PulseStream
        The state before the first token.

    Raises
    ------
    ValueError
        As `context_pulse_attention`, and for what cannot be computed token by token.
    RuntimeError
        If the backend cannot be loaded.

    Notes
    -----
    O(B d^2) besides what is made for the weights; for the tokens see `step`.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> state = stream({"W_Q": one, "W_K": one, "W_V": one}, variant="leaky")
    >>> step(state, np.array([[1.0]])), step(state, np.array([[3.0]]))
    (array([[1.]]), array([[2.37136023]]))
    """
    options = PulseOptions.checked(
        variant, chunk_size, poly_order, decay, True, strict_causal, wedge, rotary, normalise
    )
    if not options.looks_back_only:
        raise ValueError(
            f"strict_causal must be True to take variant {variant!r} token by token: "
            "as published its outputs depend on later tokens"
        )
    matrix = params.get("W_Q") if isinstance(params, Mapping) else None
    if matrix is None or np.ndim(matrix) != 2:
        raise ValueError(f"params must be a dictionary with a matrix W_Q, got {describe(params)}")
    weight = float_array(matrix, "params['W_Q']")
    empty = np.empty((integer(batch, "batch", 1), 0, weight.shape[1]), weight.dtype)
    layer = Layer.checked(empty, params, n_heads, options)
    room = np.empty((len(empty), layer.heads, _FIRST_ROOM, layer.head_width), empty.dtype)
    return PulseStream(
        layer,
        backends.load(backend).NAME,
        integer(workers, "workers", 1),
        0,
        room,
        room.copy(),
        _recurrence(layer, len(empty)),
        statistics.Running.start(len(empty)) if options.over == "running" else None,
    )


def step(state: PulseStream, x: Any) -> np.ndarray:
    """Take one more token of each sequence, and return the outputs for it.

    They are those of `context_pulse_attention` for the whole sequences, to rounding.

    Parameters
    ----------
    state : PulseStream
        From `stream`; it is changed. To go on from one past in several ways take `copy.deepcopy` of it.
    x : array_like, shape (B, d)
        The tokens, in the precision of the parameters.

    Returns
    -------
    ndarray, shape (B, d), or (B, d_h) of standard, leaky and parseval

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or shape, or not finite, or scores or states overflow, after which
        the stream cannot go on.

    Notes
    -----
    Token t costs the projections and t softmax weights a head, with chunks of L tokens t / L more. The state
    grows by 2 H d_h numbers a token.
    """
    if not isinstance(state, PulseStream):
        raise ValueError(f"state must come from stream, got an object of type {type(state).__name__}")
    empty = state.layer.x
    tokens = like(x, "x", (empty.shape[0], empty.shape[2]), empty.dtype)
    layer = state.layer.of(tokens[:, None])
    options, given = layer.options, layer.projected()
    states = state.recurrence.take(given)
    sides = (states, given["k"])
    if "A" in given:
        moments_q, moments_k = (reference.token_moments(side, workers=1) for side in sides)
        explain_overflow(moments_q, options)
        width = layer.head_width
        if state.running is None:
            shared = statistics.gather(moments_q, moments_k, width, options.over)
        else:
            shared = state.running.extend(moments_q, moments_k, width)
        shift, factor = (np.broadcast_to(array, states.shape[:3]) for array in (shared.shift, shared.factor))
        cosine, sine = tables_of(options, state.seen, 1, width, states.dtype)
        turned = [
            reference.turn(
                side, shift, factor, twist, cosine, sine, twist_first=options.twist_first, workers=1
            )
            for side, twist in zip(sides, twists_of(given["A"], options), strict=True)
        ]
    else:
        turned = [np.ascontiguousarray(side.swapaxes(1, 2)) for side in sides]
    _remember(state, turned[1], given["v"].swapaxes(1, 2))
    past = [np.ascontiguousarray(array[:, :, : state.seen]) for array in (state.keys, state.values)]
    softmax = softmax_options(given, options, state.workers)
    if "A" not in given:
        refuse_large_scores(turned[0], past[0], None, softmax["scale"])
    out, _ = backends.load(state.backend).attend(turned[0], *past, **softmax)
    refuse_overflow("x and params", out)
    return layer.output(np.ascontiguousarray(out.swapaxes(1, 2)))[:, 0]


def _remember(state: PulseStream, keys: np.ndarray, values: np.ndarray) -> None:
    """Append a token's keys and values; the room doubles when it is full."""
    if state.seen == state.keys.shape[2]:
        state.keys, state.values = (
            np.concatenate([array, np.empty_like(array)], axis=2) for array in (state.keys, state.values)
        )
    state.keys[:, :, state.seen : state.seen + 1] = keys
    state.values[:, :, state.seen : state.seen + 1] = values
    state.seen += 1


# ---------------------------------------------------------------- recurrences


def _recurrence(layer: Layer, batch: int) -> Any:
    variant = layer.options.variant
    if variant == "standard":
        return _Nothing()
    zeros = np.zeros((batch, 1, layer.heads, layer.head_width), layer.x.dtype)
    if variant in ("leaky", "parseval"):
        return _Leak(decay_of(layer.params, layer.options), zeros)
    basis = None
    if variant == "alpert":
        basis = moment_basis(layer.options.chunk_size, layer.options.poly_order, zeros.dtype)
    return _Chunks(layer.options.chunk_size, basis, zeros)


def _entering(given: dict[str, np.ndarray]) -> np.ndarray:
    return reference.gate(given["q"], given["gate"], workers=1) if "gate" in given else given["q"]


@dataclass(slots=True, eq=False)
class _Nothing:
    """Queries as they are."""

    def take(self, given: dict[str, np.ndarray]) -> np.ndarray:
        """Return the queries."""
        return given["q"]


@dataclass(slots=True, eq=False)
class _Leak:
    """The leaky scan; state (B, 1, H, d)."""

    decay: float
    state: np.ndarray

    def take(self, given: dict[str, np.ndarray]) -> np.ndarray:
        """Return c of one more token."""
        kind = self.state.dtype.type
        self.state = kind(self.decay) * self.state + kind(1.0 - self.decay) * _entering(given)
        return self.state


@dataclass(slots=True, eq=False)
class _Chunks:
    """The resonance with past chunks, each token recalling by itself; all arrays (B, 1, H, ...).

    Attributes
    ----------
    size : int
        Tokens of a chunk.
    basis : ndarray, shape (size, w), or None
        Moments that are remembered.
    zeros : ndarray
        What sums begin with.
    place : int
        Tokens of the chunk so far.
    total : ndarray
        Their sum.
    asked, remembered : ndarray, shape (..., w, d)
        Moments of their keys and states.
    last, injected, subtracted : ndarray
        Last state of the chunk before, what was injected into the last token, and the same of the chunk
        before.
    past : list of ndarray, shape (..., w d)
        What is remembered of each past chunk.
    """

    size: int
    basis: np.ndarray | None
    zeros: np.ndarray
    place: int = 0
    total: np.ndarray = field(init=False)
    asked: np.ndarray = field(init=False)
    remembered: np.ndarray = field(init=False)
    last: np.ndarray = field(init=False)
    injected: np.ndarray = field(init=False)
    subtracted: np.ndarray = field(init=False)
    past: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.injected = self.subtracted = self.zeros
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self.place, self.total = 0, self.zeros
        self.asked = self.remembered = self.zeros[..., None, :]

    def take(self, given: dict[str, np.ndarray]) -> np.ndarray:
        """Return c of one more token."""
        row = None if self.basis is None else self.basis[self.place][:, None]
        self.total = self.total + _entering(given)
        keys = given["k"][..., None, :]
        self.asked = keys if row is None else self.asked + row * keys
        states = self.total
        if self.past:
            recalled = self._recall(self.asked)
            self.injected = self.last + (recalled if row is None else row * recalled).sum(axis=-2)
            states = states + self.injected - self.subtracted
        here = states[..., None, :]
        self.remembered = here if row is None else self.remembered + row * here
        self.place += 1
        if self.place == self.size:
            self.past.append(self.remembered.reshape(*states.shape[:3], -1))
            self.last = states
            if row is not None:
                self.subtracted = self.injected
            self._begin_chunk()
        return states

    def _recall(self, asked: np.ndarray) -> np.ndarray:
        """sum_m p_m M_m, of the shape of what is asked."""
        past = np.stack(self.past, axis=-2)
        flat = asked.reshape(*past.shape[:3], -1)
        scores = (past @ flat[..., None])[..., 0] * flat.dtype.type(1.0 / math.sqrt(self.zeros.shape[3]))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights[..., None, :] @ past).reshape(asked.shape)
