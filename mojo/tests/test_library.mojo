"""Statuses, shapes, edge cases, runs and vector functions of the library.

Run: mojo run --fp-mode contract=off -I mojo/src mojo/tests/test_library.mojo
"""

from std.ffi import external_call
from std.math import sqrt
from std.sys import size_of

from calls import (
    Attention,
    Oscillators,
    PI,
    Random,
    Tally,
    gap,
    largest_difference,
    order_parameter,
    pointer_to,
    read_only,
    same_bits,
    writable,
)
from lanes import LANES, Lanes
from spo_fast import (
    Text,
    spo_abi_version,
    spo_backend_name,
    spo_kuramoto_run,
    spo_modulate,
    spo_order_parameter,
    spo_status_text,
)
from structures import (
    ASYMMETRIC_COUPLING,
    INVALID_ARGUMENT,
    Integrator,
    METHOD_EULER,
    METHOD_RK4,
    METHOD_RK45,
    Modulation,
    NONFINITE_COUPLING,
    NONFINITE_PHASE,
    NONFINITE_STATE,
    NONZERO_DIAGONAL,
    Network,
    OK,
    OUT_OF_MEMORY,
    Record,
    State,
)
from vectormath import exp2, sincos, wrap

comptime SIZES = (1, 2, 3, 7, 8, 9, 16, 17, 33)
comptime METHODS = (METHOD_EULER, METHOD_RK4, METHOD_RK45)


def text_of(text: Text) -> String:
    var result = String()
    var k = 0
    while text[unsafe_offset=k] != 0:
        result += chr(Int(text[unsafe_offset=k]))
        k += 1
    return result


def test_identity(mut tally: Tally):
    tally.check(spo_abi_version() == 1, "ABI version")
    tally.check(text_of(spo_backend_name()) == "mojo", "name")
    var texts: List[String] = [
        "success",
        "an argument is out of its range",
        "out of memory",
        "the coupling matrix holds NaN or infinity",
        "the coupling matrix is not symmetric within 1e-12",
        "the diagonal of the coupling matrix is not zero within 1e-12",
        "the phases hold NaN or infinity",
        "a step gave NaN or infinity",
    ]
    for status in range(len(texts)):
        tally.check(text_of(spo_status_text(Int32(status))) == texts[status], texts[status])
    for status in [-1, 8, 999, -2147483648]:
        tally.check(text_of(spo_status_text(Int32(status))) == "unknown status", "text of an unknown status")


def test_layouts(mut tally: Tally):
    """Fields of eight bytes in the order of the header, nothing between them."""
    var m = Attention(1, 2).parameters()
    var at = Int(Pointer(to=m))
    tally.check(Int(Pointer(to=m.w_q)) - at == 24, "layout of a modulation")
    tally.check(Int(Pointer(to=m.temperature)) - at == 56, "its temperature")
    tally.check(Int(Pointer(to=m.strength)) - at == 64, "its strength")
    var w = Network(0, None, None, None, 0.0, 0.0, 0.0, None, 1)
    at = Int(Pointer(to=w))
    tally.check(Int(Pointer(to=w.alpha)) - at == 24, "layout of a network")
    tally.check(Int(Pointer(to=w.modulation)) - at == 56, "its modulation")
    tally.check(Int(Pointer(to=w.modulate_every)) - at == 64, "its interval")
    var i = Integrator(0, 0.1, 0.0, 0.0)
    tally.check(Int(Pointer(to=i.rtol)) - Int(Pointer(to=i)) == 24, "layout of an integrator")
    var s = State(None, None, 0.0, 0.0, 0)
    tally.check(Int(Pointer(to=s.t)) - Int(Pointer(to=s)) == 16, "layout of a state")
    tally.check(Int(Pointer(to=s.step)) - Int(Pointer(to=s)) == 32, "its step")
    var r = Record()
    tally.check(Int(Pointer(to=r.t_observe)) - Int(Pointer(to=r)) == 40, "layout of a record")
    tally.check(size_of[Modulation]() == 72 and size_of[Network]() == 72, "sizes")


