"""Networks whose solution is known on paper."""

from __future__ import annotations

import numpy as np
import pytest
from samples import METHODS, circle_gap

import spo_fast


def all_to_all(n, strength):
    """K / N without self-coupling."""
    return strength / n * (1.0 - np.eye(n))


def pair(strength):
    return np.array([[0.0, strength], [strength, 0.0]])


@pytest.mark.parametrize("method", METHODS)
def test_two_oscillators_lock(backend, method):
    """phi = theta_1 - theta_0 obeys phi' = dw - 2 K sin(phi): it comes to rest at asin(dw / 2 K)."""
    keywords = {
        "dt": 0.02,
        "n_steps": 4000,
        "method": method,
        "atol": 1e-10,
        "rtol": 1e-10,
        "backend": backend,
    }
    final = spo_fast.simulate([0.0, 2.0], [1.0, 1.6], pair(0.5), **keywords).final
    assert circle_gap(final[1] - final[0], np.arcsin(0.6)) <= 1e-8


def test_two_oscillators_beat(backend):
    """Beyond locking the difference gains a full turn in 2 pi / sqrt(dw^2 - 4 K^2)."""
    detuning, strength, n_steps = 2.0, 0.6, 4000
    period = 2.0 * np.pi / np.sqrt(detuning**2 - 4.0 * strength**2)
    run = spo_fast.simulate(
        [0.0, 0.4],
        [1.0, 1.0 + detuning],
        pair(strength),
        dt=period / n_steps,
        n_steps=n_steps,
        record_every=1,
        backend=backend,
    )
    difference = np.unwrap(run.theta[:, 1] - run.theta[:, 0])
    assert difference[-1] - difference[0] == pytest.approx(2.0 * np.pi, abs=1e-9)


@pytest.mark.parametrize("method", ["rk4", "rk45"])
def test_two_oscillators_relax(backend, method):
    """Without detuning tan(phi / 2) decays as exp(-2 K t)."""
    run = spo_fast.simulate(
        [0.0, 2.5],
        0.3,
        pair(0.7),
        dt=0.005,
        n_steps=300,
        method=method,
        atol=1e-11,
        rtol=1e-11,
        record_every=20,
        backend=backend,
    )
    expected = 2.0 * np.arctan(np.tan(1.25) * np.exp(-1.4 * run.t))
    assert circle_gap(run.theta[:, 1] - run.theta[:, 0], expected) <= 1e-8


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_common_frequency_under_a_uniform_lag(backend, method, full):
    """Identical oscillators turn together at omega - K (N - 1) / N sin(alpha)."""
    n, strength, lag, omega = 10, 1.5, 0.4, 0.7
    frequency = omega - strength * (n - 1) / n * np.sin(lag)
    assert frequency == pytest.approx(0.174285, abs=1e-6)
    alpha = np.full((n, n), lag) if full else lag
    run = spo_fast.simulate(
        np.full(n, 0.2),
        omega,
        all_to_all(n, strength),
        alpha=alpha,
        dt=0.05,
        n_steps=100,
        method=method,
        record_every=1,
        backend=backend,
    )
    assert circle_gap(run.theta, 0.2 + frequency * run.t[:, None]) <= 2e-12


@pytest.mark.parametrize("lag, radius", [(1.5, 1.0), (1.7, 0.0)])
def test_synchrony_attracts_up_to_a_quarter_turn_of_lag(backend, rng, lag, radius):
    n = 10
    theta = rng.normal(0.0, 0.5, n)
    run = spo_fast.simulate(
        theta, 0.7, all_to_all(n, 1.5), alpha=lag, dt=0.2, n_steps=2500, observe=("R",), backend=backend
    )
    assert run.R[-1] == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize("method", ["rk4", "rk45"])
def test_driven_oscillator_relaxes_onto_the_drive(backend, method):
    """theta' = zeta sin(psi - theta): tan((theta - psi) / 2) decays as exp(-zeta t)."""
    run = spo_fast.simulate(
        [3.0],
        0.0,
        [[0.0]],
        zeta=0.8,
        psi=1.0,
        dt=0.005,
        n_steps=300,
        method=method,
        atol=1e-11,
        rtol=1e-11,
        record_every=20,
        backend=backend,
    )
    assert circle_gap(run.theta[:, 0], 1.0 + 2.0 * np.arctan(np.tan(1.0) * np.exp(-0.8 * run.t))) <= 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_driven_oscillator_locks(backend, method):
    """omega + zeta sin(psi - theta) vanishes at theta = psi + asin(omega / zeta)."""
    keywords = {
        "dt": 0.02,
        "n_steps": 3000,
        "method": method,
        "atol": 1e-10,
        "rtol": 1e-10,
        "backend": backend,
    }
    final = spo_fast.simulate([0.0], 0.5, [[0.0]], zeta=1.0, psi=4.0, **keywords).final
    assert circle_gap(final[0], 4.0 + np.arcsin(0.5)) <= 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_isolated_oscillators_rotate(backend, method):
    theta, omega = np.array([0.1, 3.0, 6.0]), np.array([1.0, -2.0, 0.0])
    run = spo_fast.simulate(
        theta, omega, np.zeros((3, 3)), dt=0.03, n_steps=200, method=method, record_every=7, backend=backend
    )
    assert circle_gap(run.theta, theta + omega * run.t[:, None]) <= 1e-11


def test_splay_state_stands_still(backend):
    """Equally spaced phases feel no net pull: they turn at their own frequency and R = 0."""
    theta = 2.0 * np.pi * np.arange(8) / 8
    run = spo_fast.simulate(theta, 0.5, all_to_all(8, -1.0), dt=0.05, n_steps=100, backend=backend)
    assert run.R.max() <= 1e-12
    assert circle_gap(run.final, theta + 0.5 * run.t[-1]) <= 1e-12


# ---------------------------------------------------------------- Lyapunov


def test_lyapunov_spectrum_of_synchrony():
    """K / N all to all, in step: 0 along the orbit and -K across it, N - 1 times."""
    spectrum = spo_fast.lyapunov_spectrum(np.full(6, 0.3), 0.7, all_to_all(6, 1.2), dt=0.01, n_steps=400)
    np.testing.assert_allclose(spectrum, [0.0] + [-1.2] * 5, rtol=0, atol=1e-8)


def test_lyapunov_spectrum_of_synchrony_under_a_lag():
    """The lag weakens the pull to K cos(alpha)."""
    spectrum = spo_fast.lyapunov_spectrum(np.full(6, 0.3), 0.7, all_to_all(6, 1.2), 0.4, dt=0.01, n_steps=400)
    np.testing.assert_allclose(spectrum, [0.0] + [-1.2 * np.cos(0.4)] * 5, rtol=0, atol=1e-8)


def test_lyapunov_spectrum_of_isolated_oscillators():
    spectrum = spo_fast.lyapunov_spectrum([0.1, 2.0, 4.0], [1.0, -1.0, 0.3], np.zeros((3, 3)), n_steps=100)
    np.testing.assert_allclose(spectrum, np.zeros(3), rtol=0, atol=1e-13)


def test_lyapunov_exponent_of_a_locked_oscillator():
    """-sqrt(zeta^2 - omega^2) at the locked phase."""
    start = [4.0 + np.arcsin(0.5)]
    spectrum = spo_fast.lyapunov_spectrum(start, [0.5], [[0.0]], dt=0.01, n_steps=300, zeta=1.0, psi=4.0)
    assert spectrum == pytest.approx([-np.sqrt(0.75)], abs=1e-9)
