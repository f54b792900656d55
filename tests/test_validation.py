"""Every refusal, through the public functions: the argument is named, and so is what came."""

from __future__ import annotations

import array
from fractions import Fraction

import numpy as np
import pytest

import spo_fast
from spo_fast import validation

N = 4
W_Q, W_K, W_V, W_O = spo_fast.default_projections()


def coupling(entries=None, dtype=float):
    knm = np.ones((N, N)) - np.eye(N)
    for (i, j), value in (entries or {}).items():
        knm[i, j] = value
    return knm.astype(dtype)


def hidden(value):
    """A list of lists in which one entry is something else."""
    rows = coupling().tolist()
    rows[1][2] = value
    return rows


def read_only():
    out = np.zeros((N, N))
    out.flags.writeable = False
    return out


def misaligned():
    return np.zeros(8 * N * N + 1, dtype=np.uint8)[1:].view(float).reshape(N, N)


def with_nan(weight):
    spoiled = weight.copy()
    spoiled.flat[3] = np.nan
    return spoiled


class Broken:
    """An object whose conversion fails."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("not today")


def bad_arrays(shape):
    """Data that is no real number, as (value, what the message must hold)."""
    zeros = np.zeros(shape)
    return [
        (zeros.astype(bool), "bool"),
        (zeros.astype(complex), "complex128"),
        (zeros.astype(str), "<U32"),
        (zeros.astype(bytes), "S32"),
        (zeros.astype(object), "object"),
        (zeros.astype("m8[s]"), "timedelta64"),
        (np.ma.zeros(shape), "masked"),
        (Broken(), "not today"),
        ({}, "dict"),
    ]


BAD_COUPLINGS = [
    *bad_arrays((N, N)),
    (hidden(True), r"True at index \(1, 2\)"),
    (hidden(np.True_), r"True_ at index \(1, 2\)"),
    (hidden(1j), "1j"),
    (hidden("1"), "'1'"),
    (hidden(None), "None"),
    (hidden(10**400), "fit float64"),
    ([[0.0, 1.0], [1.0]], "different lengths"),
    (np.zeros((N, N + 1)), r"\(4, 5\)"),
    (np.zeros(N), r"\(4,\)"),
    (np.zeros((2, N, N)), r"\(2, 4, 4\)"),
    (0.0, r"\(\)"),
    (None, "None"),
    (coupling({(1, 2): np.nan, (2, 1): np.nan}), r"nan at index \(1, 2\)"),
    (coupling({(3, 0): np.inf, (0, 3): np.inf}), r"inf at index \(0, 3\)"),
    (coupling({(0, 0): -np.inf}), r"-inf at index \(0, 0\)"),
    (coupling({(1, 2): 1.5}), r"1\.5 at index \(1, 2\) and 1\.0 at index \(2, 1\)"),
    (coupling({(3, 1): 0.0}), r"\(1, 3\)"),
    (coupling({(2, 2): 1e-9}), r"1e-09 at index \(2, 2\)"),
]

BAD_PHASES = [
    *bad_arrays((N,)),
    ([0.0, True, 0.0, 0.0], "True at index 1"),
    ([0.0, 1j, 0.0, 0.0], "1j"),
    (["0", 0.0, 0.0, 0.0], "'0'"),
    (np.zeros((N, 1)), r"\(4, 1\)"),
    (np.zeros((1, N)), r"\(1, 4\)"),
    (np.zeros(N + 1), r"\(5,\)"),
    (0.0, r"\(\)"),
    ([0.0, np.nan, 0.0, 0.0], "nan at index 1"),
    ([0.0, 0.0, 0.0, -np.inf], "-inf at index 3"),
]

BAD_KEYWORDS = [
    ("n_heads", 3, "n_heads must divide .* 8, got 3"),
    ("n_heads", 0, "0"),
    ("n_heads", -1, "-1"),
    ("n_heads", True, "True"),
    ("n_heads", 4.0, r"4\.0"),
    ("n_heads", "4", "'4'"),
    ("n_heads", None, "None"),
    ("n_heads", np.array([4]), r"\(1,\)"),
    ("block_size", 0, "0"),
    ("block_size", -1, "-1"),
    ("block_size", 2.0, r"2\.0"),
    ("block_size", False, "False"),
    ("block_size", "2", "'2'"),
    ("temperature", 0.0, r"0\.0"),
    ("temperature", -1.0, r"-1\.0"),
    ("temperature", np.nan, "nan"),
    ("temperature", np.inf, "inf"),
    ("temperature", True, "True"),
    ("temperature", 1j, "1j"),
    ("temperature", "1", "'1'"),
    ("temperature", None, "None"),
    ("temperature", [1.0, 1.0, 1.0], r"\(3,\)"),
    ("temperature", np.ones((4, 1)), r"\(4, 1\)"),
    ("temperature", [1.0, 1.0, 0.0, 1.0], r"temperature\[2\].*0\.0"),
    ("temperature", [1.0, 1.0, np.nan, 1.0], "nan at index 2"),
    ("temperature", [1.0, 1.0, True, 1.0], "True at index 2"),
    ("temperature", np.ones(4, dtype=bool), "bool"),
    ("temperature", 1e-320, "overflow"),
    ("lambda_", -0.1, r"-0\.1"),
    ("lambda_", np.nan, "nan"),
    ("lambda_", np.inf, "inf"),
    ("lambda_", True, "True"),
    ("lambda_", "0.5", r"'0\.5'"),
    ("lambda_", 1j, "1j"),
    ("lambda_", [0.5], "list"),
    ("projection_seed", -1, "-1"),
    ("projection_seed", True, "True"),
    ("projection_seed", 1.0, r"1\.0"),
    ("projection_seed", None, "None"),
    ("algorithm", "fast", "'fast'"),
    ("algorithm", None, "None"),
    ("algorithm", "sparse", "'sparse'"),
    ("algorithm", "band", "block_size"),
    ("w_q", W_Q[:2], r"\(2, 8, 2\)"),
    ("w_q", W_O, r"\(8, 8\)"),
    ("w_q", np.zeros((4, 7, 2)), r"\(4, 7, 2\)"),
    ("w_k", W_K[:, :6], r"\(4, 6, 2\)"),
    ("w_v", W_V[..., None], r"\(4, 8, 2, 1\)"),
    ("w_o", W_O[:6], r"\(6, 8\)"),
    ("w_q", with_nan(W_Q), r"nan at index \(0, 1, 1\)"),
    ("w_o", with_nan(W_O), r"nan at index \(0, 3\)"),
    ("w_k", W_K.astype(complex), "complex128"),
    ("w_v", W_V > 0, "bool"),
    ("w_o", W_O.astype(object), "object"),
    ("w_q", W_Q * 1e308, "overflow"),
    ("w_v", W_V * 1e200, "overflow"),
]

BAD_OUTPUTS = [
    (np.zeros((N, N), dtype=np.float32), "<f4"),
    (np.zeros((N, N), dtype=">f8"), ">f8"),
    (np.zeros((N, N), dtype=int), "i8"),
    (np.zeros((N, N), order="F"), r"strides \(8, 32\)"),
    (np.zeros((N, 2 * N))[:, ::2], "strides"),
    (np.zeros((N, N + 1)), r"\(4, 5\)"),
    (np.zeros(N * N), r"\(16,\)"),
    (read_only(), "read-only"),
    (misaligned(), "aligned"),
    (np.zeros((N, N)).tolist(), "list"),
    (np.ma.zeros((N, N)), "MaskedArray"),
    (True, "True"),
]

both = pytest.mark.parametrize("use", ["modulate", "Modulator"])


def call(use, knm, theta, out=None, **keywords):
    if use == "modulate":
        return spo_fast.modulate(knm, theta, out=out, **keywords)
    return spo_fast.Modulator(knm, **keywords)(theta, out=out)


def refused(name, what):
    """Expect a ValueError whose message starts with the argument's name and holds what came."""
    return pytest.raises(ValueError, match=rf"^{name}\b.*{what}")


