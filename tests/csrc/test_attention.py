"""The core's attention, forward and reverse, on every instruction set, against formulas written out here."""

from __future__ import annotations

import ctypes
import mmap
import pickle

import numpy as np
import pytest

core = pytest.importorskip("spo_fast._core", reason="the C core is not built")

SETS = core.instruction_sets()
SINGLE, DOUBLE = np.float32, np.float64
# Largest errors in units of the largest entry, of outputs and gradients: some ten times what rounding leaves.
TOLERANCE = {SINGLE: (5e-6, 5e-5), DOUBLE: (2e-14, 2e-13)}


@pytest.fixture(params=SETS)
def instruction_set(request):
    """Run the test on one instruction set, then go back to the fastest."""
    core.select_instruction_set(request.param)
    yield request.param
    core.select_instruction_set(SETS[0])


def error(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference in units of the largest entry, or of 0.1 where all are smaller."""
    assert got.shape == exact.shape
    assert np.isfinite(got).all()
    return float(np.abs(got - exact).max(initial=0) / max(np.abs(exact).max(initial=0), 0.1))


# ---- softmax attention -------------------------------------------------------------------------------------


def softmax_attention(q, k, v, grad, *, scale, causal, key_mask, sink, sink_value):
    """Everything from the whole matrix of weights, in float64: out, lse, and the five gradients."""
    q, k, v, grad = (np.asarray(x, float) for x in (q, k, v, grad))
    (groups, heads, n, _), m = q.shape, k.shape[2]
    seen = np.ones((groups, 1, n, m), bool)
    if causal:
        seen = seen & (np.arange(m)[None, :] <= np.arange(n)[:, None] + m - n)
    if key_mask is not None:
        seen = seen & key_mask[:, None, None, :]
        k, v = (np.where(key_mask[:, None, :, None], x, 0.0) for x in (k, v))
    score = np.where(seen, scale * np.einsum("ghie,ghje->ghij", q, k), -np.inf)
    column = np.full(heads, -np.inf) if sink is None else np.asarray(sink, float)
    value = np.zeros((heads, v.shape[3])) if sink_value is None else np.asarray(sink_value, float)
    score = np.concatenate(
        [score, np.broadcast_to(column[None, :, None, None], (groups, heads, n, 1))], axis=3
    )
    top = np.max(score, axis=3, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weight = np.exp(score - top)
    total = weight.sum(axis=3, keepdims=True)
    weight = weight / np.where(total == 0, 1.0, total)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    keys, rest = weight[..., :-1], weight[..., -1]
    out = np.einsum("ghij,ghjf->ghif", keys, v) + rest[..., None] * value[None, :, None, :]
    d = (grad * out).sum(axis=3)
    slope = keys * (np.einsum("ghif,ghjf->ghij", grad, v) - d[..., None])
    gradients = (
        scale * np.einsum("ghij,ghje->ghie", slope, k),
        scale * np.einsum("ghij,ghie->ghje", slope, q),
        np.einsum("ghij,ghif->ghjf", keys, grad),
        (rest * (np.einsum("ghif,hf->ghi", grad, value) - d)).sum(axis=(0, 2)),
        np.einsum("ghi,ghif->hf", rest, grad),
    )
    return out, lse, gradients


# groups, heads, queries, keys, width, value width: crowds with and without tails; tiles of part of a
# vector, of several vectors and of several tiles of keys; more keys than queries, fewer, none; one of all
SHAPES = [
    (5, 4, 17, 17, 32, 16),
    (3, 3, 6, 11, 5, 3),
    (33, 1, 3, 2, 1, 7),
    (7, 3, 40, 64, 9, 4),
    (1, 1, 1, 1, 1, 1),
    (1, 2, 150, 150, 16, 37),
    (2, 1, 131, 300, 33, 2),
    (1, 1, 290, 70, 4, 20),
    (2, 2, 9, 0, 3, 5),
    (1, 1, 0, 4, 2, 2),
]


def case(shape, dtype, causal, masked, sink, seed=0):
    """Arrays and options of one case; what the mask hides is NaN."""
    groups, heads, n, m, e, f = shape
    rng = np.random.default_rng(seed)

    def normal(*size):
        return rng.normal(size=size).astype(dtype)

    q, k, v, grad = (
        normal(groups, heads, n, e),
        normal(groups, heads, m, e),
        None,
        normal(groups, heads, n, f),
    )
    v = normal(groups, heads, m, f)
    options = {
        "scale": 0.7 / np.sqrt(e),
        "causal": causal,
        "key_mask": None,
        "sink": None,
        "sink_value": None,
    }
    if masked:
        options["key_mask"] = rng.random((groups, m)) < 0.6
        if m:
            options["key_mask"][0] = False
        for x in (k, v):
            x[np.broadcast_to(~options["key_mask"][:, None, :], x.shape[:3])] = np.nan
    if sink:
        options["sink"] = 2 * normal(heads)
        options["sink_value"] = normal(heads, f) if sink == "valued" else None
    return q, k, v, grad, options


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("causal, masked, sink", [
    (False, False, None), (True, False, None), (True, False, "valued"),
    (False, True, None), (True, True, "plain"),
])  # fmt: skip
def test_attention_and_its_gradients_are_those_of_the_whole_matrix(
    instruction_set, dtype, causal, masked, sink
):
    for shape in SHAPES:
        q, k, v, grad, options = case(shape, dtype, causal, masked, sink)
        out, lse = core.attend(q, k, v, **options, workers=1)
        got = core.attend_vjp(q, k, v, out, lse, grad, **options, workers=1)
        exact_out, exact_lse, exact = softmax_attention(q, k, v, grad, **options)
        finite = np.isfinite(exact_lse)
        np.testing.assert_array_equal(np.isfinite(lse), finite)
        assert error(out, exact_out) <= TOLERANCE[dtype][0], shape
        assert error(lse[finite], exact_lse[finite]) <= TOLERANCE[dtype][0], shape
        for name, mine, true in zip(("q", "k", "v", "sink", "sink_value"), got, exact, strict=True):
            if mine is not None:
                assert error(mine, true) <= TOLERANCE[dtype][1], (shape, name)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("n", [13, 80])
def test_a_query_that_sees_nothing_has_the_sinks_value_and_no_gradient(instruction_set, dtype, n):
    for masked, sink in ((False, None), (True, None), (True, "valued")):
        q, k, v, grad, options = case((4, 3, n, 5, 6, 3), dtype, True, masked, sink)
        out, lse = core.attend(q, k, v, **options, workers=1)
        dq, dk, dv, _, _ = core.attend_vjp(q, k, v, out, lse, grad, **options, workers=1)
        blind = slice(0, n - 5)
        value = 0 if sink is None else options["sink_value"][None, :, None, :]
        np.testing.assert_array_equal(out[:, :, blind], np.broadcast_to(value, out[:, :, blind].shape))
        assert not dq[:, :, blind].any()
        if sink is None:
            assert np.isneginf(lse[:, :, blind]).all()
        if masked:
            hidden = np.broadcast_to(~options["key_mask"][:, None, :], dk.shape[:3])
            assert not dk[hidden].any() and not dv[hidden].any()


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("shape", [(6, 3, 17, 17, 8, 5), (1, 2, 90, 110, 7, 9)])
def test_a_sink_of_minus_infinity_is_no_sink_bit_for_bit(instruction_set, dtype, shape):
    q, k, v, grad, options = case(shape, dtype, True, False, "valued")
    value = options.pop("sink_value")
    options.pop("sink")
    none = {"sink": None, "sink_value": None}
    never = {"sink": np.full(shape[1], -np.inf, dtype), "sink_value": value}
    out, lse = core.attend(q, k, v, **options, **none, workers=1)
    same_out, same_lse = core.attend(q, k, v, **options, **never, workers=1)
    np.testing.assert_array_equal(out, same_out)
    np.testing.assert_array_equal(lse, same_lse)
    plain = core.attend_vjp(q, k, v, out, lse, grad, **options, **none, workers=1)
    sunk = core.attend_vjp(q, k, v, out, lse, grad, **options, **never, workers=1)
    for one, other in zip(plain[:3], sunk[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not sunk[3].any() and not sunk[4].any()


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("n", [20, 120])
def test_large_scores_neither_overflow_nor_vanish(instruction_set, dtype, n):
    q, k, v, _, options = case((5, 2, n, n, 3, 4), dtype, True, False, None)
    for size in (300.0, 3e4):
        k[:, :, n // 2] = dtype(size)  # its scores dwarf the others', upwards or downwards
        out, lse = core.attend(q, k, v, **options, workers=1)
        exact, exact_lse, _ = softmax_attention(q, k, v, out, **options)
        assert error(lse, exact_lse) <= 1e-6
        assert error(out, exact) <= size * (1e-6 if dtype is SINGLE else 1e-14)


def test_float32_adds_many_terms_up_safely(instruction_set):
    """Equal weights and values that round the same way every time, the worst there is."""
    n = 6000
    q, k = np.zeros((1, 1, 40, 2), SINGLE), np.zeros((1, 1, n, 2), SINGLE)
    v = np.full((1, 1, n, 3), 0.1, SINGLE)
    options = {"scale": 1.0, "causal": False, "key_mask": None, "sink": None, "sink_value": None}
    out, lse = core.attend(q, k, v, **options, workers=1)
    assert error(out, np.full(out.shape, 0.1)) <= 2e-6
    grad = np.full(out.shape, 0.7, SINGLE)
    dv = core.attend_vjp(q, k, v, out, lse, grad, **options, workers=1)[2]
    assert error(dv, np.full(dv.shape, 40 * 0.7 / n)) <= 2e-6


# ---- phases ------------------------------------------------------------------------------------------------


def phase_attention(
    c, s, v, weight, alpha, kappa, ramp, *, steps, dt, queries, static_query, value_consensus
):
    """The sums as they are written, one batch and head at a time, over every pair and phase."""
    batch, n, heads, _ = c.shape
    out = np.empty(v.shape)
    ahead = np.arange(n)[None, :] > np.arange(n)[:, None]
    places = np.arange(n)[:, None] * ramp
    for b in range(batch):
        for h in range(heads):
            theta = np.arctan2(s[b, :, h], c[b, :, h]) + places
            query = theta
            if queries is not None:
                query = np.arctan2(queries[1][b, :, h], queries[0][b, :, h]) + places
            values = v[b, :, h]
            for t in range(steps + 1):
                if not static_query and queries is None:
                    query = theta
                lag = theta[None, :, :] + alpha[h]
                score = (weight[h] * np.cos(query[:, None, :] - lag)).sum(axis=2)
                score[ahead] = -np.inf
                a = np.exp(score - score.max(axis=1, keepdims=True))
                a /= a.sum(axis=1, keepdims=True)
                if t < steps:
                    values = values + dt * value_consensus * (a @ values - values)
                    pull = (a[:, :, None] * np.sin(lag - theta[:, None, :])).sum(axis=1)
                    theta = theta + dt * kappa[h] * pull
            out[b, :, h] = a @ values
    return out


PHASE_CASES = {
    "plain": {"shape": (3, 9, 3, 4, 5), "steps": 3},
    "one token": {"shape": (2, 1, 2, 3, 2), "steps": 2},
    "no steps": {"shape": (5, 6, 4, 2, 3), "steps": 0},
    "static": {"shape": (2, 14, 2, 3, 9), "steps": 4, "static_query": True},
    "queries": {"shape": (2, 7, 3, 5, 4), "steps": 2, "queries": True},
    "consensus": {"shape": (3, 10, 2, 3, 3), "steps": 5, "value_consensus": 0.3},
    "static consensus": {"shape": (1, 21, 1, 4, 6), "steps": 3, "value_consensus": 0.8, "static_query": True},
    "far steps": {"shape": (2, 8, 2, 3, 4), "steps": 3, "dt": 3.0},
    "tiles": {"shape": (1, 150, 2, 9, 3), "steps": 2},
    "tiles, consensus": {"shape": (2, 77, 1, 3, 18), "steps": 3, "value_consensus": 0.2},
    "tiles, queries": {"shape": (1, 70, 1, 5, 5), "steps": 4, "queries": True, "value_consensus": 0.5},
}
NAMES = ("c", "s", "v", "weight", "alpha", "kappa")


def phase_case(name, dtype, seed=0):
    """Arguments and options of a case."""
    given = dict(PHASE_CASES[name])
    batch, n, heads, m, f = given.pop("shape")
    rng = np.random.default_rng(seed)
    # away from the origin, where central differences would not do
    radius, angle = (
        rng.uniform(0.5, 2.0, (2, batch, n, heads, m)),
        rng.uniform(-4, 4, (2, batch, n, heads, m)),
    )
    pair = [(radius[k] * turn(angle[k])).astype(dtype) for k in range(2) for turn in (np.cos, np.sin)]
    arguments = [*pair[:2], rng.normal(size=(batch, n, heads, f)).astype(dtype)]
    arguments += [
        rng.normal(size=(heads, m)).astype(dtype),
        (0.3 * rng.normal(size=(heads, m))).astype(dtype),
    ]
    arguments += [rng.uniform(0.2, 0.7, heads).astype(dtype), 10.0 ** -np.arange(m)]
    options = {"steps": 1, "dt": 0.9, "queries": None, "static_query": False, "value_consensus": 0.0}
    options.update(given)
    options["queries"] = tuple(pair[2:]) if options["queries"] else None
    return arguments, options


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("name", PHASE_CASES)
def test_phases_follow_the_sums_as_written(instruction_set, dtype, name):
    arguments, options = phase_case(name, dtype)
    exact = phase_attention(*(x.astype(float) for x in arguments), **options)
    results = [
        core.phase_attend(*arguments, **options, keep=k, workers=1)[0] for k in ("none", "all", "sqrt")
    ]
    assert error(results[0], exact) <= TOLERANCE[dtype][0]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def stretched(options, way, size):
    """Options whose queries moved along a way."""
    if options["queries"] is None:
        return options
    moved = tuple(x + size * y for x, y in zip(options["queries"], way, strict=True))
    return {**options, "queries": moved}


@pytest.mark.parametrize("keep", ["all", "sqrt"])
@pytest.mark.parametrize("name", PHASE_CASES)
def test_reverse_mode_is_the_slope_along_random_ways(instruction_set, name, keep):
    arguments, options = phase_case(name, DOUBLE)
    rng = np.random.default_rng(1)
    out, state = core.phase_attend(*arguments, **options, keep=keep, workers=1)
    grad = rng.normal(size=out.shape)
    found = core.phase_attend_vjp(state, grad, workers=1)
    size = 1e-5
    for k, moved in enumerate((*NAMES, "queries")):
        if moved == "queries" and options["queries"] is None:
            continue
        names = ("dcq", "dsq") if moved == "queries" else ("d" + moved,)
        ways = [rng.normal(size=found[x].shape) for x in names]
        values = []
        for step in (size, -size):
            if moved == "queries":
                there = phase_attention(*arguments, **stretched(options, ways, step))
            else:
                changed = list(arguments)
                changed[k] = arguments[k] + step * ways[0]
                there = phase_attention(*changed, **options)
            values.append((grad * there).sum())
        slope = (values[0] - values[1]) / (2 * size)
        mine = sum((found[x] * way).sum() for x, way in zip(names, ways, strict=True))
        # central differences: size^2 of curvature and 1e-16 / size of rounding, both about 1e-10 of the sum
        assert abs(mine - slope) <= 1e-7 * max(abs(slope), np.abs(grad).sum() * 1e-2), moved


@pytest.mark.parametrize("name", PHASE_CASES)
def test_float32_gradients_are_near_those_in_float64(instruction_set, name):
    arguments, options = phase_case(name, SINGLE)
    wide = [x.astype(float) for x in arguments]
    grad = np.random.default_rng(2).normal(size=arguments[2].shape).astype(SINGLE)
    _, state = core.phase_attend(*arguments, **options, keep="all", workers=1)
    found = core.phase_attend_vjp(state, grad, workers=1)
    if options["queries"] is not None:
        options["queries"] = tuple(x.astype(float) for x in options["queries"])
    _, state = core.phase_attend(*wide, **options, keep="all", workers=1)
    for key, exact in core.phase_attend_vjp(state, grad.astype(float), workers=1).items():
        assert error(found[key], exact) <= TOLERANCE[SINGLE][1], key


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_pairs_at_the_origin_or_of_extreme_size(instruction_set, dtype):
    arguments, options = phase_case("plain", dtype)
    exact = phase_attention(*(x.astype(float) for x in arguments), **options)
    c, s = arguments[:2]
    for power in (2.0**-70, 2.0**60):
        scaled = [c * dtype(power), s * dtype(power), *arguments[2:]]
        got, state = core.phase_attend(*scaled, **options, keep="all", workers=1)
        assert error(got, exact) <= TOLERANCE[dtype][0]
        found = core.phase_attend_vjp(state, np.ones_like(got), workers=1)
        assert all(np.isfinite(x).all() for x in found.values())
    c[0, 2], s[0, 2] = 0.0, 0.0
    c[0, 3], s[0, 3] = -0.0, 0.0
    got, state = core.phase_attend(*arguments, **options, keep="all", workers=1)
    assert (
        error(got, phase_attention(*(x.astype(float) for x in arguments), **options)) <= TOLERANCE[dtype][0]
    )
    found = core.phase_attend_vjp(state, np.ones_like(got), workers=1)
    assert not found["dc"][0, 2:4].any() and not found["ds"][0, 2:4].any()


def test_far_tokens_keep_their_phases_in_float32(instruction_set):
    """A ramp of one radian a token: as a float32 number, the phase of token 3000 is off by 1e-4."""
    n = 3000
    rng = np.random.default_rng(3)
    c, s, v = (rng.normal(size=(1, n, 1, 1)).astype(SINGLE) for _ in range(3))
    constants = [np.full((1, 1), 3.0, SINGLE), np.zeros((1, 1), SINGLE), np.full(1, 0.5, SINGLE), np.ones(1)]
    options = {
        "steps": 1,
        "dt": 1.0,
        "static_query": False,
        "value_consensus": 0.0,
        "keep": "none",
        "workers": 1,
    }
    got, _ = core.phase_attend(c, s, v, *constants, **options)
    wide = [x.astype(float) for x in (c, s, v, *constants)]
    exact, _ = core.phase_attend(*wide, **options)
    assert error(got, exact) <= 2e-6


# ---- workers, states, memory -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_bits_do_not_depend_on_the_number_of_workers(dtype):
    for shape in ((9, 4, 17, 17, 8, 8), (1, 2, 1500, 1500, 4, 3)):
        q, k, v, grad, options = case(shape, dtype, True, False, "valued")
        one = core.attend(q, k, v, **options, workers=1)
        back = core.attend_vjp(q, k, v, *one, grad, **options, workers=1)
        for workers in (2, 5):
            for x, y in zip(one, core.attend(q, k, v, **options, workers=workers), strict=True):
                np.testing.assert_array_equal(x, y)
            again = core.attend_vjp(q, k, v, *one, grad, **options, workers=workers)
            for x, y in zip(back, again, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("keep", ["all", "sqrt"])
@pytest.mark.parametrize("name", ["plain", "tiles, consensus", "tiles, queries"])
def test_phases_do_not_depend_on_the_number_of_workers(name, keep):
    arguments, options = phase_case(name, SINGLE)
    results = []
    for workers in (1, 2, 5):
        out, state = core.phase_attend(*arguments, **options, keep=keep, workers=workers)
        results.append({"out": out, **core.phase_attend_vjp(state, np.ones_like(out), workers=workers)})
    for other in results[1:]:
        for key in other:
            np.testing.assert_array_equal(results[0][key], other[key])


@pytest.mark.parametrize("keep", ["all", "sqrt"])
@pytest.mark.parametrize("name", ["plain", "tiles, consensus"])
def test_a_state_survives_pickling_and_another_instruction_set(name, keep):
    arguments, options = phase_case(name, DOUBLE)
    out, state = core.phase_attend(*arguments, **options, keep=keep, workers=1)
    grad = np.random.default_rng(4).normal(size=out.shape)
    found = core.phase_attend_vjp(state, grad, workers=1)
    again = pickle.loads(pickle.dumps(state))
    try:
        for chosen in SETS:
            core.select_instruction_set(chosen)
            other = core.phase_attend_vjp(again, grad, workers=1)
            for key, exact in found.items():
                assert error(other[key], exact) <= (0 if chosen == SETS[0] else 1e-12), key
    finally:
        core.select_instruction_set(SETS[0])


def test_arrays_that_a_kernel_cannot_read_are_refused():
    q, k, v, _, options = case((1, 2, 4, 4, 3, 2), DOUBLE, False, False, None)
    for wrong in (k[:, :, :, :2], k.astype(SINGLE), np.asfortranarray(k), k[:, :1]):
        with pytest.raises(ValueError, match="expected a C-contiguous float64 array"):
            core.attend(q, wrong, v, **options, workers=1)
    with pytest.raises(ValueError, match="float32 or float64"):
        core.attend(q.astype(int), k.astype(int), v.astype(int), **options, workers=1)
    arguments, options = phase_case("plain", DOUBLE)
    with pytest.raises(ValueError, match="expected a C-contiguous float64 array"):
        core.phase_attend(arguments[0][:1], *arguments[1:], **options, keep="all", workers=1)


def test_memory_is_linear_in_the_number_of_tokens():
    """States of 512 and of 4096 tokens differ by a factor of eight."""
    sizes = []
    for n in (512, 4096):
        rng = np.random.default_rng(5)
        c, s, v = (rng.normal(size=(1, n, 1, 2)).astype(SINGLE) for _ in range(3))
        constants = [np.ones((1, 2), SINGLE), np.zeros((1, 2), SINGLE), np.ones(1, SINGLE), np.zeros(2)]
        options = {
            "steps": 1,
            "dt": 1.0,
            "static_query": False,
            "value_consensus": 0.0,
            "keep": "all",
            "workers": 1,
        }
        sizes.append(core.phase_attend(c, s, v, *constants, **options)[1].kept.nbytes)
    assert sizes[1] == 8 * sizes[0]


NO_ACCESS = 0  # PROT_NONE


class Fenced:
    """Copies of arrays that end, or begin, where the process may not read or write."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.rooms = []

    def copy(self, array: np.ndarray, side: str) -> np.ndarray:
        page = mmap.PAGESIZE
        inside = -(-max(array.nbytes, 1) // page) * page
        room = mmap.mmap(-1, inside + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for fence in (base, base + page + inside):
            if self.libc.mprotect(fence, page, NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.rooms.append(room)
        begin = page if side == "begin" else page + inside - array.nbytes
        fenced = np.frombuffer(room, array.dtype, array.size, begin).reshape(array.shape)
        fenced[...] = array
        return fenced


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="mprotect is POSIX")
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("side", ["begin", "end"])
def test_nothing_is_read_beyond_the_arrays(instruction_set, dtype, side):
    fence = Fenced()
    for shape in ((5, 4, 17, 17, 7, 3), (3, 3, 6, 11, 5, 3), (1, 2, 131, 77, 9, 5), (1, 1, 1, 1, 1, 1)):
        for masked in (False, True):
            q, k, v, grad, options = case(shape, dtype, True, masked, "valued")
            q, k, v, grad = (fence.copy(x, side) for x in (q, k, v, grad))
            for key in ("key_mask", "sink", "sink_value"):
                if options[key] is not None:
                    options[key] = fence.copy(options[key], side)
            out, lse = (fence.copy(x, side) for x in core.attend(q, k, v, **options, workers=1))
            core.attend_vjp(q, k, v, out, lse, grad, **options, workers=1)
    for name in PHASE_CASES:
        arguments, options = phase_case(name, dtype)
        arguments = [fence.copy(x, side) for x in arguments]
        if options["queries"] is not None:
            options["queries"] = tuple(fence.copy(x, side) for x in options["queries"])
        out, state = core.phase_attend(*arguments, **options, keep="sqrt", workers=1)
        core.phase_attend_vjp(state, fence.copy(np.ones_like(out), side), workers=1)
