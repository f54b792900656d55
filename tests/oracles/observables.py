"""Order parameters, entropy production and Lyapunov spectra, written out."""

from __future__ import annotations

import math

import numpy as np

from .kuramoto import derivative, lag

TWO_PI = 2.0 * math.pi


def order_parameter(theta):
    """Length and angle in [0, 2 pi) of the mean of exp(i theta); (0, 0) of nobody."""
    if len(theta) == 0:
        return 0.0, 0.0
    x = math.fsum(math.cos(angle) for angle in theta) / len(theta)
    y = math.fsum(math.sin(angle) for angle in theta) / len(theta)
    return min(1.0, math.hypot(x, y)), math.atan2(y, x) % TWO_PI


def layer_coherence(theta, indices):
    return order_parameter([theta[i] for i in indices])[0]


def plv(a, b):
    return order_parameter([x - y for x, y in zip(a, b, strict=True)])[0]


def entropy_production_rate(theta, omega, knm, alpha, dt):
    """dt * sum_i (omega_i + alpha / N * sum_j K_ij sin(theta_j - theta_i))^2."""
    n = len(theta)
    total = 0.0
    for i in range(n):
        pull = math.fsum(float(knm[i][j]) * math.sin(theta[j] - theta[i]) for j in range(n))
        total += (float(omega[i]) + alpha / n * pull) ** 2
    return dt * total


def jacobian(theta, knm, zeta, psi, alpha):
    n = len(theta)
    matrix = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                slope = float(knm[i][j]) * math.cos(theta[j] - theta[i] - lag(alpha, i, j))
                matrix[i, j] += slope
                matrix[i, i] -= slope
        matrix[i, i] -= zeta * math.cos(psi - theta[i])
    return matrix


def orthonormalise(vectors):
    """Modified Gram-Schmidt in order, twice; columns become orthonormal, their lengths come back."""
    lengths = []
    for c in range(vectors.shape[1]):
        for _ in range(2):
            for p in range(c):
                vectors[:, c] -= (vectors[:, p] @ vectors[:, c]) * vectors[:, p]
        lengths.append(math.sqrt(vectors[:, c] @ vectors[:, c]))
        vectors[:, c] /= lengths[-1]
    return lengths


def lyapunov_spectrum(
    theta, omega, knm, alpha=None, *, dt=0.01, n_steps=1000, qr_interval=10, zeta=0.0, psi=0.0, k=None
):
    """RK4 on phases and all tangent vectors together; the k largest exponents, descending."""
    n = len(theta)
    state = np.array([float(angle) for angle in theta])
    tangents = np.eye(n)
    if zeta == 0.0:
        tangents[:, 0] = 1.0 / math.sqrt(n)
    orthonormalise(tangents)

    def slopes(phases, vectors):
        field = np.array(derivative(list(phases), omega, knm, zeta, psi, alpha))
        return field, jacobian(phases, knm, zeta, psi, alpha) @ vectors

    growth = np.zeros(tangents.shape[1])
    for step in range(1, n_steps + 1):
        k1, v1 = slopes(state, tangents)
        k2, v2 = slopes(state + 0.5 * dt * k1, tangents + 0.5 * dt * v1)
        k3, v3 = slopes(state + 0.5 * dt * k2, tangents + 0.5 * dt * v2)
        k4, v4 = slopes(state + dt * k3, tangents + dt * v3)
        state = state + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        tangents = tangents + dt / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
        if step % qr_interval == 0 or step == n_steps:
            growth += [math.log(length) for length in orthonormalise(tangents)]
    return np.sort(growth / (n_steps * dt))[::-1][:k]