# ---------------------------------------------------------------- modulation


@both
@pytest.mark.parametrize("knm, what", BAD_COUPLINGS)
def test_coupling(backend, use, knm, what):
    with refused("knm", what):
        call(use, knm, np.zeros(N), backend=backend)


@pytest.mark.parametrize("lambda_", [0.0, 0.5])
def test_coupling_is_judged_whatever_the_strength(backend, lambda_):
    for entries in ({(1, 2): 2.0}, {(1, 1): 1.0}, {(1, 2): np.nan}):
        with refused("knm", "index"):
            spo_fast.modulate(coupling(entries), np.zeros(N), lambda_=lambda_, backend=backend)


def test_coupling_is_refused_by_update_too_and_the_old_one_stays(backend):
    modulator = spo_fast.Modulator(coupling(), backend=backend)
    before = modulator(np.arange(4.0))
    with refused("knm", r"\(1, 2\)"):
        modulator.update(coupling({(1, 2): 3.0}))
    assert np.array_equal(modulator(np.arange(4.0)), before)


@both
@pytest.mark.parametrize("theta, what", BAD_PHASES)
def test_phases(backend, use, theta, what):
    with refused("theta", what):
        call(use, coupling(), theta, backend=backend)


@both
@pytest.mark.parametrize("name, value, what", BAD_KEYWORDS)
def test_keywords(backend, use, name, value, what):
    with pytest.raises(ValueError, match=what) as caught:
        call(use, coupling(), np.zeros(N), backend=backend, **{name: value})
    assert name.rstrip("_") in str(caught.value)


