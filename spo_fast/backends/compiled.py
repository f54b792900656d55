"""The C core through Cython: the fastest backend, there where a C compiler was when the package was built."""

from __future__ import annotations

from spo_fast._core import Batch, BoundModulation, Integration, ModulationPlan, order_parameter

NAME = "cython"
SHARES_MEMBERS = True  # threads may follow members of an ensemble at the same time

__all__ = ["NAME", "Batch", "BoundModulation", "Integration", "ModulationPlan", "order_parameter"]
