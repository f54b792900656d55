"""Context-pulse attention as plain loops over tokens, chunks and heads, as its definition reads.

Numbers may carry an infinitesimal imaginary part, as in `oracles.attention`.
"""

from __future__ import annotations

import cmath
from functools import partial

import numpy as np

from oracles.attention import softmax, softmax_attention


def sigmoid(g):
    return 1.0 / (1.0 + np.exp(-g))


def leaky_scan(u, decay):
    """c_t of u (N, d)."""
    rows, c = [], np.zeros(u.shape[1])
    for row in u:
        c = decay * c + (1.0 - decay) * row
        rows.append(c)
    return np.array(rows)


def rotary(x, speed=1.0):
    """Rows of (N, d): pairs turned, all first components, then all second ones."""
    d = x.shape[1]
    rows = []
    for t, row in enumerate(x):
        first, second = [], []
        for k in range(d // 2):
            angle = speed * t * 10000.0 ** (-2.0 * k / d)
            a, b = row[2 * k], row[2 * k + 1]
            first.append(a * np.cos(angle) - b * np.sin(angle))
            second.append(a * np.sin(angle) + b * np.cos(angle))
        rows.append(first + second)
    return np.array(rows)


def wedge(x, a):
    """Rows of (N, d) times I + a - a^T."""
    d = x.shape[1]
    return np.array(
        [[row[j] + sum(row[i] * (a[i, j] - a[j, i]) for i in range(d)) for j in range(d)] for row in x]
    )


def spread_of(numbers):
    """Mean and standard deviation by n - 1 of some numbers."""
    numbers = list(np.ravel(numbers))
    mean = sum(numbers) / len(numbers)
    return mean, cmath.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def normalise(q, k, over):
    """Queries and keys (H, N, d) by shared statistics."""
    results = np.zeros(q.shape, complex), np.zeros(q.shape, complex)
    for h in range(q.shape[0]):
        for t in range(q.shape[1]):
            which = {
                "point": np.s_[h, t],
                "sample": np.s_[:, :],
                "running": np.s_[:, : t + 1],
            }[over]
            (mean_q, std_q), (mean_k, std_k) = spread_of(q[which]), spread_of(k[which])
            for result, array in zip(results, (q, k), strict=True):
                result[h, t] = (array[h, t] - (mean_q + mean_k) / 2) / ((std_q + std_k) / 2 + 1e-6)
    return results


def chunked(u, k, size, scale):
    """States (N, d) of u, k (N, d)."""
    c, past = [], []
    for start in range(0, len(u), size):
        total = np.zeros(u.shape[1])
        for t in range(start, min(start + size, len(u))):
            total = total + u[t]
            state = total
            if past:
                weights = softmax([complex(scale * np.dot(k[t], e)) for e in past])
                state = state + past[-1] + sum(r * e for r, e in zip(weights, past, strict=True))
            c.append(state)
        past.append(c[-1])
    return np.array(c)


def basis(length, order):
    """Rows of the moment basis."""
    points = [-1.0 + 2.0 * i / (length - 1) for i in range(length)] if length > 1 else [-1.0]
    columns = [[1.0 for _ in points], list(points), [3.0 * t * t - 1.0 for t in points]][: order + 1]
    return np.array([np.array(column) / np.sqrt(sum(x * x for x in column)) for column in columns]).T


def moments(q, k, size, order, scale, strict):
    """States (N, d) of q, k (N, d)."""
    c, past = [], []
    state = subtracted = np.zeros(q.shape[1])
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        w = basis(size if strict else stop - start, order)
        total, rows = np.zeros(q.shape[1]), []
        for t in range(start, stop):
            total = total + q[t]
            if not past:
                rows.append(total)
                continue
            seen = range(start, t + 1 if strict else stop)
            asked = sum(np.outer(w[s - start], k[s]) for s in seen)
            weights = softmax([complex(scale * (asked * m).sum()) for m in past])
            inject = state + w[t - start] @ sum(p * m for p, m in zip(weights, past, strict=True))
            rows.append(total + inject - subtracted)
        if past:
            subtracted = inject
        c += rows
        past.append(sum(np.outer(w[i], row) for i, row in enumerate(rows)))
        state = rows[-1]
    return np.array(c)


def context_pulse_attention(
    x,
    params,
    *,
    variant,
    n_heads=1,
    chunk_size=16,
    poly_order=1,
    decay=0.9,
    mask=True,
    strict_causal=False,
    wedge_kind="published",
    rotates=True,
    normalises=True,
):
    """The whole layer; x (B, N, d), result complex."""
    out = []
    for sample in x:
        q, k, v = (
            np.array(np.split(sample @ params[name].T, n_heads, axis=1)) for name in ("W_Q", "W_K", "W_V")
        )
        scale = q.shape[2] ** -0.5
        if "b_v" in params:
            v = v + np.array(np.split(params["b_v"], n_heads))[:, None]
        if variant in ("parseval", "chunked"):
            gate = sample @ params["gate_proj.weight"].T + params["gate_proj.bias"]
            q = q * sigmoid(np.array(np.split(gate, n_heads, axis=1)))
        if variant == "leaky":
            q = np.array([leaky_scan(head, decay) for head in q])
        elif variant == "parseval":
            q = np.array([leaky_scan(head, sigmoid(params["decay_logit"][0])) for head in q])
        elif variant == "chunked":
            q = np.array([chunked(*pair, chunk_size, scale) for pair in zip(q, k, strict=True)])
        elif variant == "alpert":
            how = chunk_size, poly_order, scale, strict_causal
            q = np.array([moments(*pair, *how) for pair in zip(q, k, strict=True)])
        sink = {}
        if variant in ("parseval", "chunked", "alpert"):
            over = "point" if variant != "parseval" else "running" if strict_causal else "sample"
            if normalises:
                q, k = normalise(q, k, over)
            q, k = q.astype(complex), k.astype(complex)
            turn = partial(rotary, speed=float(rotates))
            for h, a in enumerate(params["A"]):
                if wedge_kind == "relative":
                    q[h], k[h] = turn(wedge(q[h], a)), turn(k[h])
                elif variant == "alpert":
                    q[h], k[h] = turn(wedge(q[h], a)), turn(wedge(k[h], a))
                else:
                    q[h], k[h] = wedge(turn(q[h]), a), wedge(turn(k[h]), a)
            sink = {"sink": params["sink"].ravel(), "sink_value": params["v_null"].reshape(n_heads, -1)}
        mixed, _ = softmax_attention(q, k, v, scale=scale, causal=mask, **sink)
        row = np.concatenate(list(mixed), axis=1)
        if "W_O" in params:
            row = row @ params["W_O"].T
        out.append(row + params.get("b_o", 0.0))
    return np.array(out)