@pytest.mark.parametrize("workers", [0, -1, 1.0, True, "1", None])
def test_workers(backend, workers):
    for use in ("modulate", "Modulator"):
        with refused("workers", ""):
            call(use, coupling(), np.zeros(N), workers=workers, backend=backend)
    with refused("workers", ""):
        spo_fast.simulate(np.zeros(N), 1.0, coupling(), dt=0.1, n_steps=1, workers=workers, backend=backend)


@both
@pytest.mark.parametrize("out, what", BAD_OUTPUTS)
def test_output(backend, use, out, what):
    with refused("out", what):
        call(use, coupling(), np.zeros(N), out=out, backend=backend)


def test_output_may_not_overlap_the_coupling(backend):
    knm = coupling()
    buffer = np.zeros(2 * N * N)
    for given, out in [
        (knm, knm),
        (knm.T, knm),
        (buffer[: N * N].reshape(N, N), buffer[N : N + N * N].reshape(N, N)),
        (buffer[::2].reshape(N, N), buffer[: N * N].reshape(N, N)),
    ]:
        before = given.copy()
        with refused("out", "overlap"):
            spo_fast.modulate(given, np.zeros(N), out=out, backend=backend)
        assert np.array_equal(given, before)
    bound = spo_fast.Modulator(knm, backend=backend)
    assert bound(np.zeros(N), out=knm) is knm  # a Modulator works on its own copy


def test_output_is_not_written_when_something_is_refused(backend):
    out = np.full((N, N), 7.0)
    for knm, theta in [(coupling({(1, 2): 2.0}), np.zeros(N)), (coupling(), np.full(N, np.nan))]:
        with pytest.raises(ValueError, match="index"):
            spo_fast.modulate(knm, theta, out=out, backend=backend)
    with pytest.raises(ValueError, match="theta"):
        spo_fast.modulate(coupling(), np.zeros(3), out=out, backend=backend)


@pytest.mark.parametrize(
    "keywords, name",
    [
        ({"n_heads": 3}, "n_heads"),
        ({"n_heads": True}, "n_heads"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.0}, "seed"),
        ({"d_model": 7}, "d_model"),
        ({"d_model": 0}, "d_model"),
        ({"d_model": False}, "d_model"),
    ],
)
def test_default_projections(keywords, name):
    with pytest.raises(ValueError, match=name):
        spo_fast.default_projections(**keywords)


# ---------------------------------------------------------------- what is accepted


def good_couplings():
    knm = coupling({(0, 3): 2.0, (3, 0): 2.0})
    frozen = knm.copy()
    frozen.flags.writeable = False
    spread = np.zeros((2 * N, 2 * N))
    spread[::2, ::2] = knm
    shifted = misaligned()
    shifted[...] = knm
    return [
        knm.astype(np.float32),
        knm.astype(np.float16),
        knm.astype(np.longdouble),
        knm.astype(int),
        knm.astype(np.uint8),
        knm.astype(">f8"),
        np.asfortranarray(knm),
        spread[::2, ::2],
        knm[::-1, ::-1].copy()[::-1, ::-1],
        shifted,
        frozen,
        knm.tolist(),
        tuple(map(tuple, knm.tolist())),
        [array.array("d", row) for row in knm.tolist()],
        [[Fraction(entry) for entry in row] for row in knm.tolist()],
        list(knm),
    ]


