"""Which code was measured: its size is tracked, its hash is printed and kept for the comparison."""

from __future__ import annotations

from .common import BACKENDS, code_files, require


class Loaded:
    params = (BACKENDS,)
    param_names = ("backend",)
    unit = "bytes"

    def setup(self, backend):
        require(backend)

    def track_code_size(self, backend):
        return sum(path.stat().st_size for path in code_files(backend))
