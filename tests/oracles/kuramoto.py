"""Driven Kuramoto-Sakaguchi networks: a double loop and three steppers on Python lists.

d theta_i / dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i)
"""

from __future__ import annotations

import math

TWO_PI = 2.0 * math.pi

# Dormand and Prince 5(4), typed from the paper's table: stages, solution weights, embedded weights.
A = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
B5 = [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0]
B4 = [5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40]


def wrap(angle):
    """Into [0, 2 pi); a result that rounds to 2 pi is 0."""
    result = math.fmod(angle, TWO_PI)
    if result < 0.0:
        result += TWO_PI
    return 0.0 if result >= TWO_PI else result


def lag(alpha, i, j):
    if alpha is None:
        return 0.0
    return float(alpha) if isinstance(alpha, (int, float)) else float(alpha[i][j])


def derivative(theta, omega, knm, zeta=0.0, psi=0.0, alpha=None):
    n = len(theta)
    result = []
    for i in range(n):
        pulls = [float(knm[i][j]) * math.sin(theta[j] - theta[i] - lag(alpha, i, j)) for j in range(n)]
        result.append(math.fsum([float(omega[i]), *pulls, zeta * math.sin(psi - theta[i])]))
    return result


def moved(theta, dt, weights, slopes):
    """theta + dt * sum_k weights_k slopes_k."""
    pairs = list(zip(weights, slopes, strict=False))
    return [angle + dt * math.fsum(w * k[i] for w, k in pairs) for i, angle in enumerate(theta)]


def euler_step(theta, dt, field):
    return [wrap(angle) for angle in moved(theta, dt, [1.0], [field(theta)])]


def rk4_step(theta, dt, field):
    k1 = field(theta)
    k2 = field(moved(theta, dt, [0.5], [k1]))
    k3 = field(moved(theta, dt, [0.5], [k2]))
    k4 = field(moved(theta, dt, [1.0], [k3]))
    return [wrap(angle) for angle in moved(theta, dt, [1 / 6, 1 / 3, 1 / 3, 1 / 6], [k1, k2, k3, k4])]


def rk45_attempt(theta, dt, field, atol, rtol):
    """The unwrapped fifth-order state and the error norm."""
    slopes = []
    for row in A:
        slopes.append(field(moved(theta, dt, row, slopes)))
    y5, y4 = moved(theta, dt, B5, slopes), moved(theta, dt, B4, slopes)
    ratios = [
        abs(high - low) / (atol + rtol * max(abs(start), abs(high)))
        for high, low, start in zip(y5, y4, theta, strict=True)
    ]
    return y5, max(ratios, default=0.0)


def rk45_step(theta, dt, field, dt0, atol, rtol):
    """New wrapped state, the step taken and the step that the next one will try."""
    for _ in range(4):
        taken = dt
        y5, error = rk45_attempt(theta, taken, field, atol, rtol)
        if error <= 1.0:
            growth = 5.0 if error == 0.0 else min(5.0, 0.9 * error**-0.2)
            dt = min(taken * growth, 10.0 * dt0)
            break
        dt = taken * max(0.2, 0.9 * error**-0.25)
    return [wrap(angle) for angle in y5], taken, dt


class Run:
    """One trajectory: `step()` advances it, `theta`, `t` and `dt` tell where it is."""

    def __init__(
        self, theta, omega, knm, *, dt, method="rk4", zeta=0.0, psi=0.0, alpha=None, atol=1e-6, rtol=1e-3
    ):
        self.theta = [wrap(float(angle)) for angle in theta]
        self.omega, self.knm, self.zeta, self.psi, self.alpha = (omega, knm, zeta, psi, alpha)
        self.dt0, self.dt, self.method, self.atol, self.rtol = (dt, dt, method, atol, rtol)
        self.t = 0.0

    def field(self, theta):
        return derivative(theta, self.omega, self.knm, self.zeta, self.psi, self.alpha)

    def step(self):
        taken = self.dt
        if self.method == "rk45":
            arguments = (self.theta, self.dt, self.field, self.dt0, self.atol, self.rtol)
            self.theta, taken, self.dt = rk45_step(*arguments)
        else:
            stepper = {"euler": euler_step, "rk4": rk4_step}[self.method]
            self.theta = stepper(self.theta, self.dt, self.field)
        self.t += taken
        return self.theta


def trajectory(theta, omega, knm, *, n_steps, **keywords):
    """States at steps 0..n_steps, the times, and the step to be tried after each."""
    run = Run(theta, omega, knm, **keywords)
    states, times, steps = [run.theta], [0.0], []
    for _ in range(n_steps):
        states.append(run.step())
        times.append(run.t)
        steps.append(run.dt)
    return states, times, steps