@pytest.mark.parametrize("which", range(16))
def test_couplings_of_other_kinds_are_taken(backend, which):
    knm, theta = coupling({(0, 3): 2.0, (3, 0): 2.0}), np.arange(4.0)
    expected = spo_fast.modulate(knm, theta, backend=backend)
    given = good_couplings()[which]
    assert np.array_equal(spo_fast.modulate(given, theta, backend=backend), expected)
    assert np.array_equal(spo_fast.Modulator(given, backend=backend)(theta), expected)


def test_memory_maps_are_read(backend, tmp_path):
    np.save(tmp_path / "knm.npy", coupling())
    np.save(tmp_path / "theta.npy", np.arange(4.0))
    knm, theta = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("knm", "theta"))
    expected = spo_fast.modulate(coupling(), np.arange(4.0), backend=backend)
    assert np.array_equal(spo_fast.modulate(knm, theta, backend=backend), expected)


def test_tolerances_of_the_coupling(backend):
    theta = np.arange(4.0)
    for entries in ({(1, 2): 1.0 + 9e-13}, {(2, 2): 9e-13}, {(1, 2): 1e6 * (1 + 5e-13), (2, 1): 1e6}):
        result = spo_fast.modulate(coupling(entries), theta, backend=backend)
        assert np.array_equal(result, result.T) and not result.diagonal().any()
    for entries in ({(1, 2): 1.0 + 3e-12}, {(2, 2): 2e-12}, {(1, 2): 3e-12, (2, 1): 0.0}):
        with refused("knm", "index"):
            spo_fast.modulate(coupling(entries), theta, backend=backend)


def test_good_arrays_pass_untouched():
    knm, theta = coupling(), np.zeros(N)
    assert validation.as_coupling(knm) is knm and validation.as_phases(theta, N) is theta
    knm.flags.writeable = False
    assert validation.as_coupling(knm) is knm


def test_huge_entries_are_finite():
    validation.explain_nonfinite(knm=np.full((3, 3), 1.5e308))  # their sum is not
    validation.explain_coupling((1.0 - np.eye(3)) * 1.5e308)
    with refused("knm", r"symmetric.*\(0, 1\)"):
        validation.explain_coupling(np.array([[0.0, 1.5e308], [-1.5e308, 0.0]]))


# ---------------------------------------------------------------- integrators

BAD_RUNS = [
    ("dt", 0.0, r"0\.0"),
    ("dt", -0.1, r"-0\.1"),
    ("dt", np.nan, "nan"),
    ("dt", np.inf, "inf"),
    ("dt", True, "True"),
    ("dt", "0.1", r"'0\.1'"),
    ("n_steps", -1, "-1"),
    ("n_steps", 2.0, r"2\.0"),
    ("n_steps", True, "True"),
    ("n_steps", None, "None"),
    ("method", "rk5", "'rk5'"),
    ("method", None, "None"),
    ("method", 4, "4"),
    ("alpha", np.zeros((N, 1)), r"\(4, 1\)"),
    ("alpha", np.zeros(N), r"\(4,\)"),
    ("alpha", np.zeros((N + 1, N + 1)), r"\(5, 5\)"),
    ("alpha", np.nan, "nan"),
    ("alpha", True, "True"),
    ("alpha", coupling({(1, 3): np.nan}), r"nan at index \(1, 3\)"),
    ("alpha", coupling(dtype=bool), "bool"),
    ("zeta", np.inf, "inf"),
    ("zeta", [0.1], "list"),
    ("zeta", True, "True"),
    ("psi", np.nan, "nan"),
    ("psi", "0", "'0'"),
    ("psi", np.zeros(N), r"\(4,\)"),
    ("modulation", 3, "3"),
    ("modulation", "on", "'on'"),
    ("modulation", {"strength": 1.0}, "lambda_.*'strength'"),
    ("modulation", {"knm": coupling()}, "'knm'"),
    ("modulate_every", 0, "0"),
    ("modulate_every", 1.0, r"1\.0"),
    ("modulate_every", True, "True"),
    ("record_every", 0, "0"),
    ("record_every", 2.0, r"2\.0"),
    ("record_every", True, "True"),
    ("observe", "r", "'r'"),
    ("observe", ("R", "phi"), "'phi'"),
    ("observe", [1], "1"),
    ("observe", None, "None"),
    ("atol", 0.0, r"0\.0"),
    ("atol", -1e-6, "-1e-06"),
    ("atol", np.nan, "nan"),
    ("rtol", -1e-6, "-1e-06"),
    ("rtol", True, "True"),
    ("omega", np.zeros((N, 1)), r"\(4, 1\)"),
    ("omega", np.zeros(N - 1), r"\(3,\)"),
    ("omega", None, "None"),
    ("omega", np.nan, "nan"),
    ("omega", [0.0, np.inf, 0.0, 0.0], "inf at index 1"),
    ("omega", [0.0, True, 0.0, 0.0], "True at index 1"),
    ("omega", "1", "'1'"),
    ("theta", [0.0, 0.0, np.nan, 0.0], "nan at index 2"),
    ("theta", np.zeros((N, 1)), r"\(4, 1\)"),
    ("theta", np.zeros((1, N + 1)), r"\(4,\) or \(M, 4\), got \(1, 5\)"),
    ("theta", np.zeros((2, 3, N)), r"\(N,\) or \(M, N\), got \(2, 3, 4\)"),
    ("theta", 0.0, r"\(\)"),
    ("theta", np.zeros(N, dtype=bool), "bool"),
    ("knm", None, "None"),
    ("knm", np.zeros((2, N, N)), r"\(2, 4, 4\)"),
    ("knm", np.zeros((N + 1, N + 1)), r"\(5, 5\)"),
    ("knm", coupling({(2, 0): np.inf}), r"inf at index \(2, 0\)"),
    ("knm", hidden(True), "True"),
]


