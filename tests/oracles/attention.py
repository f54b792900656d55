"""Attention as plain loops over the sums, without any rearrangement.

Everything is written so that numbers may carry an infinitesimal imaginary part: the imaginary part of a
result over that of an input is then a derivative to the last digits (complex step).
"""

from __future__ import annotations

import cmath
import math

import numpy as np


def angle(s, c):
    """atan2 whose imaginary part is its derivative; 0 where it has none."""
    s, c = complex(s), complex(c)
    square = c.real**2 + s.real**2
    slope = (c.real * s.imag - s.real * c.imag) / square if square else 0.0
    return complex(math.atan2(s.real, c.real), slope)


def softmax(scores):
    """Weights of some scores; empty for none."""
    if not scores:
        return []
    top = max(score.real for score in scores)
    weights = [cmath.exp(score - top) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def softmax_attention(q, k, v, *, scale, causal=True, key_mask=None, sink=None, sink_value=None):
    """Attention of q (H, N, e), k (H, M, e), v (H, M, f); masked keys are left out of every sum."""
    heads, n, _ = q.shape
    m, width = v.shape[1:]
    out = np.zeros((heads, n, width), complex)
    lse = np.full((heads, n), -np.inf, complex)
    for h in range(heads):
        for i in range(n):
            seen = [j for j in range(m) if not (causal and j > i + m - n)]
            seen = [j for j in seen if key_mask is None or key_mask[j]]
            scores = [complex(scale * np.dot(q[h, i], k[h, j])) for j in seen]
            values = [v[h, j] for j in seen]
            if sink is not None and sink[h].real > -np.inf:
                scores.append(complex(sink[h]))
                values.append(np.zeros(width) if sink_value is None else sink_value[h])
            for weight, value in zip(softmax(scores), values, strict=True):
                out[h, i] += weight * value
            if scores:
                top = max(score.real for score in scores)
                lse[h, i] = top + cmath.log(sum(cmath.exp(score - top) for score in scores))
    return out, lse


def first_phases(c, s, ramp):
    """Phases [i][k] from their parts (N, m)."""
    return [[angle(s[i, k], c[i, k]) + ramp[k] * i for k in range(len(ramp))] for i in range(len(c))]


def coupling(receiving, sending, weight, alpha):
    """A[i][j] for j <= i."""
    rows = []
    for i, own in enumerate(receiving):
        scores = []
        for other in sending[: i + 1]:
            terms = zip(weight, own, other, alpha, strict=True)
            scores.append(sum(w * cmath.cos(a - b - lag) for w, a, b, lag in terms))
        rows.append(softmax(scores))
    return rows


def phase_attention_head(
    c, s, v, weight, alpha, kappa, ramp, *, steps, dt, queries=None, static_query=False, value_consensus=0.0
):
    """One head of one sample: c, s (N, m), v (N, f), queries a pair (N, m)."""
    theta = first_phases(c, s, ramp)
    fixed = first_phases(*queries, ramp) if queries is not None else theta if static_query else None
    values = [np.array(row, complex) for row in v]
    for _ in range(steps):
        a = coupling(theta if fixed is None else fixed, theta, weight, alpha)
        moved = []
        for i, own in enumerate(theta):
            pulls = [
                sum(a[i][j] * cmath.sin(theta[j][k] + alpha[k] - own[k]) for j in range(i + 1))
                for k in range(len(own))
            ]
            moved.append([phase + dt * kappa * pull for phase, pull in zip(own, pulls, strict=True)])
        if value_consensus:
            means = [sum(a[i][j] * values[j] for j in range(i + 1)) for i in range(len(values))]
            pairs = zip(values, means, strict=True)
            values = [own + dt * value_consensus * (mean - own) for own, mean in pairs]
        theta = moved
    a = coupling(theta if fixed is None else fixed, theta, weight, alpha)
    return np.array([sum(a[i][j] * values[j] for j in range(i + 1)) for i in range(len(values))])


def oscillator_attention(
    x,
    params,
    *,
    n_heads,
    steps=4,
    dt=1.0,
    static_query=False,
    separate_qk=False,
    value_consensus=0.0,
    pos="full",
    lag=True,
    freq_base=10000.0,
    score_scale=1.0,
):
    """The whole layer; x (B, N, d), result complex."""
    width = x.shape[2]
    per_head = width // n_heads
    m = per_head // 2 if separate_qk else per_head
    ramp = [freq_base ** (-k / m) for k in range(m)]
    if pos == "low":
        ramp = [0.0 if k < m // 2 else f for k, f in enumerate(ramp)]
    if pos == "none":
        ramp = [0.0] * m
    out = []
    for sample in x:
        v = sample @ params["W_v"].T + params.get("b_v", 0.0)
        joined = []
        for h in range(n_heads):
            rows = slice(h * m, (h + 1) * m)
            queries = None
            if separate_qk:
                half = n_heads * m
                k_parts, q_parts = (sample @ params[name].T for name in ("W_kp", "W_qp"))
                c, s = k_parts[:, :half][:, rows], k_parts[:, half:][:, rows]
                queries = q_parts[:, :half][:, rows], q_parts[:, half:][:, rows]
            else:
                c, s = (sample @ params["W_c"].T)[:, rows], (sample @ params["W_s"].T)[:, rows]
            joined.append(
                phase_attention_head(
                    c,
                    s,
                    v[:, h * per_head : (h + 1) * per_head],
                    params["beta"][h] * score_scale * params["w"][h],
                    params["alpha"][h] if lag else [0.0] * m,
                    params["kappa"][h],
                    ramp,
                    steps=steps,
                    dt=dt,
                    queries=queries,
                    static_query=static_query,
                    value_consensus=value_consensus,
                )
            )
        out.append(np.concatenate(joined, axis=1) @ params["W_o"].T + params.get("b_o", 0.0))
    return np.array(out)