# ---------------------------------------------------------------- vector functions


def units_apart(a: Float64, b: Float64) -> Float64:
    """The difference of two numbers in units in the last place of b."""
    var next = Float64(from_bits=abs(b).to_bits[DType.uint64]() + 1)
    return abs(a - b) / (next - abs(b))


def worst_sincos(low: Float64, high: Float64) -> Float64:
    var random = Random(2)
    var worst = 0.0
    for _ in range(20000):
        var x = random.uniform(low, high)
        var both = sincos(Lanes(x))
        worst = max(worst, units_apart(both.sine[LANES - 1], external_call["sin", Float64](x)))
        worst = max(worst, units_apart(both.cosine[0], external_call["cos", Float64](x)))
    return worst


def test_vector_functions(mut tally: Tally):
    var random = Random(3)
    for reach in [7.0, 500.0, 524288.0, 1e9, 1e300]:
        tally.check(worst_sincos(-reach, reach) <= 1.5, "sin and cos up to " + String(reach))
    for quarter in range(-64, 64):
        var x = Float64(quarter) * 0.5 * PI
        tally.check(
            units_apart(sincos(Lanes(x)).sine[0], external_call["sin", Float64](x)) <= 1.5,
            "sin near a multiple",
        )
    var worst = 0.0
    for _ in range(20000):
        var x = random.uniform(-1021.0, 1023.0)
        worst = max(worst, units_apart(exp2(Lanes(x))[0], external_call["exp2", Float64](x)))
    tally.check(worst <= 2.0, "exp2")
    var exact = sincos(Lanes(0.0))
    tally.check(exact.sine[0] == 0.0 and exact.cosine[0] == 1.0 and exp2(Lanes(0.0))[0] == 1.0, "values at 0")
    var holds = True
    for _ in range(20000):
        var x = random.uniform(-1e6, 1e6)
        var y = wrap(Lanes(x))[0]
        holds &= 0.0 <= y and y < 2.0 * PI and gap(x, y) <= 1e-9
    tally.check(holds, "wrapped phases")
    for x in [2.0 * PI, -1e-300, -0.0, 1e300]:
        var y = wrap(Lanes(x))[0]
        tally.check(0.0 <= y and y < 2.0 * PI, "wrapped " + String(x))
    var infinite = wrap(Lanes(1e308 * 10.0))[0]
    tally.check(infinite != infinite, "wrapped infinity is NaN")


# ---------------------------------------------------------------- modulation


