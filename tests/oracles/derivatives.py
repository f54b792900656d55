"""Derivatives by complex steps of the formulas as they are written.

For an analytic f, the imaginary part of f(x + i h) / h is its derivative without a difference of nearly equal
numbers: with h = 1e-30 it is as exact as f itself (W. Squire, G. Trapp, SIAM Rev. 40 (1998) 110). Masks and
the choice of a largest logit go by real parts.
"""

from __future__ import annotations

import numpy as np

STEP = 1e-30


def features(theta, d):
    x = np.empty((theta.size, d), complex)
    for m in range(d // 2):
        x[:, 2 * m], x[:, 2 * m + 1] = np.cos((m + 1) * theta), np.sin((m + 1) * theta)
    return x


def sees(knm, i, j, block_size):
    return i != j and knm[i, j].real != 0.0 and (block_size is None or abs(i - j) <= block_size)


def unit_outputs(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature):
    heads, d, width = w_q.shape
    x, units = features(theta, d), np.zeros((theta.size, d), complex)
    for i in range(theta.size):
        joined = np.zeros(d, complex)
        keys = [j for j in range(theta.size) if sees(knm, i, j, block_size)]
        for h in range(heads if keys else 0):
            query = x[i] @ w_q[h]
            logits = np.array([query @ (x[j] @ w_k[h]) for j in keys]) / (np.sqrt(width) * temperature[h])
            weights = np.exp(logits - logits.real.max())
            values = np.array([x[j] @ w_v[h] for j in keys])
            joined[h * width : (h + 1) * width] = weights @ values / weights.sum()
        output = joined @ w_o
        square = (output * output).sum()
        units[i] = output / (np.sqrt(square) + 1e-12) if square else output
    return units


def modulate(knm, theta, w_q, w_k, w_v, w_o, temperature, lambda_, *, block_size=None):
    n, units = theta.size, unit_outputs(knm, theta, w_q, w_k, w_v, w_o, block_size, temperature)
    out = np.zeros((n, n), complex)
    for i in range(n):
        for j in range(n):
            for a, b in ((i, j), (j, i)) if i != j else ():
                agreement = 0.5 * (1.0 + units[a] @ units[b]) if sees(knm, a, b, block_size) else 0.0
                out[i, j] += 0.5 * knm[a, b] * (1.0 + lambda_[0] * agreement)
    return out


def drift(theta, omega, knm, alpha, drive):
    f = omega + drive[0] * np.sin(drive[1] - theta)
    for i in range(theta.size):
        for j in range(theta.size):
            f[i] += knm[i, j] * np.sin(theta[j] - theta[i] - alpha[i, j])
    return f


def trajectory(theta, omega, knm, alpha, drive, weights=(), *, dt, n_steps, method, every=1, block_size=None):
    """States at steps 0 ... n_steps, not wrapped; `weights` are those of a modulation, from w_q on."""
    states, used = [theta], knm
    for step in range(n_steps):
        if weights and step % every == 0:
            used = modulate(knm, theta, *weights, block_size=block_size)
        k1 = drift(theta, omega, used, alpha, drive)
        if method == "euler":
            theta = theta + dt * k1
        else:
            k2 = drift(theta + dt / 2 * k1, omega, used, alpha, drive)
            k3 = drift(theta + dt / 2 * k2, omega, used, alpha, drive)
            k4 = drift(theta + dt * k3, omega, used, alpha, drive)
            theta = theta + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(theta)
    return np.array(states)


def gradients(function, arguments, weights):
    """Gradients of sum(function(**arguments) * weights) at each entry of each argument, all arrays."""
    found = {}
    for name, value in arguments.items():
        found[name] = np.zeros(value.shape)
        for index in np.ndindex(value.shape):
            moved = value.astype(complex)
            moved[index] += 1j * STEP
            out = function(**{n: v.astype(complex) for n, v in arguments.items()} | {name: moved})
            found[name][index] = (out.imag * weights).sum() / STEP
    return found
