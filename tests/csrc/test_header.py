"""spo_fast.h as other languages see it: read by cffi, called in the core, held against Python's copy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spo_fast
from spo_fast.backends.status import Status

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")
cffi = pytest.importorskip("cffi")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
HEADER = Path(spo_fast.get_include()) / "spo_fast.h"


def declarations() -> str:
    """The header without preprocessor lines and C++ linkage: what cffi reads."""
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif", "", HEADER.read_text(), flags=re.M | re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


@pytest.fixture(scope="module")
def ffi():
    ffi = cffi.FFI()
    ffi.cdef(declarations())
    return ffi


@pytest.fixture(scope="module")
def library(ffi):
    return ffi.dlopen(core.__file__)


def doubles(ffi, array):
    """Pointer to the data of an array."""
    return ffi.cast("double *", array.ctypes.data)


def modulation(ffi, data, meta):
    """The struct of a golden case, and the objects that it points into."""
    temperature = np.full(meta["n_heads"], float(meta["temperature"]))
    arrays = [np.ascontiguousarray(data[name]) for name in ("w_q", "w_k", "w_v", "w_o")] + [temperature]
    block = -1 if meta["block_size"] is None else meta["block_size"]
    pointers = [doubles(ffi, array) for array in arrays]
    struct = ffi.new(
        "spo_modulation *", [meta["n_heads"], meta["d_model"], block, *pointers, meta["lambda_"]]
    )
    return struct, arrays


def valid_modulation(ffi):
    """A struct with acceptable parameters."""
    w_q, w_k, w_v, w_o = spo_fast.default_projections()
    data = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    return modulation(
        ffi, data, {"n_heads": 4, "d_model": 8, "block_size": None, "temperature": 1.0, "lambda_": 0.5}
    )


@pytest.mark.parametrize("path", sorted((GOLDEN / "modulate").glob("*.npz")), ids=lambda path: path.stem)
def test_golden_modulate_through_the_portable_function(ffi, library, path):
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    struct, kept = modulation(ffi, data, meta)
    knm, theta = data["knm"].copy(), data["theta"].copy()
    out = np.full_like(knm, np.nan)
    assert (
        library.spo_modulate(len(theta), doubles(ffi, knm), doubles(ffi, theta), struct, doubles(ffi, out))
        == Status.OK
    )
    if len(theta):
        size = np.abs(data["expected"]).max()
        reach = np.abs(theta).max()
        tolerance = 1e-13 * size + (reach * meta["d_model"] * 2e-16 * size if reach > 7 else 0.0)
        assert np.abs(out - data["expected"]).max() <= tolerance
    del kept


@pytest.mark.parametrize("path", sorted((GOLDEN / "step").glob("*.npz")), ids=lambda path: path.stem)
def test_a_run_in_one_piece_equals_single_steps(ffi, library, path):
    data = np.load(path)
    meta = json.loads(str(data["meta"]))
    whole = portable_run(ffi, library, data, meta, [meta["steps"]])
    pieces = portable_run(ffi, library, data, meta, [1] * meta["steps"])
    for a, b in zip(whole, pieces, strict=True):
        assert np.array_equal(a, b)
    if meta["method"] != "rk45":
        error = (whole[0] - data["trajectory"][1:] + np.pi) % (2 * np.pi) - np.pi
        assert np.abs(error).max() <= 1e-11


def portable_run(ffi, library, data, meta, pieces):
    """States after each step, order parameters and last step size of a run cut into pieces."""
    n, steps = meta["n"], meta["steps"]
    arrays = {name: np.ascontiguousarray(data[name]) for name in ("omegas", "knm", "alpha")}
    omega, knm, alpha = (doubles(ffi, arrays[name]) for name in ("omegas", "knm", "alpha"))
    network = ffi.new("spo_network *", [n, omega, knm, alpha, 0.0, meta["zeta"], meta["psi"], ffi.NULL, 1])
    method = ["euler", "rk4", "rk45"].index(meta["method"])
    integrator = ffi.new(
        "spo_integrator *", [method, meta["dt"], meta.get("atol", 1e-6), meta.get("rtol", 1e-3)]
    )
    theta = data["trajectory"][0].copy()
    state = ffi.new("spo_state *", [doubles(ffi, theta), ffi.NULL, 0.0, meta["dt"], 0])
    states, r, psi = np.zeros((steps + 1, n)), np.zeros(steps + 1), np.zeros(steps + 1)
    t, t_observe = np.zeros(steps + 1), np.zeros(steps + 1)
    kept = [doubles(ffi, array) for array in (states, t, r, psi, t_observe)]
    record = ffi.new("spo_record *", [1, *kept])
    for piece in pieces:
        assert library.spo_kuramoto_run(network, integrator, state, piece, record) == Status.OK
    assert np.array_equal(states[-1], theta)
    assert np.array_equal(t[1:], t_observe[1:])
    return states[1:], r, psi, t, np.array([state.dt, state.t])


def test_the_header_and_python_agree_on_the_numbers(library):
    enum = re.search(r"enum spo_status \{(.*?)\}", HEADER.read_text(), re.S).group(1)
    in_header = {name: int(value) for name, value in re.findall(r"SPO_(\w+) = (\d+)", enum)}
    assert in_header == {status.name: status.value for status in Status}
    version = int(re.search(r"#define SPO_ABI_VERSION (\d+)", HEADER.read_text()).group(1))
    assert library.spo_abi_version() == version == core.abi_version()


def test_every_status_has_a_text_of_its_own(ffi, library):
    texts = [ffi.string(library.spo_status_text(status)).decode() for status in Status]
    assert len(set(texts)) == len(texts)
    assert texts == [core.status_text(status) for status in Status]
    assert ffi.string(library.spo_status_text(999)) == b"unknown status"
    assert ffi.string(library.spo_backend_name()) == b"c"


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
def test_modulate_refuses_bad_data_before_it_writes(ffi, library, change, status, n):
    knm = np.ones((n, n)) - np.eye(n)
    theta = np.linspace(0, 6, n)
    change(knm, theta)
    out = np.full((n, n), 42.0)
    struct, kept = valid_modulation(ffi)
    assert (
        library.spo_modulate(n, doubles(ffi, knm), doubles(ffi, theta), struct, doubles(ffi, out)) == status
    )
    assert (out == 42.0).all()
    del kept


@pytest.mark.parametrize(
    "field, value",
    [("n_heads", 0), ("n_heads", 3), ("d_model", 7), ("d_model", 0), ("block_size", -2), ("lambda", -1.0),
     ("lambda", np.nan), ("w_q", None), ("temperature", None)],
)  # fmt: skip
def test_modulate_refuses_bad_parameters(ffi, library, field, value):
    struct, kept = valid_modulation(ffi)
    setattr(struct, field, ffi.NULL if value is None else value)
    one = np.zeros(1)
    pointer = doubles(ffi, one)
    assert library.spo_modulate(1, pointer, pointer, struct, pointer) == Status.INVALID_ARGUMENT
    del kept


def test_modulate_refuses_bad_temperatures_sizes_and_pointers(ffi, library):
    struct, kept = valid_modulation(ffi)
    pointer = doubles(ffi, np.zeros(1))
    assert library.spo_modulate(-1, pointer, pointer, struct, pointer) == Status.INVALID_ARGUMENT
    assert library.spo_modulate(1, ffi.NULL, pointer, struct, pointer) == Status.INVALID_ARGUMENT
    assert library.spo_modulate(0, ffi.NULL, ffi.NULL, struct, ffi.NULL) == Status.OK
    kept[-1][2] = 0.0
    assert library.spo_modulate(1, pointer, pointer, struct, pointer) == Status.INVALID_ARGUMENT


def test_a_size_that_no_memory_holds_is_reported(ffi, library):
    struct, kept = valid_modulation(ffi)
    network = ffi.new(
        "spo_network *", [1 << 28, *[doubles(ffi, np.zeros(1))] * 3, 0.0, 0.0, 0.0, struct, 1]
    )  # 2^61 bytes
    integrator = ffi.new("spo_integrator *", [0, 0.01, 0.0, 0.0])
    pointer = doubles(ffi, np.zeros(1))
    state = ffi.new("spo_state *", [pointer, pointer, 0.0, 0.01, 0])
    assert library.spo_kuramoto_run(network, integrator, state, 1, ffi.NULL) == Status.OUT_OF_MEMORY
    del kept


def small_run(ffi, omega):
    """Two uncoupled oscillators, ready to run."""
    arrays = [np.asarray(omega, dtype=float), np.zeros((2, 2)), np.zeros(2)]
    network = ffi.new(
        "spo_network *",
        [2, doubles(ffi, arrays[0]), doubles(ffi, arrays[1]), ffi.NULL, 0.0, 0.0, 0.0, ffi.NULL, 1],
    )
    integrator = ffi.new("spo_integrator *", [0, 0.01, 0.0, 0.0])
    state = ffi.new("spo_state *", [doubles(ffi, arrays[2]), ffi.NULL, 0.0, 0.01, 0])
    return network, integrator, state, arrays


def test_a_run_reports_what_is_not_finite(ffi, library):
    network, integrator, state, arrays = small_run(ffi, [1.0, np.inf])
    assert library.spo_kuramoto_run(network, integrator, state, 3, ffi.NULL) == Status.NONFINITE_STATE
    assert (state.step, state.t) == (0, 0.0)
    arrays[2][1] = np.nan
    assert library.spo_kuramoto_run(network, integrator, state, 3, ffi.NULL) == Status.NONFINITE_PHASE


@pytest.mark.parametrize(
    "field, value", [("method", 3), ("dt", 0.0), ("dt", np.nan), ("atol", -1.0), ("rtol", np.nan)]
)
def test_a_run_refuses_a_bad_integrator(ffi, library, field, value):
    network, integrator, state, _arrays = small_run(ffi, [1.0, 2.0])
    setattr(integrator, field, value)
    assert library.spo_kuramoto_run(network, integrator, state, 1, ffi.NULL) == Status.INVALID_ARGUMENT


def test_order_parameter_of_known_states(ffi, library):
    out = ffi.new("double[2]")
    for theta, r in [([], 0.0), ([1.0], 1.0), ([0.0, np.pi], 0.0), ([1e-3, 2 * np.pi - 1e-3], 0.9999995)]:
        array = np.array(theta)
        assert library.spo_order_parameter(len(theta), doubles(ffi, array), out, out + 1) == Status.OK
        assert out[0] == pytest.approx(r, abs=1e-12)
    assert (
        library.spo_order_parameter(1, doubles(ffi, np.array([np.nan])), out, out + 1)
        == Status.NONFINITE_PHASE
    )
    assert library.spo_order_parameter(-1, ffi.NULL, out, out + 1) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("generator", ["generate_tableaux.py", "generate_polynomials.py"])
def test_generated_headers_are_up_to_date(generator):
    pytest.importorskip("mpmath")
    assert (
        subprocess.run([sys.executable, str(ROOT / "tools" / generator), "--check"], timeout=300).returncode
        == 0
    )


@pytest.mark.parametrize("name", core.instruction_sets())
def test_instruction_sets_agree(name):
    rng = np.random.default_rng(3)
    knm = rng.random((37, 37))
    knm += knm.T
    np.fill_diagonal(knm, 0.0)
    theta = rng.uniform(0, 6, 37)
    fastest = spo_fast.modulate(knm, theta, backend="cython")
    core.select_instruction_set(name)
    try:
        assert core.instruction_set() == name
        assert (
            np.abs(spo_fast.modulate(knm, theta, backend="cython") - fastest).max()
            <= 1e-13 * np.abs(fastest).max()
        )
    finally:
        core.select_instruction_set(core.instruction_sets()[0])


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'mmx'"):
        core.select_instruction_set("mmx")


def test_the_environment_may_choose_the_instruction_set():
    code = "from spo_fast import _core; print(_core.instruction_set())"
    lowest = core.instruction_sets()[-1]
    command = [sys.executable, "-c", code]
    environment = {"SPO_FAST_INSTRUCTION_SET": lowest, "PATH": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == lowest
