"""spo_fast.h as every library implements it: the functions themselves, called through cffi."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import require
from oracles import modulation as oracle
from samples import METHODS, circle_gap, golden_files, load_golden, parity_budget, symmetric

import spo_fast
from spo_fast.backends import foreign
from spo_fast.backends.status import Status

HEADER = Path(spo_fast.get_include(), "spo_fast.h").read_text(encoding="utf-8")
TEXTS = (
    "success",
    "an argument is out of its range",
    "out of memory",
    "the coupling matrix holds NaN or infinity",
    "the coupling matrix is not symmetric within 1e-12",
    "the diagonal of the coupling matrix is not zero within 1e-12",
    "the phases hold NaN or infinity",
    "a step gave NaN or infinity",
)


@pytest.fixture(scope="module", params=["c", *foreign.NAMES])
def name(request):
    require("cython" if request.param == "c" else request.param)
    return request.param


@pytest.fixture(scope="module")
def portable(name):
    """The functions of one library, and what makes their arguments."""
    ffi, library = foreign.portable("cython" if name == "c" else name)
    return SimpleNamespace(ffi=ffi, library=library)


def doubles(portable, array):
    """Pointer to the data of an array, which it keeps alive."""
    return portable.ffi.from_buffer("double *", array)


class Modulation:
    """The struct of some parameters; default ones where none are given."""

    def __init__(self, portable, arrays=None, **meta):
        weights = [arrays[w] for w in ("w_q", "w_k", "w_v", "w_o")] if arrays else None
        self.weights = weights or spo_fast.default_projections()
        meta = {"n_heads": 4, "d_model": 8, "block_size": None, "temperature": 1.0, "lambda_": 0.5} | meta
        self.temperature = np.full(meta["n_heads"], meta["temperature"], dtype=float)
        self.pointers = [doubles(portable, array) for array in (*self.weights, self.temperature)]
        block_size = -1 if meta["block_size"] is None else meta["block_size"]
        numbers = [meta["n_heads"], meta["d_model"], block_size]
        self.struct = portable.ffi.new("spo_modulation *", [*numbers, *self.pointers, meta["lambda_"]])


def modulate(portable, knm, theta, parameters, out):
    """Status of a call."""
    pointers = [doubles(portable, array) for array in (knm, theta, out)]
    return portable.library.spo_modulate(len(theta), *pointers[:2], parameters.struct, pointers[2])


class Run:
    """Everything that spo_kuramoto_run takes, in arrays that stay alive."""

    def __init__(self, portable, theta, omega, knm, *, method="euler", dt=0.01, n_steps=0, **options):
        self.portable, self.n = portable, len(theta)
        ffi, at = portable.ffi, lambda array: doubles(portable, array)
        self.theta = np.array(theta, dtype=float)
        self.arrays = [np.array(omega, dtype=float), np.array(knm, dtype=float)]
        self.alpha = np.array(options["alpha"]) if "alpha" in options else None
        self.modulation = options.get("modulation")
        self.modulated = np.zeros((self.n, self.n)) if self.modulation else None
        self.kept = [np.zeros((n_steps + 1, self.n)), *(np.zeros(n_steps + 1) for _ in range(4))]
        self.network = ffi.new(
            "spo_network *",
            [self.n, *map(at, self.arrays), ffi.NULL if self.alpha is None else at(self.alpha),
             options.get("uniform_alpha", 0.0), options.get("zeta", 0.0), options.get("psi", 0.0),
             self.modulation.struct if self.modulation else ffi.NULL, options.get("every", 1)],
        )  # fmt: skip
        tolerances = [options.get("atol", 1e-6), options.get("rtol", 1e-3)]
        self.integrator = ffi.new("spo_integrator *", [METHODS.index(method), dt, *tolerances])
        modulated = ffi.NULL if self.modulated is None else at(self.modulated)
        self.state = ffi.new("spo_state *", [at(self.theta), modulated, 0.0, dt, 0])
        self.record = ffi.new("spo_record *", [1, *map(at, self.kept)])

    def __call__(self, n_steps, recorded=True):
        record = self.record if recorded else self.portable.ffi.NULL
        return self.portable.library.spo_kuramoto_run(
            self.network, self.integrator, self.state, n_steps, record
        )

    def bits(self):
        numbers = np.array([self.state.t, self.state.dt, self.state.step])
        return b"".join(array.tobytes() for array in (self.theta, numbers, *self.kept))


# ---------------------------------------------------------------- identity


def test_the_header_and_python_agree_on_the_numbers():
    enum = re.search(r"enum spo_status \{(.*?)\}", HEADER, re.S).group(1)
    in_header = {name: int(value) for name, value in re.findall(r"SPO_(\w+) = (\d+)", enum)}
    assert in_header == {status.name: status.value for status in Status}


def test_the_header_declares_what_cffi_was_told():
    declared = foreign.functions(HEADER)
    assert list(declared) == [
        "spo_abi_version", "spo_backend_name", "spo_status_text", "spo_modulate", "spo_order_parameter",
        "spo_kuramoto_run",
    ]  # fmt: skip
    assert declared["spo_status_text"] == "const char * (*)(int32_t status)"
    assert declared["spo_order_parameter"] == (
        "int32_t (*)(int64_t n, const double *theta, double *r, double *psi)"
    )


def test_a_library_tells_its_version_and_name(name, portable):
    assert portable.library.spo_abi_version() == foreign.abi_version(HEADER)
    assert portable.ffi.string(portable.library.spo_backend_name()) == name.encode()


def test_every_library_has_the_same_texts(portable):
    texts = [portable.ffi.string(portable.library.spo_status_text(s)).decode() for s in Status]
    assert texts == list(TEXTS)
    for unknown in (-1, len(TEXTS), 999, -(2**31)):
        assert portable.ffi.string(portable.library.spo_status_text(unknown)) == b"unknown status"


# ---------------------------------------------------------------- modulation


@pytest.mark.parametrize("path", golden_files("modulate"), ids=lambda path: path.stem)
def test_golden_modulate(portable, path):
    arrays, meta = load_golden(path)
    out = np.full_like(arrays["knm"], np.nan)
    assert modulate(portable, arrays["knm"], arrays["theta"], Modulation(portable, arrays, **meta), out) == 0
    budget = parity_budget(arrays["expected"], arrays["theta"], meta["d_model"])
    assert np.abs(out - arrays["expected"]).max(initial=0.0) <= budget


@pytest.mark.parametrize("n_heads, d_model", [(1, 2), (1, 4), (2, 6), (1, 8), (3, 12), (2, 20), (16, 16)])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 33])
def test_every_width_and_size_follows_the_oracle(portable, n, n_heads, d_model):
    rng = np.random.default_rng(n)
    knm, theta = symmetric(rng, n, density=0.7), rng.uniform(-20.0, 20.0, n)
    weights = spo_fast.default_projections(n_heads, 3, d_model)
    temperature = rng.uniform(0.3, 2.0, n_heads)
    named = dict(zip(("w_q", "w_k", "w_v", "w_o"), weights, strict=True))
    meta = {"n_heads": n_heads, "d_model": d_model, "block_size": 11, "temperature": temperature}
    out = np.empty_like(knm)
    assert modulate(portable, knm, theta, Modulation(portable, named, lambda_=1.5, **meta), out) == 0
    expected = oracle.modulate(knm, theta, *weights, block_size=11, temperature=temperature, lambda_=1.5)
    assert np.abs(out - expected).max() <= parity_budget(expected, theta, d_model)
    assert np.array_equal(out, out.T) and not out.diagonal().any()


def test_an_edge_on_one_side_is_seen_from_that_side(portable):
    rng = np.random.default_rng(5)
    knm, theta = symmetric(rng, 9), rng.uniform(0.0, 6.0, 9)
    knm[2, 5], knm[5, 2] = 5e-13, 0.0
    out = np.empty_like(knm)
    assert modulate(portable, knm, theta, Modulation(portable), out) == 0
    expected = oracle.modulate(knm, theta, *spo_fast.default_projections())
    assert np.abs(out - expected).max() <= parity_budget(expected, theta, 8)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e30])
def test_no_temperature_makes_a_nan(portable, temperature):
    rng = np.random.default_rng(6)
    knm, theta = symmetric(rng, 19), rng.uniform(0.0, 6.0, 19)
    out = np.empty_like(knm)
    assert modulate(portable, knm, theta, Modulation(portable, temperature=temperature), out) == 0
    assert np.isfinite(out).all()
    assert (out >= knm * (1 - 1e-15)).all() and (out <= 1.5 * knm * (1 + 1e-15)).all()


def test_strength_0_copies_bits(portable):
    knm = np.array([[-0.0, 3.0, 0.0], [3.0 + 1e-13, 1e-13, -0.0], [0.0, 0.0, 0.0]])
    out = np.ones((3, 3))
    assert modulate(portable, knm, np.zeros(3), Modulation(portable, lambda_=0.0), out) == 0
    assert out.tobytes() == knm.tobytes()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda k, t: k.__setitem__((0, 1), np.nan), Status.NONFINITE_COUPLING),
        (lambda k, t: k.__setitem__((2, 2), np.inf), Status.NONFINITE_COUPLING),
        (lambda k, t: k.__setitem__((0, 1), 7.0), Status.ASYMMETRIC_COUPLING),
        (lambda k, t: k.__setitem__((4, 4), 1e-6), Status.NONZERO_DIAGONAL),
        (lambda k, t: t.__setitem__(3, np.inf), Status.NONFINITE_PHASE),
    ],
)
@pytest.mark.parametrize("n", [5, 8, 13, 40])
def test_modulate_refuses_bad_data_before_it_writes(portable, change, status, n):
    knm = np.ones((n, n)) - np.eye(n)
    theta = np.linspace(0, 6, n)
    change(knm, theta)
    out = np.full((n, n), 42.0)
    assert modulate(portable, knm, theta, Modulation(portable), out) == status
    assert (out == 42.0).all()


@pytest.mark.parametrize(
    "field, value",
    [("n_heads", 0), ("n_heads", 3), ("d_model", 7), ("d_model", 0), ("block_size", -2), ("lambda", -1.0),
     ("lambda", np.nan), ("lambda", np.inf), ("w_q", None), ("w_o", None), ("temperature", None)],
)  # fmt: skip
def test_modulate_refuses_bad_parameters(portable, field, value):
    parameters = Modulation(portable)
    setattr(parameters.struct, field, portable.ffi.NULL if value is None else value)
    one = np.zeros((1, 1))
    assert modulate(portable, one, one[0], parameters, one) == Status.INVALID_ARGUMENT


def test_modulate_refuses_bad_temperatures_sizes_and_pointers(portable):
    parameters, null = Modulation(portable), portable.ffi.NULL
    pointer, call = doubles(portable, np.zeros(1)), portable.library.spo_modulate
    for n in (-1, (1 << 28) + 1):
        assert call(n, pointer, pointer, parameters.struct, pointer) == Status.INVALID_ARGUMENT
    for missing in ((null, pointer, pointer), (pointer, null, pointer), (pointer, pointer, null)):
        assert call(1, *missing[:2], parameters.struct, missing[2]) == Status.INVALID_ARGUMENT
    assert call(1, pointer, pointer, null, pointer) == Status.INVALID_ARGUMENT
    assert call(0, null, null, parameters.struct, null) == Status.OK
    for bad in (0.0, -1.0, np.nan, np.inf):
        parameters.temperature[2] = bad
        assert call(1, pointer, pointer, parameters.struct, pointer) == Status.INVALID_ARGUMENT


# ---------------------------------------------------------------- runs


def golden_run(portable, path):
    arrays, meta = load_golden(path)
    options = {key: meta[key] for key in ("method", "dt", "zeta", "psi", "atol", "rtol") if key in meta}
    start = arrays["trajectory"][0]
    run = Run(portable, start, arrays["omegas"], arrays["knm"], alpha=arrays["alpha"],
              n_steps=meta["steps"], **options)  # fmt: skip
    return run, arrays, meta


@pytest.mark.parametrize("path", golden_files("step"), ids=lambda path: path.stem)
def test_a_run_in_one_piece_equals_single_steps(portable, path):
    (whole, arrays, meta), (pieces, *_) = golden_run(portable, path), golden_run(portable, path)
    assert whole(meta["steps"]) == Status.OK
    assert all(pieces(1) == Status.OK for _ in range(meta["steps"]))
    assert whole.bits() == pieces.bits()
    assert np.array_equal(whole.kept[0][-1], whole.theta)
    assert np.array_equal(whole.kept[1][1:], whole.kept[4][1:])
    if meta["method"] != "rk45":
        assert circle_gap(whole.kept[0][1:], arrays["trajectory"][1:]) <= 1e-11


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_modulated_run_is_modulate_and_single_steps(portable, method, every, lags):
    rng = np.random.default_rng(7)
    n, n_steps = 11, 7
    knm, theta, omega = symmetric(rng, n, density=0.8), rng.uniform(0.0, 6.0, n), rng.normal(size=n)
    options = {"method": method, "dt": 0.05, "zeta": 0.3, "psi": 1.0, "uniform_alpha": 0.2}
    if lags:
        options = options | {"alpha": rng.uniform(-1.0, 1.0, (n, n)), "uniform_alpha": 0.0}
    parameters = Modulation(portable)
    whole = Run(portable, theta, omega, knm, modulation=parameters, every=every, n_steps=n_steps, **options)
    assert whole(n_steps) == Status.OK
    pieces = Run(portable, theta, omega, knm, modulation=parameters, every=every, n_steps=n_steps, **options)
    assert all(pieces(size) == Status.OK for size in (1, 0, 2, 1, 3))
    assert whole.bits() == pieces.bits()
    modulated, state, dt = np.empty((n, n)), theta, options["dt"]
    for step in range(n_steps):
        if step % every == 0:
            assert modulate(portable, knm, state, parameters, modulated) == Status.OK
        single = Run(portable, state, omega, modulated, **options)
        single.state.dt = dt
        assert single(1, recorded=False) == Status.OK
        state, dt = single.theta, single.state.dt
    assert circle_gap(whole.theta, state) <= 1e-12 * n_steps
    assert whole.state.dt == pytest.approx(dt, rel=1e-9)


def test_a_run_reports_what_is_not_finite(portable):
    run = Run(portable, [0.0, 0.0], [1.0, np.inf], np.zeros((2, 2)), n_steps=3)
    assert run(3) == Status.NONFINITE_STATE
    assert (run.state.step, run.state.t, *run.theta) == (0, 0.0, 0.0, 0.0)
    run.theta[1] = np.nan
    assert run(3) == Status.NONFINITE_PHASE


def test_a_run_stops_at_the_last_good_state(portable):
    run = Run(portable, [1.0, 2.0], [1.0, 1e300], np.zeros((2, 2)), dt=1e10, n_steps=3)
    assert run(3) == Status.NONFINITE_STATE
    assert run.state.step == 0
    assert run.theta.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("entry", "value", "status"),
    [((0, 1), np.nan, Status.NONFINITE_COUPLING), ((0, 1), 2.0, Status.ASYMMETRIC_COUPLING),
     ((1, 1), 0.5, Status.NONZERO_DIAGONAL)],
)  # fmt: skip
def test_a_modulated_run_checks_its_coupling(portable, entry, value, status):
    knm = np.ones((4, 4)) - np.eye(4)
    knm[entry] = value
    run = Run(portable, np.arange(4.0), np.ones(4), knm, modulation=Modulation(portable), n_steps=1)
    assert run(0) == run(1) == status
    assert run.theta.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "struct, field, value",
    [("integrator", "method", 3), ("integrator", "method", -1), ("integrator", "dt", 0.0),
     ("integrator", "dt", np.nan), ("integrator", "dt", np.inf), ("integrator", "atol", -1.0),
     ("integrator", "rtol", np.nan), ("network", "n", -1), ("network", "n", (1 << 28) + 1),
     ("network", "zeta", np.inf), ("network", "psi", np.nan), ("network", "uniform_alpha", np.nan),
     ("network", "omega", None), ("network", "knm", None), ("state", "theta", None),
     ("network", "modulate_every", 0), ("state", "modulated", None)],
)  # fmt: skip
def test_a_run_refuses_bad_numbers_and_pointers(portable, struct, field, value):
    run = Run(portable, [1.0, 2.0], [1.0, 2.0], np.zeros((2, 2)), modulation=Modulation(portable), n_steps=1)
    setattr(getattr(run, struct), field, portable.ffi.NULL if value is None else value)
    assert run(1) == Status.INVALID_ARGUMENT
    assert run.theta.tolist() == [1.0, 2.0]


def test_a_run_refuses_missing_structs_and_negative_counts(portable):
    run, null = Run(portable, [1.0], [1.0], np.zeros((1, 1)), n_steps=1), portable.ffi.NULL
    call = portable.library.spo_kuramoto_run
    for arguments in ((null, run.integrator, run.state), (run.network, null, run.state),
                      (run.network, run.integrator, null)):  # fmt: skip
        assert call(*arguments, 1, null) == Status.INVALID_ARGUMENT
    assert run(-1) == Status.INVALID_ARGUMENT


def test_a_size_that_no_memory_holds_is_reported(portable):
    run = Run(portable, [0.0], [0.0], [[0.0]], modulation=Modulation(portable), n_steps=1)
    run.network.n = 1 << 28
    run.modulation.struct.d_model, run.modulation.struct.n_heads = 1 << 20, 1  # 2^53 bytes
    assert run(1) == Status.OUT_OF_MEMORY


def test_no_oscillators_at_all(portable):
    run, null = Run(portable, [1.0], [1.0], np.zeros((1, 1)), n_steps=2), portable.ffi.NULL
    run.network.n = 0
    run.network.omega = run.network.knm = run.state.theta = null
    run.record.theta = null
    assert run(2) == Status.OK
    assert run.state.step == 2 and run.kept[2].tolist() == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------- order parameter


def order_parameter(portable, theta):
    out = portable.ffi.new("double[2]", [7.0, 7.0])
    status = portable.library.spo_order_parameter(len(theta), doubles(portable, theta), out, out + 1)
    return status, out[0], out[1]


@pytest.mark.parametrize("path", golden_files("observables"), ids=lambda path: path.stem)
def test_golden_order_parameter(portable, path):
    arrays, meta = load_golden(path)
    status, r, psi = order_parameter(portable, arrays["theta"])
    assert (status, r) == (Status.OK, pytest.approx(meta["R"], rel=0, abs=1e-12))
    assert circle_gap(psi, meta["psi"]) <= 1e-12


def test_order_parameter_of_known_states(portable):
    for theta, r in [([], 0.0), ([1.0], 1.0), ([0.0, np.pi], 0.0), ([1e-3, 2 * np.pi - 1e-3], 0.9999995)]:
        status, length, _ = order_parameter(portable, np.array(theta))
        assert (status, length) == (Status.OK, pytest.approx(r, abs=1e-12))
    assert order_parameter(portable, np.array([np.nan]))[0] == Status.NONFINITE_PHASE
    null, out = portable.ffi.NULL, portable.ffi.new("double[2]")
    call = portable.library.spo_order_parameter
    assert call(-1, null, out, out + 1) == call(1, null, out, out + 1) == Status.INVALID_ARGUMENT
    assert call(0, null, null, out) == call(0, null, out, null) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("n", [1, 2, 3, 10, 999, 5500, 100_000])
@pytest.mark.parametrize("angle", [0.0, 1e-300, 0.1, 3.0, -2.0, 1e9])
def test_equal_phases_have_radius_one(portable, n, angle):
    status, r, psi = order_parameter(portable, np.full(n, angle))
    assert status == Status.OK
    assert 1.0 - 2.3e-16 <= r <= 1.0
    assert circle_gap(psi, np.arctan2(np.sin(angle), np.cos(angle))) <= 1e-15 and 0.0 <= psi < 2.0 * np.pi


# ---------------------------------------------------------------- threads


def test_threads_may_call_at_once_or_are_told_not_to(name, portable):
    rng = np.random.default_rng(8)
    knm, theta = symmetric(rng, 33), rng.uniform(0.0, 6.0, 33)
    parameters, expected = Modulation(portable), np.empty_like(knm)
    assert modulate(portable, knm, theta, parameters, expected) == Status.OK
    results = []

    def work():
        out = np.empty_like(knm)
        try:
            for _ in range(50):
                modulate(portable, knm, theta, parameters, out)
            results.append(np.array_equal(out, expected))
        except RuntimeError as error:
            results.append("thread" in str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [True] * 4, name
