"""Attention layers: forward, and forward with the reverse pass; float32, one thread, beside their parity."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .common import PROFILE, REFERENCE, Cell, Timed, require, warmed

BACKENDS = ("cython", "numba")
SAMPLES = {17: 64, 256: 8, 2048: 1}  # in a batch, by tokens: of the association task, and longer ones
CALLS = {17: 2, 256: 1, 2048: 1}
WIDTH, HEADS, STEPS = 64, 4, 4
GAP_COPY = (32, 256)  # samples and tokens
HEADS_OF_VARIANT = {  # and their width
    "standard": (1, 64),
    "leaky": (1, 64),
    "parseval": (1, 64),
    "chunked": (4, 16),
    "alpert": (4, 32),
}
SCAN = (32, 1024, WIDTH)
LEAST_ERROR = 1e-7  # of float32: smaller ones are all alike
Pass = Callable[..., Callable[[], Any]]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers, the same for the same arguments."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@cache
def inputs(tokens: int) -> tuple[np.ndarray, ...]:
    """Return queries, keys, values and a gradient, (B, H, N, m)."""
    shape = (SAMPLES[tokens], HEADS, tokens, WIDTH // HEADS)
    return tuple(normal(*shape, seed=seed) for seed in range(4))


def softmax(backend: str, tokens: int) -> Callable[[], Any]:
    """Return a call of causal attention, forward and back."""
    from spo_fast.attention import causal_attention, causal_attention_vjp

    q, k, v, grad = inputs(tokens)

    def both() -> Any:
        out, lse = causal_attention(q, k, v, return_lse=True, backend=backend)
        return causal_attention_vjp(q, k, v, grad, out=out, lse=lse, backend=backend)

    return both


@cache
def layer(tokens: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Return input, parameters and a gradient of an oscillator layer."""
    shapes = dict.fromkeys(("W_c", "W_s", "W_v", "W_o"), (WIDTH, WIDTH))
    params = {name: normal(*shape, seed=seed) / 8 for seed, (name, shape) in enumerate(shapes.items())}
    ones = {name: np.ones((HEADS, WIDTH // HEADS), np.float32) for name in ("w", "alpha")}
    factors = {name: np.full(HEADS, value, np.float32) for name, value in (("beta", 4.0), ("kappa", 0.5))}
    shape = (SAMPLES[tokens], tokens, WIDTH)
    return normal(*shape, seed=4), params | ones | factors, normal(*shape, seed=5)


def oscillators(backend: str, tokens: int) -> Callable[[], Any]:
    """Return a call of an oscillator layer, forward."""
    from spo_fast.attention import oscillator_attention

    x, params, _ = layer(tokens)
    return lambda: oscillator_attention(x, params, n_heads=HEADS, steps=STEPS, backend=backend)


def oscillators_and_back(backend: str, tokens: int) -> Callable[[], Any]:
    """Return a call of its reverse pass, which begins with the forward one."""
    from spo_fast.attention import oscillator_attention_vjp

    x, params, grad = layer(tokens)
    return lambda: oscillator_attention_vjp(x, params, grad, n_heads=HEADS, steps=STEPS, backend=backend)


def pulse(backend: str, variant: str) -> Callable[[], Any]:
    """Return a call of a variant between its projections, forward and back."""
    from spo_fast.context_pulse import extra_shapes, pulse_attention, pulse_attention_vjp

    shape = (*GAP_COPY, *HEADS_OF_VARIANT[variant])
    q, k, v, grad = (normal(*shape, seed=seed) for seed in range(4))
    extras = {name: normal(*size) / 10 for name, size in extra_shapes(variant, shape).items()}

    def both() -> Any:
        _, state = pulse_attention(q, k, v, variant=variant, backend=backend, **extras)
        return pulse_attention_vjp(state, grad)

    return both


class ByTokens(Cell):
    """One backend and one number of tokens."""

    params = (BACKENDS, tuple(SAMPLES))
    param_names = ("backend", "tokens")

    def setup(self, backend, tokens):
        if tokens > 256 and not PROFILE.slow:
            raise NotImplementedError(f"{tokens} tokens are not in this profile")
        require(backend)


class TimedByTokens(ByTokens, Timed):
    def setup(self, backend, tokens):
        ByTokens.setup(self, backend, tokens)
        self.batch(self.prepare(backend, tokens), CALLS[tokens])


class Softmax(TimedByTokens):
    prepare = staticmethod(cache(lambda backend, tokens: warmed(softmax(backend, tokens))))

    def time_causal_attention_and_back(self, backend, tokens):
        self.run()


class Oscillators(TimedByTokens):
    prepare = staticmethod(cache(lambda backend, tokens: warmed(oscillators(backend, tokens))))

    def time_oscillator_attention(self, backend, tokens):
        self.run()


class OscillatorsAndBack(TimedByTokens):
    prepare = staticmethod(cache(lambda backend, tokens: warmed(oscillators_and_back(backend, tokens))))

    def time_oscillator_attention_and_back(self, backend, tokens):
        self.run()


class ByVariant(Cell):
    """One backend and one variant of context-pulse attention, at the shapes of the gap-copy task."""

    params = (BACKENDS, tuple(HEADS_OF_VARIANT))
    param_names = ("backend", "variant")

    def setup(self, backend, variant):
        require(backend)


class Pulse(ByVariant, Timed):
    prepare = staticmethod(cache(lambda backend, variant: warmed(pulse(backend, variant))))

    def setup(self, backend, variant):
        ByVariant.setup(self, backend, variant)
        self.batch(self.prepare(backend, variant), 1)

    def time_context_pulse_and_back(self, backend, variant):
        self.run()


class Scan(Timed):
    """The leaky scan of ``SCAN`` numbers."""

    params = (BACKENDS,)
    param_names = ("backend",)

    def setup(self, backend):
        require(backend)
        self.batch(self.prepare(backend), 1)

    @staticmethod
    @cache
    def prepare(backend):
        from spo_fast.pulse import leaky_scan

        x = normal(*SCAN)[:, :, None, :]
        return warmed(lambda: leaky_scan(x, 0.9, backend=backend))

    def time_leaky_scan(self, backend):
        self.run()


def distance(make: Pass, backend: str, case: Any) -> float:
    """Return the largest difference from the NumPy reference, each array relative to its largest entry."""
    pairs = zip(arrays(make(backend, case)()), arrays(make(REFERENCE, case)()), strict=True)
    errors = (np.abs(found - expected).max() / np.abs(expected).max() for found, expected in pairs)
    return max(LEAST_ERROR, *map(float, errors))


def arrays(result: Any) -> list[np.ndarray]:
    """Return the arrays of a result, those of a mapping among them, in order."""
    if isinstance(result, dict):
        return [array for name in sorted(result) for array in arrays(result[name])]
    if isinstance(result, tuple):
        return [array for part in result for array in arrays(part)]
    return [] if result is None else [result]


class Parity(ByTokens):
    unit = "relative"

    def track_causal_attention_parity_error(self, backend, tokens):
        return distance(softmax, backend, tokens)

    def track_oscillator_attention_parity_error(self, backend, tokens):
        return distance(oscillators_and_back, backend, tokens)


class PulseParity(ByVariant):
    unit = "relative"

    def track_context_pulse_parity_error(self, backend, variant):
        return distance(pulse, backend, variant)