@pytest.mark.parametrize("name, value, what", BAD_RUNS)
def test_simulate(backend, name, value, what):
    given = {"theta": np.zeros(N), "omega": 1.0, "knm": coupling(), "dt": 0.1, "n_steps": 2}
    with refused(name, what):
        spo_fast.simulate(**given | {name: value}, backend=backend)


@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
@pytest.mark.parametrize("entries", [{(1, 2): 2.0}, {(1, 1): 1.0}])
def test_simulate_modulates_only_symmetric_couplings(backend, method, entries):
    given = {"theta": np.zeros(N), "omega": 1.0, "knm": coupling(entries), "dt": 0.1, "n_steps": 2}
    spo_fast.simulate(**given, method=method, backend=backend)
    with refused("knm", "index"):
        spo_fast.simulate(**given, method=method, modulation={}, backend=backend)


@pytest.mark.parametrize("name, value, what", BAD_KEYWORDS)
def test_simulate_checks_the_modulation(backend, name, value, what):
    with pytest.raises(ValueError, match=what):
        spo_fast.simulate(
            np.zeros(N), 1.0, coupling(), dt=0.1, n_steps=1, modulation={name: value}, backend=backend
        )


BAD_STEPS = [
    ("phases", np.zeros((N, 1)), r"\(4, 1\)"),
    ("phases", np.zeros(N - 1), r"\(3,\)"),
    ("phases", [0.0, True, 0.0, 0.0], "True"),
    ("phases", [0.0, np.nan, 0.0, 0.0], "nan at index 1"),
    ("phases", [0.0, np.inf, 0.0, 0.0], "inf at index 1"),
    ("omegas", np.zeros((N, 1)), r"\(4, 1\)"),
    ("omegas", [0.0, 0.0, np.nan, 0.0], "nan at index 2"),
    ("omegas", True, "True"),
    ("knm", np.zeros((N - 1, N - 1)), r"\(3, 3\)"),
    ("knm", coupling({(0, 3): np.nan}), r"nan at index \(0, 3\)"),
    ("knm", coupling(dtype=complex), "complex"),
    ("alpha", np.zeros((N, 1)), r"\(4, 1\)"),
    ("alpha", coupling({(0, 3): np.inf}), r"inf at index \(0, 3\)"),
    ("alpha", np.inf, "inf"),
    ("zeta", np.nan, "nan"),
    ("zeta", True, "True"),
    ("psi", np.inf, "inf"),
]


@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
@pytest.mark.parametrize("name, value, what", BAD_STEPS)
def test_engine_step(backend, method, name, value, what):
    engine = spo_fast.Engine(N, 0.1, method, backend=backend)
    given = {"phases": np.zeros(N), "omegas": np.ones(N), "knm": coupling()}
    for advance in (engine.step, engine.run):
        with refused(name, what):
            advance(**given | {name: value})
    assert engine.last_dt == 0.1
    assert np.isfinite(engine.step(**given)).all()


