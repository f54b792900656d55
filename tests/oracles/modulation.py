"""Attention residuals over phases, one scalar at a time.

Mask m_ij = 1 where i != j, K_ij != 0 and |i - j| <= block_size; attention A_h = softmax over the unmasked
columns of q_h,i . k_h,j / (sqrt(d_h) tau_h); O = concat_h(A_h V_h) W_O; unit outputs O_i / (|O_i| + 1e-12);
a_ij = m_ij (1 + o_i . o_j) / 2; K' = ((K (1 + lambda a)) + its transpose) / 2 with a zero diagonal.
"""

from __future__ import annotations

import math

import numpy as np


def features(angle, d):
    """[cos x, sin x, cos 2x, sin 2x, ...] of one phase, d entries."""
    values = []
    for k in range(1, d // 2 + 1):
        values += [math.cos(k * angle), math.sin(k * angle)]
    return values


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def project(x, w):
    """x W for one head: x has d entries, w is (d, d_h)."""
    return [dot(x, [float(w[row][column]) for row in range(len(x))]) for column in range(len(w[0]))]


class Attention:
    """Keys and values of all oscillators; a query, and so a unit output, comes one row at a time."""

    def __init__(self, knm, theta, w_q, w_k, w_v, w_o, block_size=None, temperature=1.0):
        self.knm, self.w_q, self.w_o, self.block_size = knm, w_q, w_o, block_size
        self.heads, self.d, self.d_h = (int(size) for size in np.shape(w_q))
        self.temperature = [float(t) for t in np.broadcast_to(temperature, (self.heads,))]
        self.x = [features(float(angle), self.d) for angle in theta]
        self.keys = [[project(x, w_k[h]) for x in self.x] for h in range(self.heads)]
        self.values = [[project(x, w_v[h]) for x in self.x] for h in range(self.heads)]

    def unmasked(self, i, j):
        near = self.block_size is None or abs(i - j) <= self.block_size
        return i != j and near and float(self.knm[i][j]) != 0.0

    def head(self, i, h):
        """Row i of A_h V_h."""
        query = project(self.x[i], self.w_q[h])
        scale = math.sqrt(self.d_h) * self.temperature[h]
        logits = {j: dot(query, self.keys[h][j]) / scale for j in range(len(self.x)) if self.unmasked(i, j)}
        if not logits:
            return [0.0] * self.d_h
        largest = max(logits.values())
        weights = {j: math.exp(logit - largest) for j, logit in logits.items()}
        total = math.fsum(weights.values())
        return [
            math.fsum(p * self.values[h][j][e] for j, p in weights.items()) / total for e in range(self.d_h)
        ]

    def unit_output(self, i):
        joined = [entry for h in range(self.heads) for entry in self.head(i, h)]
        output = project(joined, self.w_o)
        norm = math.sqrt(dot(output, output))
        return [entry / (norm + 1e-12) for entry in output]

    def agreement(self, i, j, unit_i, unit_j):
        """a_ij, zero where the pair is masked."""
        return 0.5 * (1.0 + dot(unit_i, unit_j)) if self.unmasked(i, j) else 0.0


def modulate(knm, theta, w_q, w_k, w_v, w_o, *, block_size=None, temperature=1.0, lambda_=0.5, rows=None):
    """K' at the entries (i, j) with both indices in `rows` (None: all), as a dense square array."""
    rows = range(len(theta)) if rows is None else rows
    if lambda_ == 0.0:
        return np.array([[float(knm[i][j]) for j in rows] for i in rows]).reshape(len(rows), len(rows))
    attention = Attention(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature)
    units = {i: attention.unit_output(i) for i in rows}
    result = np.zeros((len(rows), len(rows)))
    for p, i in enumerate(rows):
        for q, j in enumerate(rows):
            if i != j:
                there = float(knm[i][j]) * (1.0 + lambda_ * attention.agreement(i, j, units[i], units[j]))
                back = float(knm[j][i]) * (1.0 + lambda_ * attention.agreement(j, i, units[j], units[i]))
                result[p, q] = 0.5 * (there + back)
    return result


def factors(knm, theta, w_q, w_k, w_v, w_o, *, block_size=None, temperature=1.0):
    """The unit outputs, (N, d)."""
    attention = Attention(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature)
    return np.array([attention.unit_output(i) for i in range(len(theta))])


def default_projections(n_heads, seed, d_model):
    """Standard normals of one generator in the order q, k, v, o, scaled by sqrt(1 / ((d + d_h) / 2))."""
    d_h = d_model // n_heads
    rng = np.random.default_rng(seed)
    scale = math.sqrt(1.0 / ((d_model + d_h) / 2.0))
    shapes = [(n_heads, d_model, d_h)] * 3 + [(n_heads * d_h, d_model)]
    return tuple(rng.standard_normal(shape) * scale for shape in shapes)
