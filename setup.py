"""Build of the C core; everything else is declared in pyproject.toml.

The core is optional: where it cannot be compiled the package installs all the same, with the Numba and NumPy
backends, and a note beside the package says why, which ``spo_fast.backends()`` repeats.
``SPO_FAST_BACKENDS=cython`` turns the failure into an error.
"""

import os
import re
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NOTE = "_core_not_built.txt"
SOURCES = ["csrc/status.c", "csrc/dispatch.c", "csrc/modulation.c", "csrc/daido.c", "csrc/kuramoto.c"]
INSTRUCTION_SETS = ["csrc/isa/baseline.c", "csrc/isa/avx2.c", "csrc/isa/avx512.c"]
# Products and sums are fused only where the kernels say so; errno and the trap state are not observed.
# Nothing else is relaxed, and no instruction set is raised.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]


def summary(error):
    """One line that names the program that failed, without its arguments."""
    return re.sub(r"ommand '\['([^']+)'.*\]'", r"ommand \1", " ".join(str(error).split()))


class BuildCore(build_ext):
    """Compiles the core, or leaves a note that says why it could not."""

    def run(self):
        """Build, and keep the reason of a failure."""
        self.note = None
        super().run()

    def build_extension(self, ext):
        """Compile one extension; a failure is an error only where the backend is required."""
        note = Path(self.get_ext_fullpath(ext.name)).parent / NOTE
        note.unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except Exception as error:
            if "cython" in os.environ.get("SPO_FAST_BACKENDS", "").split(","):
                raise
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # what an earlier build left
            reason = f"the C core was not compiled: {summary(error)}"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(reason + "\n")
            self.note = note
            print(f"spo_fast: {reason}; the Numba and NumPy backends are installed", file=sys.stderr)

    def get_outputs(self):
        """Extensions that were built, and the note about one that was not."""
        built = [path for path in super().get_outputs() if Path(path).exists()]
        return [*built, str(self.note)] if self.note and not self.inplace else built

    def copy_extensions_to_source(self):
        """Editable installs: copy what was built."""
        if not self.note:
            super().copy_extensions_to_source()


core = Extension(
    "spo_fast._core",
    ["spo_fast/_core.pyx", *SOURCES, *INSTRUCTION_SETS],
    include_dirs=["csrc/include", numpy.get_include()],
    depends=[str(path) for path in Path("csrc").rglob("*.h")],
    extra_compile_args=FLAGS if sys.platform != "win32" else [],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    libraries=["m"] if sys.platform != "win32" else [],
    optional=True,
)

setup(ext_modules=cythonize([core], language_level=3), cmdclass={"build_ext": BuildCore})
