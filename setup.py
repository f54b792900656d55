"""Build of the C core and of the libraries in other languages; everything else is declared in pyproject.toml.

Each of them is optional: where one cannot be compiled the package installs all the same, and a note beside it
says why, which ``spo_fast.backends()`` repeats. ``SPO_FAST_BACKENDS`` lists those whose failure is an error,
as in ``SPO_FAST_BACKENDS=cython,rust``.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NOTE = "_core_not_built.txt"
CORE = ("status", "dispatch", "pool", "modulation", "daido", "kuramoto", "attention", "pulse", "derivatives")
SOURCES = [f"csrc/{name}.c" for name in CORE]
INSTRUCTION_SETS = ["csrc/isa/baseline.c", "csrc/isa/avx2.c", "csrc/isa/avx512.c"]
# Products and sums are fused only where the kernels say so; errno and the trap state are not observed.
# Nothing else is relaxed, and no instruction set is raised.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-pthread"]


def load(path):
    """A module by its file: the package itself cannot be imported before it is built."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


libraries = load("spo_fast/backends/libraries.py")
REQUIRED = set(filter(None, os.environ.get("SPO_FAST_BACKENDS", "").split(",")))


def summary(error):
    """One line that names the program that failed, without its arguments."""
    return re.sub(r"ommand '\['([^']+)'.*\]'", r"ommand \1", " ".join(str(error).split()))


class BuildNative(build_ext):
    """Compiles the core and the libraries, or leaves a note that says why one could not be."""

    def run(self):
        """Build, and keep the reason of a failure."""
        self.note = None
        super().run()
        here = self.inplace or self.editable_mode
        folder = Path("spo_fast" if here else os.path.join(self.build_lib, "spo_fast"), "lib")
        self.made = [path for name in libraries.LANGUAGES for path in self.build_library(name, folder)]

    def build_library(self, name, folder):
        """Build the library of a language where its toolchain is; the files that this made."""
        target, note = folder / libraries.file_name(name), folder / f"{name}_not_built.txt"
        note.unlink(missing_ok=True)
        if libraries.toolchain(name) is None and name not in REQUIRED:
            return []
        try:
            if not libraries.is_current(name, target):
                libraries.build(name, target.resolve())
        except libraries.Unavailable as error:
            if name in REQUIRED:
                raise
            target.unlink(missing_ok=True)  # what an earlier build left
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{error}\n", encoding="utf-8")
            print(f"spo_fast: {error}; installing without it", file=sys.stderr)
            return [note]
        target.with_suffix(".lock").unlink(missing_ok=True)
        return [target, target.with_suffix(".json")]

    def build_extension(self, ext):
        """Compile one extension; a failure is an error only where the backend is required."""
        note = Path(self.get_ext_fullpath(ext.name)).parent / NOTE
        note.unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except Exception as error:
            if "cython" in REQUIRED:
                raise
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # what an earlier build left
            reason = f"the C core was not compiled: {summary(error)}"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(reason + "\n")
            self.note = note
            print(f"spo_fast: {reason}; the Numba and NumPy backends are installed", file=sys.stderr)

    def get_outputs(self):
        """What was built, and the notes about what was not."""
        built = [path for path in super().get_outputs() if Path(path).exists()]
        if self.inplace:
            return built
        return [*built, *map(str, getattr(self, "made", [])), *([str(self.note)] if self.note else [])]

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
    extra_link_args=["-pthread"] if sys.platform != "win32" else [],
    optional=True,
)

setup(ext_modules=cythonize([core], language_level=3), cmdclass={"build_ext": BuildNative})
