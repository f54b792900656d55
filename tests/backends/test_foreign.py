"""The adapter of libraries in other languages: what it refuses to load, and how it tells."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import cffi
import numpy as np
import pytest
from conftest import require
from samples import symmetric

import spo_fast
from spo_fast.backends import foreign, libraries, registry

HEADER = Path(spo_fast.get_include(), "spo_fast.h").read_text(encoding="utf-8")
STAND_IN = """
#include "spo_fast.h"
int32_t spo_abi_version(void) { return VERSION; }
const char *spo_backend_name(void) { return "rust"; }
const char *spo_status_text(int32_t status) { return status ? "bad" : "good"; }
int32_t spo_order_parameter(int64_t n, const double *theta, double *r, double *psi) { return 0; }
int32_t spo_modulate(int64_t n, const double *k, const double *t, const spo_modulation *m, double *o) {
    return 0;
}
"""
RUN = """
int32_t spo_kuramoto_run(const spo_network *n, const spo_integrator *i, spo_state *s, int64_t steps,
                         const spo_record *r) {
    return 0;
}
"""


@pytest.fixture
def ffi():
    ffi = cffi.FFI()
    ffi.cdef(foreign.declarations(HEADER))
    return ffi


@pytest.fixture
def stand_in(tmp_path):
    """Compiles a library that answers, and does nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(compiler):
        pytest.skip(f"needs a C compiler, and {compiler} was not found")

    def compile_it(source, version=1):
        target = tmp_path / f"stand_in_{version}{libraries.SUFFIX}"
        (tmp_path / "stand_in.c").write_text(source)
        include = f"-I{spo_fast.get_include()}"
        flags = ["-shared", "-fPIC", include, f"-DVERSION={version}"]
        subprocess.run([compiler, *flags, str(tmp_path / "stand_in.c"), "-o", str(target)], check=True)
        return target

    return compile_it


def test_a_complete_library_is_opened(ffi, stand_in):
    library = foreign.open_library(ffi, stand_in(STAND_IN + RUN), "rust", HEADER)
    assert library.spo_abi_version() == 1


def test_another_version_is_refused_in_one_sentence(ffi, stand_in):
    path = stand_in(STAND_IN + RUN, version=7)
    with pytest.raises(libraries.Unavailable) as refusal:
        foreign.open_library(ffi, path, "rust", HEADER)
    assert str(refusal.value) == (
        f"{path} implements version 7 of spo_fast.h, this package needs version 1; rebuild it: "
        "spo-fast backends --build rust"
    )


def test_a_missing_function_is_named(ffi, stand_in):
    with pytest.raises(libraries.Unavailable, match=r"lacks spo_kuramoto_run, which spo_fast\.h"):
        foreign.open_library(ffi, stand_in(STAND_IN), "rust", HEADER)


def test_the_library_of_another_backend_is_refused(ffi, stand_in):
    with pytest.raises(libraries.Unavailable, match="is the library of backend 'rust', not of 'go'"):
        foreign.open_library(ffi, stand_in(STAND_IN + RUN), "go", HEADER)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_what_is_no_library_is_refused(ffi, tmp_path, content):
    path = tmp_path / f"broken{libraries.SUFFIX}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(libraries.Unavailable, match="cannot be loaded"):
        foreign.open_library(ffi, path, "rust", HEADER)


def test_a_header_without_a_version_is_refused():
    with pytest.raises(libraries.Unavailable, match="SPO_ABI_VERSION"):
        foreign.abi_version("int32_t spo_abi_version(void);")


# ---------------------------------------------------------------- behind the protocol


@pytest.fixture(params=foreign.NAMES)
def name(request):
    require(request.param)
    return request.param


def test_sparse_coupling_is_refused_by_name(name, rng):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    knm = scipy_sparse.csr_array(symmetric(rng, 5))
    message = f"knm must be dense for backend '{name}', got a sparse matrix"
    with pytest.raises(ValueError, match=message):
        spo_fast.modulate(knm, np.zeros(5), backend=name)
    with pytest.raises(ValueError, match=message):
        spo_fast.Modulator(knm, backend=name)
    with pytest.raises(ValueError, match=message):
        spo_fast.simulate(np.zeros(5), 1.0, knm, dt=0.1, n_steps=1, backend=name)


def test_a_backend_and_what_it_makes_can_be_copied(name, rng):
    backend = registry.load(name)
    knm, theta = symmetric(rng, 5), rng.uniform(0.0, 6.0, 5)
    modulator = spo_fast.Modulator(knm, backend=name)
    plan = modulator._plan
    for copied in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
        assert copied(backend) is backend
        assert np.array_equal(copied(modulator)(theta), modulator(theta))
        assert np.array_equal(copied(plan)(knm, theta), modulator(theta))


def test_no_memory_becomes_a_memory_error(name):
    backend = registry.load(name)
    with pytest.raises(MemoryError, match="out of memory"):
        backend.refuse(2, np.zeros((2, 2)), np.zeros(2))
    with pytest.raises(ValueError, match="status 1"):
        backend.refuse(1, np.zeros((2, 2)), np.zeros(2))


def test_advancing_needs_a_network(name):
    integration = registry.load(name).Integration(3, "rk4", 0.1, 1e-6, 1e-3)
    with pytest.raises(RuntimeError, match="set_network must come before advance"):
        integration.advance(1)


# ---------------------------------------------------------------- from other compiled code

EMBEDDED = """
import sys
import numpy as np
from numba import njit
from spo_fast import Modulator
from spo_fast.backends import foreign

ffi, library = foreign.portable(sys.argv[1])
weights = Modulator(np.zeros((2, 2))).parameters
kept = [ffi.from_buffer("double *", a) for a in (weights.w_q, weights.w_k, weights.w_v, weights.w_o)]
kept.append(ffi.from_buffer("double *", weights.temperature))
parameters = ffi.new("spo_modulation *", [4, 8, -1, *kept, 0.5])
signature = "int32_t (*)(int64_t, const double *, const double *, const void *, double *)"
modulate = ffi.cast(signature, library.spo_modulate)

@njit{cache}
def loop(knm, theta, parameters, out):
    for _ in range(3):
        status = modulate(theta.size, knm.ctypes, theta.ctypes, parameters, out.ctypes)
    return status

knm, theta = np.ones((5, 5)) - np.eye(5), np.arange(5.0)
out = np.empty_like(knm)
print(loop(knm, theta, int(ffi.cast("uintptr_t", parameters)), out), np.array_equal(out, out.T), out[0, 1])
"""


@pytest.mark.parametrize("name", ["cython", "rust", "go", "mojo"])
def test_numba_code_may_call_a_library(name, tmp_path):
    require("numba")
    require(name)
    for cache, warns in (("", False), ("(cache=True)", True)):
        script = tmp_path / f"script{warns:d}.py"
        script.write_text(EMBEDDED.replace("{cache}", cache))
        done = subprocess.run([sys.executable, script, name], capture_output=True, text=True, timeout=300)
        knm, theta = np.ones((5, 5)) - np.eye(5), np.arange(5.0)
        expected = spo_fast.modulate(knm, theta, backend=name)[0, 1]
        assert done.stdout == f"0 True {expected}\n", done.stderr
        assert ("NumbaWarning: Cannot cache" in done.stderr) == warns


def test_only_backends_with_portable_functions_have_them():
    with pytest.raises(ValueError, match=r"name must be one of 'cython', 'rust'.*got 'numpy'"):
        foreign.portable("numpy")
