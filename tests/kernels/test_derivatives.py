"""The kernels of derivatives themselves: parity, statuses, embedding in a user's compiled code.

Sizes are small: the whole file also runs with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from oracles import derivatives as oracle
from samples import network, relative, symmetric

from spo_fast import default_projections, kernels, simulate_vjp
from spo_fast.backends import derivatives as backends
from spo_fast.backends.status import Status
from spo_fast.validation import as_sparse_coupling

NAMES = ("knm", "theta", "w_q", "w_k", "w_v", "w_o", "temperature", "lambda_")
TOLERANCE = 1e-11


def case(rng, n=5, heads=2, width=4, density=1.0, temperature=1.0):
    """Arguments of the kernel up to `lambda_`, and a gradient."""
    knm, theta = symmetric(rng, n, density, low=-1.0), rng.uniform(-9.0, 9.0, n)
    tau = np.full(heads, temperature)
    return [knm, theta, *default_projections(heads, 1, width), -1, tau, 0.7], rng.standard_normal((n, n))


def room(arguments, values=None):
    knm, theta, *weights, _, tau, _ = arguments
    first = knm if values is None else values
    return [np.full(np.shape(a), np.nan) for a in (first, theta, *weights, tau, np.zeros(1))]


def expected_gradients(arguments, grad):
    *arrays, block_size, tau, lambda_ = arguments
    given = dict(zip(NAMES, (*arrays, tau, np.array([lambda_])), strict=True))
    band = None if block_size < 0 else block_size
    return oracle.gradients(lambda **by: oracle.modulate(**by, block_size=band), given, grad)


def agree(found, expected):
    floor = 1e-3 * max(float(np.max(np.abs(value), initial=0.0)) for value in expected.values())
    for name, value in zip(NAMES, found, strict=True):
        assert relative(value, expected[name], floor) <= TOLERANCE, name


CASES = {
    "full": {},
    "edges missing": {"density": 0.5},
    "cold": {"temperature": 0.01},
    "wide": {"heads": 1, "width": 10},
    "narrow": {"heads": 4, "width": 4},
    "one": {"n": 1},
    "none": {"n": 0},
}


@pytest.mark.parametrize("block_size", [-1, 2, 50])
@pytest.mark.parametrize("name", CASES)
def test_dense(name, block_size, rng):
    arguments, grad = case(rng, **CASES[name])
    arguments[6] = block_size
    found = room(arguments)
    before = grad.copy()
    assert kernels.modulate_vjp(*arguments, grad, *found) == Status.OK
    agree(found, expected_gradients(arguments, grad))
    assert np.array_equal(grad, before)


@pytest.mark.parametrize("block_size", [-1, 2])
@pytest.mark.parametrize("name", CASES)
def test_sparse(name, block_size, rng):
    sparse = pytest.importorskip("scipy.sparse")
    arguments, grad = case(rng, **CASES[name])
    arguments[6] = block_size
    coupling = as_sparse_coupling(sparse.csr_array(arguments[0]), symmetric=True)
    places, mirror = (coupling.rows(), coupling.indices), backends.mirror_of(coupling)
    given = (coupling.indptr, coupling.indices, coupling.data, coupling.mean, mirror, *arguments[1:])
    found = room(arguments, coupling.data)
    assert kernels.modulate_sparse_vjp(*given, grad[places], *found) == Status.OK
    held = np.zeros_like(grad)
    held[places] = grad[places]
    expected = expected_gradients(arguments, held)
    agree(found, expected | {"knm": expected["knm"][places]})


def test_not_quite_symmetric(rng):
    arguments, grad = case(rng, density=0.7)
    arguments[0][0, 3], arguments[0][3, 0] = 3e-13, 0.0
    found = room(arguments)
    assert kernels.modulate_vjp(*arguments, grad, *found) == Status.OK
    agree(found, expected_gradients(arguments, grad))


@pytest.mark.parametrize(
    "place, value, status",
    [
        (0, np.zeros((4, 4)), Status.INVALID_ARGUMENT),
        (5, np.zeros((4, 2)), Status.INVALID_ARGUMENT),
        (6, -2, Status.INVALID_ARGUMENT),
        (8, -1.0, Status.INVALID_ARGUMENT),
        (9, np.zeros((4, 4)), Status.INVALID_ARGUMENT),
        (10, np.zeros((4, 4)), Status.INVALID_ARGUMENT),
        (11, np.zeros(4), Status.INVALID_ARGUMENT),
        (12, np.zeros((2, 4, 3)), Status.INVALID_ARGUMENT),
        (17, np.zeros(2), Status.INVALID_ARGUMENT),
        (0, np.triu(np.ones((5, 5)), 1), Status.ASYMMETRIC_COUPLING),
        (1, np.full(5, np.nan), Status.NONFINITE_PHASE),
    ],
)
def test_what_does_not_fit_is_refused(place, value, status, rng):
    arguments, grad = case(rng)
    given = [*arguments, grad, *room(arguments)]
    given[place] = value
    assert kernels.modulate_vjp(*given) == status
    assert all(np.isnan(array).all() for i, array in enumerate(given[10:], 10) if i != place)


@pytest.mark.parametrize("place", ["mirror", "grad", "lambda_", "w_o", "ddata", "dlambda"])
def test_edges_that_do_not_fit_are_refused(place, rng):
    sparse = pytest.importorskip("scipy.sparse")
    arguments, _ = case(rng)
    coupling = as_sparse_coupling(sparse.csr_array(arguments[0]), symmetric=True)
    pattern = (coupling.indptr, coupling.indices, coupling.data, coupling.mean)
    mirror, grad, found = backends.mirror_of(coupling), coupling.data.copy(), room(arguments, coupling.data)
    if place == "mirror":
        mirror[3] = coupling.data.size
    elif place == "grad":
        grad = grad[1:]
    elif place == "lambda_":
        arguments[8] = np.nan
    elif place == "w_o":
        arguments[5] = np.zeros((4, 2))
    elif place == "ddata":
        found[0] = found[0][1:]
    else:
        found[-1] = np.zeros(0)
    assert (
        kernels.modulate_sparse_vjp(*pattern, mirror, *arguments[1:], grad, *found) == Status.INVALID_ARGUMENT
    )


def test_descent_in_compiled_code_of_the_user(rng):
    arguments, _ = case(rng, 6)
    knm, theta, w_q, w_k, w_v, w_o, block_size, tau, lambda_ = arguments

    @njit
    def learn(knm, theta, w_q, w_k, w_v, w_o, tau, steps, rate, totals, found):
        out, grad = np.empty_like(knm), -np.ones_like(knm)
        dk, dtheta, dq, dkey, dv, do, dtau, dl = found
        for step in range(steps):
            kernels.modulate(knm, theta, w_q, w_k, w_v, w_o, block_size, tau, lambda_, out)
            totals[step] = out.sum()
            kernels.modulate_vjp(
                knm, theta, w_q, w_k, w_v, w_o, block_size, tau, lambda_, grad,
                dk, dtheta, dq, dkey, dv, do, dtau, dl,
            )  # fmt: skip
            w_v -= rate * dv

    knm, totals = np.abs(knm), np.empty(5)
    found = tuple(room([knm, theta, w_q, w_k, w_v, w_o, block_size, tau, lambda_]))
    learn(knm, theta, w_q, w_k, w_v.copy(), w_o, tau, 5, 0.02, totals, found)
    assert (np.diff(totals) > 0.0).all()


RUNS = {
    "plain": {},
    "euler": {"method": "euler"},
    "lags": {"alpha": 1.0, "zeta": 0.3, "psi": 0.8},
    "odd and many": {"n_steps": 5, "zeta": 1.0},
}


@pytest.mark.parametrize("kept_sparse", [False, True])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("n", [3, 6])
def test_steps(name, n, kept_sparse, rng):
    theta, omega, knm, lags = network(rng, n)
    knm += np.eye(n)  # every entry of the lags has one
    options = {"dt": 0.2, "n_steps": 3, "method": "rk4", **RUNS[name]}
    alpha = lags if "alpha" in options else np.zeros((n, n))
    drive = np.array([options.get("zeta", 0.0), options.get("psi", 0.0)])
    given = {"theta": theta, "omega": omega, "knm": knm, "alpha": alpha, "drive": drive}
    settings = {name: options[name] for name in ("dt", "n_steps", "method")}
    grad = rng.standard_normal(n)
    expected = oracle.gradients(lambda **by: oracle.trajectory(*by.values(), **settings)[-1], given, grad)
    form = pytest.importorskip("scipy.sparse").csr_array if kept_sparse else np.asarray
    if "alpha" in options:
        options["alpha"] = form(alpha)
    found = simulate_vjp(theta, omega, form(knm), grad, **options, backend="numba")
    values = {"theta": found.theta, "omega": found.omega, "knm": found.knm}
    if "alpha" in options:
        values["alpha"] = found.alpha
    floor = 1e-3 * np.abs(expected["knm"]).max()
    for name, value in values.items():
        dense = value if isinstance(value, np.ndarray) else value.toarray()
        assert relative(dense, expected[name], floor) <= TOLERANCE, name
    assert np.allclose([found.zeta, found.psi], expected["drive"], rtol=1e-11, atol=1e-12)
