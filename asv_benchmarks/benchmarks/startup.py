"""From the start of a process: the import, and the first result. Each sample is a process of its own.

Timed is the processor time of these processes, which another busy process does not change.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from .common import BACKENDS, PROFILE, require

FIRST_CALL = """
import numpy as np
import spo_fast
spo_fast.modulate(np.ones((4, 4)) - np.eye(4), np.arange(4.0), backend="{backend}")
"""


def python(code: str, **environment: str) -> None:
    """Run `code` in a new interpreter, which must succeed."""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | environment)


def children_time() -> float:
    """Processor time in seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Startup:
    timer = staticmethod(children_time)
    rounds = PROFILE.rounds
    repeat = PROFILE.repeat
    number = 1
    warmup_time = 0.0
    timeout = 300


class Import(Startup):
    """A process that imports the package; the start of the interpreter is part of it."""

    def time_import(self):
        python("import spo_fast")


class FirstCall(Startup):
    """A process that modulates once, Numba's kernels being on disk already."""

    params = (BACKENDS,)
    param_names = ("backend",)

    def setup(self, backend):
        require(backend)
        python(FIRST_CALL.format(backend=backend))

    def time_first_call(self, backend):
        python(FIRST_CALL.format(backend=backend))


class FirstCallCold(Startup):
    """The same with nothing on disk: Numba compiles everything that ``modulate`` needs. Two samples."""

    params = (BACKENDS,)
    param_names = ("backend",)
    rounds = 2
    repeat = 1
    min_run_count = 1

    def setup(self, backend):
        require(backend)
        if backend == "numba" and not PROFILE.slow:
            raise NotImplementedError("compilation is not in this profile")
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self, backend):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def time_first_call_cold(self, backend):
        python(FIRST_CALL.format(backend=backend), NUMBA_CACHE_DIR=self.folder.name)
