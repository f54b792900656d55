"""Other Cython code can cimport the core: compiled in a folder of its own, linked to nothing."""

from __future__ import annotations

import sys

import pytest
from processes import compiler, finished

pytest.importorskip("spo_fast._core", reason="the C core is not built")
pytest.importorskip("Cython", reason="Cython is not installed")

MODULE = """
# cython: language_level=3
from libc.stdint cimport int64_t
from spo_fast._core cimport mean_field, modulate, spo_modulation

def mean(double[::1] theta):
    cdef double r, psi
    cdef int status
    with nogil:
        status = mean_field(theta.shape[0], &theta[0], &r, &psi)
    return status, r, psi

def modulated(double[:, ::1] knm, double[::1] theta, double[:, :, ::1] q, double[:, :, ::1] k,
              double[:, :, ::1] v, double[:, ::1] o, double[::1] temperature, double[:, ::1] out):
    cdef spo_modulation m
    cdef int status
    m.n_heads, m.d_model, m.block_size, m.lambda_ = q.shape[0], q.shape[1], -1, 0.5
    m.w_q, m.w_k, m.w_v, m.w_o = &q[0, 0, 0], &k[0, 0, 0], &v[0, 0, 0], &o[0, 0]
    m.temperature = &temperature[0]
    with nogil:
        status = modulate(theta.shape[0], &knm[0, 0], &theta[0], &m, &out[0, 0])
    return status
"""

SETUP = """
from pathlib import Path
from setuptools import Extension, setup
from Cython.Build import cythonize
import spo_fast
extension = Extension("user", ["user.pyx"], include_dirs=[spo_fast.get_include()])
packages = str(Path(spo_fast.__file__).parents[1])  # an editable installation is not on the path
setup(ext_modules=cythonize([extension], include_path=[packages]))
"""

CALL = """
import numpy as np, spo_fast, user
knm = np.ones((5, 5)) - np.eye(5)
theta = np.arange(5.0)
out = np.empty((5, 5))
assert user.modulated(knm, theta, *spo_fast.default_projections(), np.ones(4), out) == 0
assert np.array_equal(out, spo_fast.modulate(knm, theta, backend="cython"))
status, r, psi = user.mean(theta)
assert (status, r) == (0, spo_fast.order_parameter(theta)[0])
"""


def test_an_extension_of_ones_own(tmp_path):
    compiler()
    (tmp_path / "user.pyx").write_text(MODULE)
    (tmp_path / "setup.py").write_text(SETUP)
    finished([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], tmp_path)
    finished([sys.executable, "-c", CALL], tmp_path)
