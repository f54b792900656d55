"""Attention by the Numba kernels of ``spo_fast.kernels``.

All arrays enter the kernels writable, so that each is compiled once for each precision; a read-only one is
copied. The kernels run on the calling thread, without the GIL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from spo_fast.backends.calls import call, writable
from spo_fast.backends.jit import NAME as NAME
from spo_fast.kernels import attention as kernels

_Pair = tuple[np.ndarray, np.ndarray]


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> _Pair:
    """Softmax attention, see `spo_fast.backends.attention.reference.attend`."""
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.empty(q.shape[:3], q.dtype)
    options = _options(q.dtype, key_mask, sink, sink_value)
    call(kernels.attend, *writable(q, k, v), scale, causal, *options, out, lse)
    return out, lse


def attend_vjp(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    grad_out: np.ndarray,
    *,
    scale: float,
    causal: bool,
    key_mask: np.ndarray | None,
    sink: np.ndarray | None,
    sink_value: np.ndarray | None,
    workers: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Gradients of `attend`, see `spo_fast.backends.attention.reference.attend_vjp`."""
    options = _options(q.dtype, key_mask, sink, sink_value)
    results = [np.empty_like(array) for array in (q, k, v, *options[1:])]
    arrays = writable(q, k, v, out, lse, grad_out)
    call(kernels.attend_vjp, *arrays, scale, causal, *options, *results)
    dq, dk, dv, dsink, dvalue = results
    return dq, dk, dv, None if sink is None else dsink, None if sink_value is None else dvalue


@dataclass(slots=True, eq=False)
class PhaseState:
    """What the reverse pass needs.

    Attributes
    ----------
    arguments : tuple
        Arguments of the kernel `phase_attend` up to `value_consensus`.
    stride : int
        Steps from one kept state to the next.
    phases : ndarray, shape (B, H, K, N, m), radians
        Kept phases, the last ones included.
    values : ndarray, shape (B, H, K, N, f)
        Kept values; empty where they do not change.
    """

    arguments: tuple[Any, ...]
    stride: int
    phases: np.ndarray
    values: np.ndarray


def phase_attend(
    c: np.ndarray,
    s: np.ndarray,
    v: np.ndarray,
    weight: np.ndarray,
    alpha: np.ndarray,
    kappa: np.ndarray,
    ramp: np.ndarray,
    *,
    steps: int,
    dt: float,
    queries: _Pair | None = None,
    static_query: bool,
    value_consensus: float,
    keep: str,
    workers: int,
) -> tuple[np.ndarray, PhaseState | None]:
    """Attention among moving phases, see `spo_fast.backends.attention.reference.phase_attend`."""
    batch, n, heads, m = c.shape
    none = np.empty((0, 0, 0, 0), c.dtype)
    parts = writable(*queries) if queries is not None else (none, none)
    arrays = writable(c, s, v, weight, alpha, kappa, ramp)
    arguments = (*arrays, steps, dt, *parts, static_query, value_consensus)
    stride = {"none": 0, "all": 1, "sqrt": max(1, math.ceil(math.sqrt(steps)))}[keep]
    kept = 0 if stride == 0 else -(-steps // stride) + 1
    moving = kept if value_consensus else 0
    phases = np.empty((batch if kept else 0, heads, kept, n, m), c.dtype)
    values = np.empty((batch if moving else 0, heads, moving, n, v.shape[3]), c.dtype)
    out = np.empty(v.shape, c.dtype)
    call(kernels.phase_attend, *arguments, stride, out, phases, values)
    return out, None if keep == "none" else PhaseState(arguments, stride, phases, values)


def phase_attend_vjp(state: PhaseState, grad_out: np.ndarray, *, workers: int) -> dict[str, np.ndarray]:
    """Gradients of `phase_attend`, see `spo_fast.backends.attention.reference.phase_attend_vjp`."""
    c, s, v, weight, alpha, kappa = state.arguments[:6]
    query_c, query_s = state.arguments[9:11]
    names = ("dc", "ds", "dv", "dweight", "dalpha", "dkappa", "dcq", "dsq")
    given = (c, s, v, weight, alpha, kappa, query_c, query_s)
    results = {name: np.empty_like(array) for name, array in zip(names, given, strict=True)}
    kept = (state.phases, state.values, *writable(grad_out))
    call(kernels.phase_attend_vjp, *state.arguments, state.stride, *kept, *results.values())
    if not query_c.size:
        del results["dcq"], results["dsq"]
    return results


def _options(
    dtype: np.dtype, key_mask: np.ndarray | None, sink: np.ndarray | None, sink_value: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """Mask, sink and its value as the kernels take them."""
    return writable(
        np.empty((0, 0), np.bool_) if key_mask is None else key_mask,
        np.empty(0, dtype) if sink is None else sink,
        np.empty((0, 0), dtype) if sink_value is None else sink_value,
    )
