"""The core's parts of context-pulse attention on every instruction set, against the formulas in NumPy.

Those are held to plain loops in tests/test_context_pulse.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from spo_fast.backends.pulse import reference
from spo_fast.pulse import angles, bases

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

SETS = core.instruction_sets()
TOLERANCE = {np.float32: 3e-5, np.float64: 1e-13}
ONE = {"workers": 1}


@pytest.fixture(params=SETS)
def instruction_set(request):
    """Run the test on one instruction set, then go back to the fastest."""
    core.select_instruction_set(request.param)
    yield request.param
    core.select_instruction_set(SETS[0])


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: dtype.__name__)
def dtype(request):
    return request.param


def agree(found, wanted, dtype):
    for one, other in zip(found, wanted, strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        assert one.shape == other.shape and np.isfinite(one).all()
        scale = max(np.abs(other).max(initial=0.0), 0.1)
        assert np.abs(one - other).max(initial=0.0) < TOLERANCE[dtype] * scale


@pytest.mark.parametrize("count", [1, 5, 32, 70_001])
def test_gate(instruction_set, dtype, count, rng):
    x, g, r = (rng.normal(size=count).astype(dtype) for _ in range(3))
    g *= 20
    for name, arguments in (("gate", (x, g)), ("gate_vjp", (x, g, r))):
        agree(
            *(np.atleast_2d(getattr(module, name)(*arguments, **ONE)) for module in (core, reference)), dtype
        )


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 3), (1, 130, 17), (3, 5, 259), (1, 70, 520)])
def test_leaky_scan(instruction_set, dtype, shape, rng):
    x, r = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    results = []
    for module in (core, reference):
        c = np.empty_like(x)
        module.leaky_scan(x, 0.8, c, **ONE)
        fixed, zero = module.leaky_scan_vjp(x, 0.8, None, r, **ONE)
        assert zero == 0.0
        results.append([c, fixed, *module.leaky_scan_vjp(x, 0.8, c, r, **ONE)])
    agree(*results, dtype)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 9, 2, 6), (1, 33, 3, 16), (2, 17, 1, 38)])
@pytest.mark.parametrize("twisted, first", [(False, False), (True, False), (True, True)])
def test_normalisation_twist_and_rotation(instruction_set, dtype, shape, twisted, first, rng):
    batch, n, heads, width = shape
    x, r = rng.normal(size=shape).astype(dtype), rng.normal(size=(batch, heads, n, width)).astype(dtype)
    small = [rng.uniform(0.5, 1.5, shape[:3]) for _ in range(4)]
    twist = rng.normal(size=(heads, width, width)).astype(dtype) if twisted else None
    how = x, small[0], small[1], twist, *angles(0, n, width, np.dtype(dtype))
    results = []
    for module in (core, reference):
        found = [*module.token_moments(x, **ONE), module.turn(*how, twist_first=first, **ONE)]
        g, *more = module.turn_vjp(*how, r, twist_first=first, **ONE)
        found += [g.copy(), *(array for array in more if array is not None)]
        module.unnormalise(g, x, *small, **ONE)
        results.append([*found, g])
    agree(*results, dtype)


@pytest.mark.parametrize(
    "n, width, chunk", [(1, 2, 4), (19, 3, 4), (40, 16, 16), (37, 10, 9), (33, 5, 32), (9, 4, 1)]
)
@pytest.mark.parametrize("order, strict", [(None, True), (0, False), (1, True), (2, False), (2, True)])
def test_resonance(instruction_set, dtype, n, width, chunk, order, strict, rng):
    u, k, r = (rng.normal(size=(2, n, 2, width)).astype(dtype) for _ in range(3))
    u *= dtype(0.02)  # states grow; scores are to stay small
    basis, last = bases(n, chunk, order, strict, np.dtype(dtype))
    how = {"chunk": chunk, "scale": 0.5, "basis": basis, "last_basis": last, "per_token": strict} | ONE
    results = []
    for module in (core, reference):
        c = module.resonance(u, k, **how)
        results.append([c, *module.resonance_vjp(u, k, reference.resonance(u, k, **how), r, **how)])
    agree(*results, dtype)


def test_arrays_that_kernels_cannot_read_are_refused(rng):
    x = rng.normal(size=(2, 3, 2, 4))
    flat, small, twist = x.reshape(2, 3, 8), np.ones((2, 3, 2)), np.ones((2, 4, 4))
    table = angles(0, 3, 4, x.dtype)
    resonant = {"chunk": 2, "scale": 1.0, "basis": None, "last_basis": None, "per_token": True} | ONE
    read_only = flat.copy()
    read_only.flags.writeable = False
    calls = [
        lambda: core.gate(x, x[:1], **ONE),
        lambda: core.gate(x[..., ::2], x[..., ::2], **ONE),
        lambda: core.gate(x.astype(int), x.astype(int), **ONE),
        lambda: core.gate(x, x, workers=0),
        lambda: core.gate_vjp(x, x, x.astype(np.float32), **ONE),
        lambda: core.leaky_scan(flat, 0.5, flat[:1], **ONE),
        lambda: core.leaky_scan(flat, 0.5, read_only, **ONE),
        lambda: core.leaky_scan(flat, 0.5, flat.copy(), workers=0),
        lambda: core.leaky_scan_vjp(flat, 0.5, None, flat[:1], **ONE),
        lambda: core.leaky_scan_vjp(flat, 0.5, None, flat, workers=0),
        lambda: core.token_moments(x[::2, ::2], **ONE),
        lambda: core.token_moments(x, workers=0),
        lambda: core.turn(x, small[:1], small, twist, *table, twist_first=True, **ONE),
        lambda: core.turn(x, small, small, twist[:1], *table, twist_first=True, **ONE),
        lambda: core.turn(
            x[..., :3].copy(), small, small, None, *(t[:, :1].copy() for t in table), twist_first=True, **ONE
        ),
        lambda: core.turn_vjp(x, small, small, twist, *table, x, twist_first=True, **ONE),
        lambda: core.turn_vjp(
            x, small, small, twist, *table, x.reshape(2, 2, 3, 4), twist_first=True, workers=0
        ),
        lambda: core.resonance(x, x[:1], **resonant),
        lambda: core.resonance(x, x, **resonant | {"chunk": 0}),
        lambda: core.resonance(x, x, **resonant | {"workers": 0}),
        lambda: core.resonance(x, x, **resonant | {"basis": np.ones((2, 1)), "last_basis": np.ones((2, 1))}),
        lambda: core.resonance_vjp(x, x, x[:1], x, **resonant),
        lambda: core.resonance_vjp(x, x, x, x, **resonant | {"workers": 0}),
        lambda: core.unnormalise(x, x, small, small, small, small[:1], **ONE),
        lambda: core.unnormalise(x, x, small, small, small, small, workers=0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"expected|argument"):
            call()
