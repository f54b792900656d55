"""Status codes that every native backend returns; the numbers are those of ``spo_fast.h``, never reused."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Outcome of a native call (``SPO_*`` in ``csrc/include/spo_fast.h``)."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    NONFINITE_COUPLING = 3
    ASYMMETRIC_COUPLING = 4
    NONZERO_DIAGONAL = 5
    NONFINITE_PHASE = 6
    NONFINITE_STATE = 7
