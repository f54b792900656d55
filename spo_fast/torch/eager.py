"""Both attentions in PyTorch's own operations: any device, any floating type, derivatives of any order.

They hold every N×M matrix, and every step of the dynamics for the reverse pass. The kernels, which hold none,
are behind `spo_fast.torch.functional`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = True,
    key_mask: Tensor | None = None,
    sink: Tensor | None = None,
    sink_value: Tensor | None = None,
) -> Tensor:
    """Attend; arguments as in `spo_fast.torch.causal_attention`.

    Returns
    -------
    Tensor, shape (..., H, N, f)
    """
    n, m = q.shape[-2], k.shape[-2]
    _require_shapes(q, k, v, sink, sink_value)
    hidden = ~_past(n, m, q.device) if causal else None
    if key_mask is None and sink is None and m > 0 and (not causal or n <= m):  # every row has a key
        return _softmax(q * scale @ k.mT, hidden) @ v
    if key_mask is not None:
        absent = ~key_mask[..., None, :, None]
        k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)  # NaN there must not show
        masked = absent.mT.expand(*absent.shape[:-2], n, m)
        hidden = masked if hidden is None else hidden | masked
    scores = q * scale @ k.mT
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    level = scores.detach().amax(-1, keepdim=True) if m else torch.full_like(scores.sum(-1, True), -torch.inf)
    if sink is not None:
        level = level.maximum(sink.detach()[:, None, None])
    level = level.masked_fill(level == -torch.inf, 0.0)
    share = (scores - level).exp()
    total, value = share.sum(-1, keepdim=True), share @ v
    if sink is not None:
        apart = (sink[:, None, None] - level).exp()
        total = total + apart
        if sink_value is not None:
            value = value + apart * sink_value[:, None, :]
    return value / total.masked_fill(total == 0.0, 1.0)


def _require_shapes(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, sink_value: Tensor | None) -> None:
    """Refuse shapes that would be broadcast into a result of another meaning."""
    heads = q.shape[:-2]
    if k.shape[:-2] != heads or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k must have shape {(*heads, 'M', q.shape[-1])}, got {tuple(k.shape)}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v must have shape {(*k.shape[:-1], 'f')}, got {tuple(v.shape)}")
    if sink is not None and sink.shape != heads[-1:]:
        raise ValueError(f"sink must have shape {tuple(heads[-1:])}, got {tuple(sink.shape)}")
    if sink_value is not None and sink is None:
        raise ValueError("sink_value must be None without a sink, got a tensor")
    if sink_value is not None and sink_value.shape != (heads[-1], v.shape[-1]):
        raise ValueError(
            f"sink_value must have shape {(heads[-1], v.shape[-1])}, got {tuple(sink_value.shape)}"
        )


def _past(n: int, m: int, device: torch.device) -> Tensor:
    """Which of m keys each of n queries may see, aligned at the end."""
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


def _softmax(scores: Tensor, hidden: Tensor | None) -> Tensor:
    return torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -torch.inf), -1)


def phase_steps(
    c: Tensor,
    s: Tensor,
    v: Tensor,
    weight: Tensor,
    alpha: Tensor | None,
    kappa: Tensor,
    ramp: np.ndarray,
    *,
    steps: int,
    dt: float,
    queries: tuple[Tensor, Tensor] | None = None,
    static_query: bool = False,
    value_consensus: float = 0.0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Walk through the dynamics; arguments as in `spo_fast.torch.phase_attention`.

    Yields
    ------
    attention : Tensor, shape (B, H, N, N)
        Of the present phases, at times 0, dt, ..., steps * dt.
    theta : Tensor, shape (B, H, N, m), rad
        The phases that move.
    v : Tensor, shape (B, H, N, f)
        The values.
    """
    hidden = ~_past(c.shape[1], c.shape[1], c.device)
    lag = 0.0 if alpha is None else alpha[:, None, :]
    strength, gain = weight[:, None, :], dt * kappa[:, None, None]
    theta, v = initial_phases(c, s, ramp), v.transpose(1, 2)
    fixed = None
    if queries is not None or static_query:
        phases = theta if queries is None else initial_phases(*queries, ramp)
        fixed = _queries(phases.cos(), phases.sin(), strength)
    for remaining in range(steps, -1, -1):
        cosine, sine = theta.cos(), theta.sin()
        ahead = theta + lag
        features = torch.cat((ahead.cos(), ahead.sin()), -1)
        query = _queries(cosine, sine, strength) if fixed is None else fixed
        attention = _softmax(query @ features.mT, hidden)
        yield attention, theta, v
        if remaining:
            mean_cosine, mean_sine = (attention @ features).chunk(2, -1)
            if value_consensus:
                v = v + dt * value_consensus * (attention @ v - v)
            theta = theta + gain * (cosine * mean_sine - sine * mean_cosine)


def initial_phases(c: Tensor, s: Tensor, ramp: np.ndarray) -> Tensor:
    """Return atan2(s, c) + i ramp.

    Parameters
    ----------
    c, s : Tensor, shape (B, N, H, m)
    ramp : ndarray, shape (m,), rad

    Returns
    -------
    Tensor, shape (B, H, N, m), rad
    """
    theta = torch.atan2(s, c).transpose(1, 2)
    return theta + torch.from_numpy(_angles(c.shape[1], ramp.tobytes())).to(theta)


def _queries(cosine: Tensor, sine: Tensor, strength: Tensor) -> Tensor:
    return torch.cat((strength * cosine, strength * sine), -1)


@lru_cache(maxsize=32)
def _angles(n: int, ramp: bytes) -> np.ndarray:
    """Return n multiples of a ramp, taken in float64 and reduced, so that float32 keeps their last digits."""
    return np.remainder(np.arange(n)[:, None] * np.frombuffer(ramp), 2.0 * np.pi)


def phase_attention(
    c: Tensor,
    s: Tensor,
    v: Tensor,
    weight: Tensor,
    alpha: Tensor | None,
    kappa: Tensor,
    ramp: np.ndarray,
    *,
    steps: int,
    dt: float,
    queries: tuple[Tensor, Tensor] | None = None,
    static_query: bool = False,
    value_consensus: float = 0.0,
) -> Tensor:
    """Run the dynamics and read out; arguments as in `spo_fast.torch.phase_attention`.

    Returns
    -------
    Tensor, shape (B, N, H, f)
    """
    walk = phase_steps(
        c,
        s,
        v,
        weight,
        alpha,
        kappa,
        ramp,
        steps=steps,
        dt=dt,
        queries=queries,
        static_query=static_query,
        value_consensus=value_consensus,
    )
    *_, (attention, _, values) = walk
    return (attention @ values).transpose(1, 2)


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """Encode positions by rotation (RoPE): pair (x_2k, x_2k+1) at position t by t base^(-2k/e).

    Parameters
    ----------
    x : Tensor, shape (B, N, H, e)
        e even. A rotated pair stays where it was.
    base : float
        The slowest pair turns by base^(2/e - 1) rad a position.

    Returns
    -------
    Tensor, shape (B, N, H, e)
        Same type as ``x``: angles are taken in float64, their sines and cosines cast last.
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    pairs = torch.view_as_complex(wide.contiguous().unflatten(-1, (-1, 2)))
    turns = torch.from_numpy(_turns(x.shape[1], x.shape[-1], base)).to(pairs)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


@lru_cache(maxsize=32)
def _turns(n: int, width: int, base: float) -> np.ndarray:
    """Return exp(i angle) for n positions, one head and width / 2 pairs."""
    return np.exp(1j * np.arange(n)[:, None, None] * base ** (-np.arange(0, width, 2) / width))