def plain_modulation(attention: Attention, knm: List[Float64], theta: List[Float64]) -> List[Float64]:
    """The matrix K' by the definition, pair by pair; attention to the rows of K as they stand."""
    var n = len(theta)
    var d = attention.d_model
    var width = d // attention.n_heads
    var x = List[Float64](length=n * d, fill=0.0)
    for i in range(n):
        for m in range(0, d, 2):
            x[i * d + m] = external_call["cos", Float64](theta[i] * Float64(m // 2 + 1))
            x[i * d + m + 1] = external_call["sin", Float64](theta[i] * Float64(m // 2 + 1))
    var y = List[Float64](length=n * d, fill=0.0)
    for h in range(attention.n_heads):
        var q = projected(x, attention.w_q, n, d, width, h)
        var k = projected(x, attention.w_k, n, d, width, h)
        var v = projected(x, attention.w_v, n, d, width, h)
        for i in range(n):
            var logits = List[Float64](length=n, fill=0.0)
            var largest = -Float64.MAX
            for j in range(n):
                for e in range(width):
                    logits[j] += q[i * width + e] * k[j * width + e]
                logits[j] /= sqrt(Float64(width)) * attention.temperature[h]
                if masked(attention, knm, n, i, j):
                    largest = max(largest, logits[j])
            var total = 0.0
            for j in range(n):
                if masked(attention, knm, n, i, j):
                    var weight = external_call["exp", Float64](logits[j] - largest)
                    total += weight
                    for e in range(width):
                        y[i * d + h * width + e] += weight * v[j * width + e]
            for e in range(width):
                y[i * d + h * width + e] /= total if total > 0.0 else 1.0
    var unit = projected(y, attention.w_o, n, d, d, 0)
    for i in range(n):
        var square = 0.0
        for e in range(d):
            square += unit[i * d + e] * unit[i * d + e]
        for e in range(d):
            unit[i * d + e] /= sqrt(square) + 1e-12
    var scaled = List[Float64](length=n * n, fill=0.0)
    for i in range(n):
        for j in range(n):
            var product = 1.0
            for e in range(d):
                product += unit[i * d + e] * unit[j * d + e]
            var strength = attention.strength * 0.5 * product if masked(attention, knm, n, i, j) else 0.0
            scaled[i * n + j] = knm[i * n + j] * (1.0 + strength) if i != j else 0.0
    var result = List[Float64](length=n * n, fill=0.0)
    for i in range(n):
        for j in range(n):
            result[i * n + j] = 0.5 * (scaled[i * n + j] + scaled[j * n + i])
    return result^


def masked(attention: Attention, knm: List[Float64], n: Int, i: Int, j: Int) -> Bool:
    """Whether query i sees key j."""
    var near = attention.block_size < 0 or abs(i - j) <= attention.block_size
    return i != j and knm[i * n + j] != 0.0 and near


def projected(
    x: List[Float64], weights: List[Float64], n: Int, d: Int, width: Int, head: Int
) -> List[Float64]:
    """The product of x (n, d) with one head's weights (d, width)."""
    var result = List[Float64](length=n * width, fill=0.0)
    for i in range(n):
        for m in range(d):
            for e in range(width):
                result[i * width + e] += x[i * d + m] * weights[(head * d + m) * width + e]
    return result^


def test_modulation_by_its_definition(mut tally: Tally):
    for shape in [(1, 2), (4, 8), (2, 8), (1, 8), (16, 16), (2, 6), (1, 12), (2, 20)]:
        comptime for index in range(len(SIZES)):
            comptime n = SIZES[index]
            for setting in range(4):
                var random = Random(n)
                var attention = Attention(shape[0], shape[1], seed=n + 1)
                attention.temperature = random.list(shape[0], 0.4, 2.0)
                attention.block_size = 5 if setting % 2 == 1 else -1
                var knm = random.symmetric(n, 0.6 if setting >= 2 else 1.0)
                var theta = random.list(n, -10.0, 10.0)
                var found = attention.modulated(knm, theta)
                var right = plain_modulation(attention, knm, theta)
                var symmetric = True
                for i in range(n):
                    symmetric &= found[i * n + i] == 0.0
                    for j in range(n):
                        symmetric &= found[i * n + j] == found[j * n + i]
                var what = String("K' of ", n, " with heads ", shape[0], ", d ", shape[1], ", ", setting)
                tally.check(symmetric and largest_difference(found, right) <= 2e-12, what)


def test_special_modulations(mut tally: Tally):
    var random = Random(5)
    var n = 9
    var knm = random.symmetric(n)
    var theta = random.list(n, 0.0, 6.0)
    var attention = Attention(4, 8)
    for pair in [(2, 5), (7, 3)]:
        var one_sided = knm.copy()
        one_sided[pair[0] * n + pair[1]] = 5e-13
        one_sided[pair[1] * n + pair[0]] = 0.0
        var right = plain_modulation(attention, one_sided, theta)
        tally.check(
            largest_difference(attention.modulated(one_sided, theta), right) <= 1e-12, "an edge on one side"
        )
    for temperature in [1e-3, 1e-30, 1e30]:
        attention.temperature = List[Float64](length=4, fill=temperature)
        var found = attention.modulated(knm, theta)
        var bounded = True
        for k in range(n * n):
            bounded &= knm[k] * (1.0 - 1e-15) <= found[k] and found[k] <= 1.5 * knm[k] * (1.0 + 1e-15)
        tally.check(bounded, "temperature " + String(temperature))
    attention.temperature = List[Float64](length=4, fill=1e-3)
    var sharp = plain_modulation(attention, knm, theta)
    tally.check(largest_difference(attention.modulated(knm, theta), sharp) <= 1e-10, "a small temperature")
    attention.w_q = random.list(64, -1e200, 1e200)
    attention.w_k = random.list(64, -1e200, 1e200)
    var huge = attention.modulated(knm, theta)
    tally.check(largest_difference(huge, huge) == 0.0, "huge weights make no NaN")
    attention = Attention(4, 8)
    attention.strength = 0.0
    var marked: List[Float64] = [-0.0, 3.0, 0.0, 3.0 + 1e-13, 1e-13, -0.0, 0.0, 0.0, 0.0]
    var three: List[Float64] = [0.0, 1.0, 2.0]
    tally.check(same_bits(attention.modulated(marked, three), marked), "strength 0 copies bits")


# ---------------------------------------------------------------- statuses


def test_data_refused_by_modulate(mut tally: Tally):
    var nan = 0.0 / Float64(0.0)
    var infinity = 1.0 / Float64(0.0)
    for n in [5, 8, 13, 40]:
        var attention = Attention(4, 8)
        var random = Random(n)
        var good = random.symmetric(n)
        var theta = random.list(n, 0.0, 6.0)
        var changes: List[Tuple[Int, Float64, Int32]] = [
            (1, nan, NONFINITE_COUPLING),
            (2 * n + 2, infinity, NONFINITE_COUPLING),
            (1, 7.0, ASYMMETRIC_COUPLING),
            (4 * n + 4, 1e-6, NONZERO_DIAGONAL),
            (-1, infinity, NONFINITE_PHASE),
            (-1, nan, NONFINITE_PHASE),
        ]
        for change in changes:
            var knm = good.copy()
            var phases = theta.copy()
            if change[0] < 0:
                phases[3] = change[1]
            else:
                knm[change[0]] = change[1]
            var target = List[Float64](length=n * n, fill=42.0)
            var status = attention.modulate(knm, phases, target)
            var untouched = same_bits(target, List[Float64](length=n * n, fill=42.0))
            tally.check(status == change[2] and untouched, "status " + String(change[2]))


def status_of(n: Int, attention: Attention, present: Tuple[Bool, Bool, Bool] = (True, True, True)) -> Int32:
    var one = List[Float64](length=1, fill=0.0)
    var parameters = attention.parameters()
    var knm = read_only(one) if present[0] else None
    var theta = read_only(one) if present[1] else None
    var target = writable(one) if present[2] else None
    var status = spo_modulate(n, knm, theta, pointer_to(parameters), target)
    _ = one^
    _ = parameters^
    return status


def test_parameters_refused_by_modulate(mut tally: Tally):
    var nan = 0.0 / Float64(0.0)
    var good = Attention(4, 8)
    tally.check(status_of(1, good) == OK, "one oscillator")
    tally.check(status_of(0, good, (False, False, False)) == OK, "no oscillators")
    tally.check(spo_modulate(0, None, None, None, None) == INVALID_ARGUMENT, "no modulation")
    for n in [-1, (1 << 28) + 1]:
        tally.check(status_of(n, good) == INVALID_ARGUMENT, "n " + String(n))
    for k in range(3):
        tally.check(status_of(1, good, (k != 0, k != 1, k != 2)) == INVALID_ARGUMENT, "a missing pointer")
    for shape in [(0, 8), (3, 8), (1, 7), (1, 0), (1, (1 << 28) + 2)]:
        var bad = good.copy()
        bad.n_heads = shape[0]
        bad.d_model = shape[1]
        tally.check(status_of(1, bad) == INVALID_ARGUMENT, "a shape")
    for strength in [-1.0, nan, 1.0 / Float64(0.0)]:
        var bad = good.copy()
        bad.strength = strength
        tally.check(status_of(1, bad) == INVALID_ARGUMENT, "strength " + String(strength))
    for temperature in [0.0, -1.0, nan, 1.0 / Float64(0.0)]:
        var bad = good.copy()
        bad.temperature[2] = temperature
        tally.check(status_of(1, bad) == INVALID_ARGUMENT, "temperature " + String(temperature))
    var bad = good.copy()
    bad.block_size = -2
    tally.check(status_of(1, bad) == INVALID_ARGUMENT, "block size")
    for k in range(5):
        var parameters = good.parameters()
        if k == 0:
            parameters.w_q = None
        elif k == 1:
            parameters.w_k = None
        elif k == 2:
            parameters.w_v = None
        elif k == 3:
            parameters.w_o = None
        else:
            parameters.temperature = None
        var status = spo_modulate(0, None, None, pointer_to(parameters), None)
        tally.check(status == INVALID_ARGUMENT, "missing weights")
        _ = parameters^


def two(method: Int = METHOD_EULER) -> Oscillators:
    """Two uncoupled oscillators."""
    return Oscillators([1.0, 2.0], [1.0, 2.0], [0.0, 0.0, 0.0, 0.0], method, 0.01)


def test_runs_refused(mut tally: Tally):
    var nan = 0.0 / Float64(0.0)
    for change in range(13):
        var run = two()
        if change < 3:
            run.integrator.dt = [0.0, nan, 1.0 / Float64(0.0)][change]
        elif change < 5:
            run.integrator.method = [-1, 3][change - 3]
        elif change == 5:
            run.integrator.atol = -1.0
        elif change == 6:
            run.integrator.rtol = nan
        elif change == 7:
            run.zeta = nan
        elif change == 8:
            run.psi = 1.0 / Float64(0.0)
        elif change == 9:
            run.uniform_alpha = nan
        else:
            run.attention = Attention(4, 8)
            if change == 10:
                run.modulate_every = 0
            elif change == 11:
                run.attention.value().d_model = 7
            else:
                run.attention.value().temperature[0] = 0.0
        var kept: List[Float64] = [1.0, 2.0]
        tally.check(run.run(1) == INVALID_ARGUMENT and same_bits(run.theta, kept), "change " + String(change))
    var run = two()
    tally.check(run.run(-1) == INVALID_ARGUMENT, "a negative count")
    tally.check(spo_kuramoto_run(None, None, None, 0, None) == INVALID_ARGUMENT, "no structs")


def test_runs_that_end_early(mut tally: Tally):
    var nan = 0.0 / Float64(0.0)
    for method in [METHOD_EULER, METHOD_RK4, METHOD_RK45]:
        for bad in [nan, 1.0 / Float64(0.0)]:
            var run = two(method)
            run.omega[1] = bad
            tally.check(run.run(3) == NONFINITE_STATE and run.step == 0 and run.t == 0.0, "a bad omega")
            tally.check(run.theta[0] == 1.0 and run.theta[1] == 2.0, "the last good state")
            run = two(method)
            run.knm[1] = bad
            tally.check(run.run(3) == NONFINITE_STATE, "a bad K without modulation")
            run = two(method)
            run.theta[1] = bad
            tally.check(run.run(0) == NONFINITE_PHASE, "a bad phase")
    var entries: List[Tuple[Int, Float64, Int32]] = [
        (1, nan, NONFINITE_COUPLING),
        (1, 2.0, ASYMMETRIC_COUPLING),
        (3, 0.5, NONZERO_DIAGONAL),
    ]
    for entry in entries:
        var run = two()
        run.attention = Attention(4, 8)
        run.knm[entry[0]] = entry[1]
        tally.check(run.run(0) == entry[2] and run.run(1) == entry[2], "K of a modulated run")


def test_sizes_without_memory(mut tally: Tally):
    var one: List[Float64] = [0.0]
    var parameters = Attention(1, 2).parameters()
    var kept = Attention(1, 2)
    parameters.w_q = read_only(kept.w_q)
    parameters.w_k = read_only(kept.w_k)
    parameters.w_v = read_only(kept.w_v)
    parameters.w_o = read_only(kept.w_o)
    parameters.temperature = read_only(kept.temperature)
    parameters.d_model = 1 << 20
    var n = 1 << 28
    var network = Network(n, read_only(one), read_only(one), None, 0.0, 0.0, 0.0, pointer_to(parameters), 1)
    var integrator = Integrator(METHOD_RK45, 0.1, 1e-6, 1e-3)
    var state = State(writable(one), writable(one), 0.0, 0.1, 0)
    var state_at = Pointer(to=state).unsafe_origin_cast[MutUntrackedOrigin]()
    var status = spo_kuramoto_run(pointer_to(network), pointer_to(integrator), state_at, 1, None)
    tally.check(status == OUT_OF_MEMORY and one[0] == 0.0 and state.step == 0, "out of memory")
    _ = kept^
    _ = network^
    _ = parameters^
    _ = integrator^
    var none = Oscillators([], [], [], METHOD_RK45, 0.1)
    tally.check(none.run(2) == OK and none.step == 2, "no oscillators")
    none.attention = Attention(4, 8)
    tally.check(none.run(2) == OK and none.step == 4, "no modulated oscillators")


# ---------------------------------------------------------------- runs


def network(n: Int, method: Int, seed: Int) -> Oscillators:
    var random = Random(seed)
    var theta = random.list(n, 0.0, 6.0)
    var omega = random.list(n, -1.0, 1.0)
    var run = Oscillators(theta, omega, random.symmetric(n, 0.8), method, 0.05)
    run.zeta = 0.3
    run.psi = 1.0
    run.uniform_alpha = 0.2
    return run^


def test_drift_by_its_definition(mut tally: Tally):
    """Euler steps against a sine per pair; K asymmetric, with a diagonal, and with one lag or many."""
    comptime for index in range(len(SIZES)):
        comptime n = SIZES[index]
        for lags in [False, True]:
            for reach in [6.0, 1e9]:
                var random = Random(n)
                var run = network(n, METHOD_EULER, n)
                run.knm = random.list(n * n, -1.0, 1.0)
                run.theta = random.list(n, -reach, reach)
                if lags:
                    run.alpha = random.list(n * n, -2.0, 2.0)
                var right = List[Float64]()
                for i in range(n):
                    var slope = run.omega[i] + run.zeta * external_call["sin", Float64](
                        run.psi - run.theta[i]
                    )
                    for j in range(n):
                        var lag = run.alpha[i * n + j] if lags else run.uniform_alpha
                        var difference = run.theta[j] - run.theta[i] - lag
                        slope += run.knm[i * n + j] * external_call["sin", Float64](difference)
                    right.append(run.theta[i] + slope * run.integrator.dt)
                var holds = run.run(1) == OK
                for i in range(n):
                    holds &= gap(run.theta[i], right[i]) <= (1e-13 if reach < 7.0 else 1e-6)
                    holds &= 0.0 <= run.theta[i] and run.theta[i] < 2.0 * PI
                tally.check(holds, String("drift of ", n, ", lags ", lags, ", phases to ", reach))


def test_modulated_runs(mut tally: Tally):
    """One piece equals several, bit for bit, and a plain loop of modulate and single steps."""
    comptime n = 11
    comptime steps = 7
    comptime for index in range(len(METHODS)):
        comptime method = METHODS[index]
        for every in [1, 3]:
            for lags in [False, True]:
                var whole = network(n, method, 7)
                whole.attention = Attention(4, 8)
                whole.modulate_every = every
                var random = Random(8)
                if lags:
                    whole.alpha = random.list(n * n, -1.0, 1.0)
                whole.record(steps)
                var pieces = whole.copy()
                var single = whole.copy()
                var start = whole.copy()
                var holds = whole.run(steps) == OK
                for size in [1, 0, 2, 1, 3]:
                    holds &= pieces.run(size) == OK
                holds &= same_bits(whole.theta, pieces.theta) and same_bits(whole.modulated, pieces.modulated)
                holds &= same_bits(whole.states, pieces.states) and same_bits(whole.times, pieces.times)
                holds &= same_bits(whole.r, pieces.r) and same_bits(whole.mean_phase, pieces.mean_phase)
                holds &= whole.t == pieces.t and whole.dt == pieces.dt and whole.step == pieces.step
                var what = String("method ", method, ", every ", every, ", lags ", lags)
                tally.check(holds, what + ": pieces")
                tally.check(recorded(whole, start), what + ": records")
                single.attention = None
                for step in range(steps):
                    if step % every == 0:
                        single.knm = start.attention.value().modulated(start.knm, single.theta)
                    holds &= single.run(1) == OK
                for i in range(n):
                    holds &= gap(single.theta[i], whole.theta[i]) <= 1e-11
                tally.check(holds and abs(single.dt - whole.dt) <= 1e-9 * whole.dt, what + ": plain loop")


def recorded(run: Oscillators, start: Oscillators) -> Bool:
    """Whether the records of a whole run are those of its states; the first one is not kept."""
    var n = len(run.theta)
    var steps = len(run.times) - 1
    var holds = run.times[0] == 0.0 and run.observed[0] == 0.0
    for step in range(steps + 1):
        var state = List[Float64]()
        for i in range(n):
            state.append(run.states[step * n + i] if step > 0 else start.theta[i])
            holds &= step > 0 or run.states[i] == 0.0
        var r = 0.0
        var psi = 0.0
        holds &= order_parameter(state, r, psi) == OK
        holds &= abs(r - run.r[step]) <= 1e-15 and gap(psi, run.mean_phase[step]) <= 1e-14
        holds &= run.times[step] == run.observed[step]
        if step == steps:
            holds &= same_bits(state, run.theta) and run.times[step] == run.t
    return holds


def test_order_parameter(mut tally: Tally):
    var r = 7.0
    var psi = 7.0
    tally.check(order_parameter([], r, psi) == OK and r == 0.0 and psi == 0.0, "R of none")
    for n in [1, 2, 3, 10, 999, 5500, 100000]:
        for angle in [0.0, 1e-300, 0.1, 3.0, -2.0, 1e9]:
            var status = order_parameter(List[Float64](length=n, fill=angle), r, psi)
            var unity = 1.0 - 2.3e-16 <= r and r <= 1.0 and 0.0 <= psi and psi < 2.0 * PI
            tally.check(status == OK and unity, String("R of ", n, " at ", angle))
    _ = order_parameter([0.0, PI], r, psi)
    tally.check(r <= 1e-16, "R of opposite phases")
    var nan = 0.0 / Float64(0.0)
    tally.check(order_parameter([1.0, nan], r, psi) == NONFINITE_PHASE, "R of NaN")
    tally.check(spo_order_parameter(-1, None, None, None) == INVALID_ARGUMENT, "R of a negative count")


def main():
    var tally = Tally()
    test_identity(tally)
    test_layouts(tally)
    test_vector_functions(tally)
    test_modulation_by_its_definition(tally)
    test_special_modulations(tally)
    test_data_refused_by_modulate(tally)
    test_parameters_refused_by_modulate(tally)
    test_runs_refused(tally)
    test_runs_that_end_early(tally)
    test_sizes_without_memory(tally)
    test_drift_by_its_definition(tally)
    test_modulated_runs(tally)
    test_order_parameter(tally)
    tally.finish()
