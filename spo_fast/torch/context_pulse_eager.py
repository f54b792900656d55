"""Context-pulse attention in PyTorch's own operations.

Any device, any floating type, derivatives of any order. Written as published: a loop over tokens for the
leaky scan, over chunks for the resonances, and an N×N matrix of scores. The kernels, which have neither, are
behind `spo_fast.torch.context_pulse`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spo_fast.backends.pulse.statistics import EPSILON, NOTHING
from spo_fast.context_pulse import PulseOptions
from spo_fast.pulse import ROTARY_BASE, moment_basis
from spo_fast.torch.eager import causal_attention


def pulse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: PulseOptions,
    *,
    gate: Tensor | None = None,
    decay_logit: Tensor | None = None,
    A: Tensor | None = None,
    sink: Tensor | None = None,
    v_null: Tensor | None = None,
) -> Tensor:
    """Attend; arguments as in `spo_fast.torch.context_pulse.pulse_attention`, but for the options, checked.

    Returns
    -------
    Tensor, shape (B, N, H, d)
    """
    if not q.numel():
        return torch.zeros_like(v)
    u = q if gate is None else gate.sigmoid() * q
    u, k, v = (tensor.transpose(1, 2) for tensor in (u, k, v))
    if options.variant == "leaky":
        u = leaky_scan(u, options.decay)
    elif decay_logit is not None:
        u = leaky_scan(u, decay_logit.sigmoid())
    elif options.variant == "chunked":
        u = chunked_resonance(u, k, options.chunk_size)
    elif options.variant == "alpert":
        u = moment_resonance(u, k, options.chunk_size, options.poly_order, options.strict_causal)
    if A is not None:
        u, k = symbiotic_norm(u, k, options.over)
        twist = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) + A - A.mT
        turn = partial(rotate, still=not options.rotary)
        u = turn(u @ twist) if options.twist_first else turn(u) @ twist
        if options.wedge == "relative":
            k = turn(k)
        else:
            k = turn(k @ twist) if options.twist_first else turn(k) @ twist
    scale = q.shape[-1] ** -0.5
    out = causal_attention(u, k, v, scale=scale, causal=options.mask, sink=sink, sink_value=v_null)
    return out.transpose(1, 2)


def leaky_scan(u: Tensor, decay: float | Tensor) -> Tensor:
    """c_t = decay c_{t-1} + (1 - decay) u_t along the third axis of (B, H, N, d), from 0."""
    state, states = torch.zeros_like(u[:, :, 0]) if u.shape[2] else u, []
    for now in u.unbind(2):
        state = decay * state + (1 - decay) * now
        states.append(state)
    return torch.stack(states, 2) if states else u


def chunked_resonance(u: Tensor, k: Tensor, chunk_size: int) -> Tensor:
    """`spo_fast.pulse.chunked_resonance` of (B, H, N, d)."""
    states: list[Tensor] = []
    last: list[Tensor] = []
    for now, keys in zip(u.split(chunk_size, 2), k.split(chunk_size, 2), strict=True):
        c = now.cumsum(2)
        if last:
            past = torch.stack(last, 2)
            weights = torch.softmax(keys @ past.mT * u.shape[-1] ** -0.5, -1)
            c = c + last[-1][:, :, None] + weights @ past
        states.append(c)
        last.append(c[:, :, -1])
    return torch.cat(states, 2)


def moment_resonance(q: Tensor, k: Tensor, chunk_size: int, order: int, strict_causal: bool) -> Tensor:
    """`spo_fast.pulse.moment_resonance` of (B, H, N, d)."""
    states: list[Tensor] = []
    moments: list[Tensor] = []
    state = subtracted = torch.zeros_like(q[:, :, :1])
    for now, keys in zip(q.split(chunk_size, 2), k.split(chunk_size, 2), strict=True):
        length = now.shape[2]
        basis = torch.from_numpy(moment_basis(chunk_size if strict_causal else length, order)[:length])
        basis = basis.to(q)
        c = now.cumsum(2)
        if moments:
            past = torch.stack(moments, 2)  # (B, H, n, w, d)
            if strict_causal:
                asked = (basis[:, :, None] * keys[:, :, :, None]).cumsum(2)
            else:
                asked = (basis.mT @ keys)[:, :, None]
            scores = asked.flatten(3) @ past.flatten(3).mT * q.shape[-1] ** -0.5
            recalled = (torch.softmax(scores, -1) @ past.flatten(3)).unflatten(3, past.shape[3:])
            inject = state + (basis[:, :, None] * recalled).sum(3)
            c = c + inject - subtracted
            subtracted = inject[:, :, -1:]
        states.append(c)
        moments.append(basis.mT @ c)
        state = c[:, :, -1:]
    return torch.cat(states, 2)


def symbiotic_norm(q: Tensor, k: Tensor, over: str) -> tuple[Tensor, Tensor]:
    """`spo_fast.pulse.symbiotic_norm` of (B, H, N, d)."""
    if over == NOTHING:
        return q, k
    if over == "running":
        (mean_q, std_q), (mean_k, std_k) = _running(q), _running(k)
    else:
        axes = (3,) if over == "point" else (1, 2, 3)
        mean_q, mean_k = q.mean(axes, keepdim=True), k.mean(axes, keepdim=True)
        std_q, std_k = q.std(axes, keepdim=True), k.std(axes, keepdim=True)
    mean, deviation = 0.5 * (mean_q + mean_k), 0.5 * (std_q + std_k) + EPSILON
    return (q - mean) / deviation, (k - mean) / deviation


def _running(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of all tokens up to each, (B, 1, N, 1)."""
    width = x.shape[1] * x.shape[3]
    seen = torch.arange(1, x.shape[2] + 1, dtype=x.dtype, device=x.device)[:, None]
    token = x.mean((1, 3), keepdim=True)
    mean = token.cumsum(2) / seen
    before = torch.cat([mean[:, :, :1], mean[:, :, :-1]], 2)
    squares = ((x - token) ** 2).sum((1, 3), keepdim=True) + width * (seen - 1) / seen * (token - before) ** 2
    return mean, (squares.cumsum(2) / (width * seen - 1)).sqrt()


def rotate(x: Tensor, still: bool = False) -> Tensor:
    """`spo_fast.pulse.rotary_embedding` of (B, H, N, d), or its order of components alone."""
    a, b = x[..., ::2], x[..., 1::2]
    if still:
        return torch.cat([a, b], -1)
    n, width = x.shape[2:]
    place = torch.arange(n, dtype=torch.float64, device=x.device)
    pair = torch.arange(width // 2, dtype=torch.float64, device=x.device)
    angles = place[:, None] * ROTARY_BASE ** (-2.0 * pair / width)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)