@pytest.mark.parametrize("n_steps", [-1, 1.0, True, "1", None])
def test_engine_run_steps(backend, n_steps):
    with refused("n_steps", ""):
        spo_fast.Engine(N, 0.1, backend=backend).run(np.zeros(N), 1.0, coupling(), n_steps=n_steps)


@pytest.mark.parametrize(
    "arguments, name",
    [
        ((4.0, 0.1), "n_oscillators"),
        ((True, 0.1), "n_oscillators"),
        ((-1, 0.1), "n_oscillators"),
        ((4, 0.0), "dt"),
        ((4, np.nan), "dt"),
        ((4, "0.1"), "dt"),
        ((4, 0.1, "heun"), "method"),
        ((4, 0.1, "rk45", 0.0), "atol"),
        ((4, 0.1, "rk45", 1e-6, -1.0), "rtol"),
    ],
)
def test_engine(backend, arguments, name):
    with refused(name, ""):
        spo_fast.Engine(*arguments, backend=backend)


# ---------------------------------------------------------------- observables

BAD_LAYERS = [
    ([0, 0], "more than once"),
    ([0, 4], "4"),
    ([-1], "-1"),
    ([0.0, 1.0], "float64"),
    ([True, 1], "mixture"),
    (np.ones(3, dtype=bool), r"\(3,\)"),
    ([True, False], r"\(2,\)"),
    (np.zeros((2, 2), dtype=int), r"\(2, 2\)"),
    (1, r"\(\)"),
    ("ab", r"\(\)"),
    (["a"], "<U1"),
    (None, r"\(\)"),
]


@pytest.mark.parametrize("layer, what", BAD_LAYERS)
def test_layer(layer, what):
    with refused("layer", what):
        spo_fast.layer_coherence(np.zeros(N), layer, backend="numpy")


@pytest.mark.parametrize(
    "theta, what",
    [
        (0.0, r"\(\)"),
        (np.zeros((2, 2, 2)), r"\(2, 2, 2\)"),
        ([0.0, np.nan], "nan at index 1"),
        ([[0.0, np.inf]], r"inf at index \(0, 1\)"),
        ([0.0, True], "True"),
        (np.zeros(3, dtype=complex), "complex"),
    ],
)
def test_states_and_trajectories(backend, theta, what):
    with refused("theta", what):
        spo_fast.order_parameter(theta, backend=backend)
    with refused("theta", what):
        spo_fast.layer_coherence(theta, [], backend=backend)


def test_phase_locking():
    with refused("b", r"\(3,\), got \(4,\)"):
        spo_fast.plv(np.zeros(3), np.zeros(4))
    with refused("b", r"\(3, 2\), got \(3,\)"):
        spo_fast.plv(np.zeros((3, 2)), np.zeros(3))
    with refused("b", "nan at index 2"):
        spo_fast.plv(np.zeros(3), [0.0, 0.0, np.nan])


@pytest.mark.parametrize(
    "name, value",
    [
        ("theta", np.full(N, np.nan)),
        ("omega", np.zeros((N, 1))),
        ("omega", np.full(N, np.inf)),
        ("knm", np.zeros((3, 3))),
        ("knm", coupling({(0, 1): np.nan})),
        ("alpha", np.zeros((N, N))),
        ("alpha", np.nan),
        ("alpha", True),
        ("dt", -1.0),
        ("dt", np.inf),
        ("dt", "1"),
    ],
)
def test_entropy_production_rate(name, value):
    given = {"theta": np.zeros(N), "omega": 1.0, "knm": coupling(), "alpha": 1.0, "dt": 0.1}
    with refused(name, ""):
        spo_fast.entropy_production_rate(**given | {name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        ("theta", np.zeros((2, N))),
        ("theta", np.full(N, np.nan)),
        ("omega", np.zeros(3)),
        ("knm", coupling({(0, 1): np.inf})),
        ("alpha", coupling({(0, 1): np.inf})),
        ("alpha", np.zeros(N)),
        ("dt", 0.0),
        ("n_steps", 1.5),
        ("qr_interval", 0),
        ("zeta", np.nan),
        ("psi", True),
        ("k", 0),
        ("k", N + 1),
        ("k", 1.0),
    ],
)
def test_lyapunov_spectrum(name, value):
    given = {"theta": np.zeros(N), "omega": 1.0, "knm": coupling()}
    with refused(name, ""):
        spo_fast.lyapunov_spectrum(**given | {name: value})
