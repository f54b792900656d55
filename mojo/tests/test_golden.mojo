"""The golden vectors of the three kinds, held against the library.

Run: mojo run --fp-mode contract=off -I mojo/src mojo/tests/test_golden.mojo
"""

from std.os import getenv, listdir
from std.os.path import dirname, isdir
from std.reflection import source_location

from calls import Attention, Oscillators, Tally, gap, order_parameter
from structures import OK

comptime Sample = Dict[String, List[Float64]]


def folder() raises -> String:
    """Where the vectors lie."""
    var beside = dirname(String(source_location().file_name())) + "/../../build/golden"
    var found = getenv("SPO_FAST_GOLDEN", beside)
    if not isdir(found):
        raise Error("no golden vectors in ", found, ": run python tools/export_golden.py")
    return found


def read(path: String) raises -> Sample:
    """One file: NAME RANK SIZE... WORD... a line, each word 64 bits in hexadecimal digits."""
    var sample = Sample()
    for line in open(path, "r").read().splitlines():
        var words = line.split()
        var values = List[Float64]()
        for k in range(2 + Int(words[1]), len(words)):
            values.append(Float64(from_bits=number(words[k])))
        sample[String(words[0])] = values^
    return sample^


def number(word: StringSpan) -> UInt64:
    var value: UInt64 = 0
    for byte in word.as_bytes():
        var digit = UInt64(byte)
        value = value * 16 + (digit - 48 if digit < 58 else digit - 87)
    return value


def modulate_holds(sample: Sample) raises -> Bool:
    var attention = Attention(
        n_heads=Int(sample["n_heads"][0]),
        d_model=Int(sample["d_model"][0]),
        block_size=Int(sample["block_size"][0]),
        w_q=sample["w_q"].copy(),
        w_k=sample["w_k"].copy(),
        w_v=sample["w_v"].copy(),
        w_o=sample["w_o"].copy(),
        temperature=sample["temperature"].copy(),
        strength=sample["lambda"][0],
    )
    var found = attention.modulated(sample["knm"], sample["theta"])
    ref tolerance = sample["tolerance"]
    for k in range(len(found)):
        if not abs(found[k] - sample["expected"][k]) <= tolerance[min(k, len(tolerance) - 1)]:
            return False
    return True


def step_holds(sample: Sample) raises -> Bool:
    var n = Int(sample["n"][0])
    var steps = Int(sample["steps"][0])
    var start = List[Float64]()
    for i in range(n):
        start.append(sample["trajectory"][i])
    var run = Oscillators(start, sample["omega"], sample["knm"], Int(sample["method"][0]), sample["dt"][0])
    run.alpha = sample["alpha"].copy()
    run.zeta = sample["zeta"][0]
    run.psi = sample["psi"][0]
    run.integrator.atol = sample["atol"][0]
    run.integrator.rtol = sample["rtol"][0]
    for step in range(steps):
        if run.run(1) != OK:
            return False
        for i in range(n):
            if (
                not gap(run.theta[i], sample["trajectory"][(step + 1) * n + i])
                <= sample["state_tolerance"][0]
            ):
                return False
        var right = sample["dt_after"][step]
        if not abs(run.dt - right) <= sample["dt_tolerance"][0] * right:
            return False
    return True


def observables_hold(sample: Sample) raises -> Bool:
    var r = 0.0
    var psi = 0.0
    var status = order_parameter(sample["theta"], r, psi)
    return status == OK and abs(r - sample["r"][0]) <= 1e-12 and gap(psi, sample["psi"][0]) <= 1e-12


def main() raises:
    var tally = Tally()
    var place = folder()
    for kind in [String("modulate"), String("step"), String("observables")]:
        var names = listdir(place + "/" + kind)
        sort(names)
        tally.check(len(names) > 0, "cases of " + kind)
        for name in names:
            var sample = read(place + "/" + kind + "/" + name)
            var holds: Bool
            if kind == "modulate":
                holds = modulate_holds(sample)
            elif kind == "step":
                holds = step_holds(sample)
            else:
                holds = observables_hold(sample)
            tally.check(holds, name)
    tally.finish()
