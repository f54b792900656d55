"""The boundary: what csrc/include/spo_fast.h asks of a library, with its checks.

Nothing here or below raises, aborts, prints, starts a thread or keeps a pointer, and nothing needs the
runtime of the language: the library depends on the C library alone.
"""

from std.sys import size_of
from std.utils.numerics import isfinite

from coupling import Traits, scan
from lanes import Doubles, ExactSum, LANES, MutDoubles, PAD, first_lanes, keep, load_first
from memory import Cursor, allocate, release
from modulation import Scratch, modulate, scratch_doubles
from stepping import run, run_doubles
from structures import (
    ASYMMETRIC_COUPLING,
    INVALID_ARGUMENT,
    Integrator,
    METHOD_EULER,
    METHOD_RK45,
    Modulation,
    NONFINITE_COUPLING,
    NONFINITE_PHASE,
    NONFINITE_STATE,
    NONZERO_DIAGONAL,
    Network,
    OK,
    OUT_OF_MEMORY,
    ReadOnly,
    Record,
    State,
)
from vectormath import mean_phase, radius, sincos

comptime ABI_VERSION: Int32 = 1
comptime LARGEST_SIZE = 1 << 28
"""Sizes whose squares and products could overflow are refused."""
comptime Text = Pointer[UInt8, ImmStaticOrigin]
"""A text that ends with NUL and lives as long as the library."""


@export("spo_abi_version")
def spo_abi_version() abi("C") -> Int32:
    """The version of the header that this library honours."""
    comptime assert size_of[Modulation]() == 9 * 8
    comptime assert size_of[Network]() == 9 * 8
    comptime assert size_of[Integrator]() == 4 * 8
    comptime assert size_of[State]() == 5 * 8
    comptime assert size_of[Record]() == 6 * 8
    return ABI_VERSION


@export("spo_backend_name")
def spo_backend_name() abi("C") -> Text:
    """The language of this library."""
    return "mojo\0".ptr()


@export("spo_status_text")
def spo_status_text(status: Int32) abi("C") -> Text:
    """The text of a status; "unknown status" for other numbers."""
    if status == OK:
        return "success\0".ptr()
    if status == INVALID_ARGUMENT:
        return "an argument is out of its range\0".ptr()
    if status == OUT_OF_MEMORY:
        return "out of memory\0".ptr()
    if status == NONFINITE_COUPLING:
        return "the coupling matrix holds NaN or infinity\0".ptr()
    if status == ASYMMETRIC_COUPLING:
        return "the coupling matrix is not symmetric within 1e-12\0".ptr()
    if status == NONZERO_DIAGONAL:
        return "the diagonal of the coupling matrix is not zero within 1e-12\0".ptr()
    if status == NONFINITE_PHASE:
        return "the phases hold NaN or infinity\0".ptr()
    if status == NONFINITE_STATE:
        return "a step gave NaN or infinity\0".ptr()
    return "unknown status\0".ptr()


@export("spo_modulate")
def spo_modulate(
    n: Int,
    knm: Optional[Doubles],
    theta: Optional[Doubles],
    modulation: Optional[ReadOnly[Modulation]],
    target: Optional[MutDoubles],
) abi("C") -> Int32:
    """The target (n, n) becomes K' of K (n, n) at the phases theta (n, radians); it may not overlap K.

    Nothing is written unless K and theta are acceptable.
    """
    if not acceptable_modulation(n, modulation):
        return INVALID_ARGUMENT
    if n == 0:
        return OK
    if not knm or not theta or not target:
        return INVALID_ARGUMENT
    ref parameters = modulation.unsafe_value()[]
    var traits = Traits()
    var status = scan(n, knm.unsafe_value(), traits)
    if status != OK:
        return status
    if not all_finite(n, theta.unsafe_value()):
        return NONFINITE_PHASE
    var scratch = allocate(PAD + scratch_doubles(n, parameters))
    if not scratch:
        return OUT_OF_MEMORY
    var cursor = Cursor(scratch.unsafe_value())
    var room = Scratch(n, parameters, cursor)
    status = modulate(
        n, knm.unsafe_value(), traits, theta.unsafe_value(), parameters, room, target.unsafe_value()
    )
    release(scratch.unsafe_value())
    return status


@export("spo_order_parameter")
def spo_order_parameter(
    n: Int, theta: Optional[Doubles], r: Optional[MutDoubles], psi: Optional[MutDoubles]
) abi("C") -> Int32:
    """The order parameter r = |mean exp(i theta)| of theta (n, radians), and psi, its argument in [0, 2 pi);
    both 0 when n is 0."""
    if n < 0 or (n > 0 and not theta) or not r or not psi:
        return INVALID_ARGUMENT
    var sine = ExactSum()
    var cosine = ExactSum()
    if n > 0:
        if not all_finite(n, theta.unsafe_value()):
            return NONFINITE_PHASE
        for i in range(0, n, LANES):
            var wanted = first_lanes(n - i)
            var both = sincos(load_first(theta.unsafe_value(), i, n - i))
            sine.add(keep(wanted, both.sine))
            cosine.add(keep(wanted, both.cosine))
    r.unsafe_value()[] = radius(n, sine.total(), cosine.total())
    psi.unsafe_value()[] = mean_phase(n, sine.total(), cosine.total())
    return OK


@export("spo_kuramoto_run")
def spo_kuramoto_run(
    network: Optional[ReadOnly[Network]],
    integrator: Optional[ReadOnly[Integrator]],
    state: Optional[Pointer[State, MutUntrackedOrigin]],
    n_steps: Int,
    record: Optional[ReadOnly[Record]],
) abi("C") -> Int32:
    """Advances the state by n_steps; what the record names is kept."""
    if not acceptable_run(network, integrator, state, n_steps):
        return INVALID_ARGUMENT
    ref of_network = network.unsafe_value()[]
    ref of_integrator = integrator.unsafe_value()[]
    var kept = Record()
    if record:
        kept = record.unsafe_value()[].copy()
    var scratch = allocate(run_doubles(of_network, of_integrator.method))
    if not scratch:
        return OUT_OF_MEMORY
    var status = run(of_network, of_integrator, state.unsafe_value()[], n_steps, kept, scratch.unsafe_value())
    release(scratch.unsafe_value())
    return status


def all_finite(n: Int, x: Doubles) -> Bool:
    for i in range(n):
        if not isfinite(x[unsafe_offset=i]):
            return False
    return True


def acceptable_modulation(n: Int, modulation: Optional[ReadOnly[Modulation]]) -> Bool:
    """Whether sizes, pointers and numbers of a modulation are in their ranges."""
    if n < 0 or n > LARGEST_SIZE or not modulation:
        return False
    ref m = modulation.unsafe_value()[]
    if m.n_heads < 1 or m.d_model < 2 or m.d_model > LARGEST_SIZE:
        return False
    if m.d_model % 2 != 0 or m.d_model % m.n_heads != 0:
        return False
    if m.block_size < -1 or not m.strength >= 0.0 or not isfinite(m.strength):
        return False
    if not m.w_q or not m.w_k or not m.w_v or not m.w_o or not m.temperature:
        return False
    for h in range(m.n_heads):
        var temperature = m.temperature.unsafe_value()[unsafe_offset=h]
        if not temperature > 0.0 or not isfinite(temperature):
            return False
    return True


def acceptable_run(
    network: Optional[ReadOnly[Network]],
    integrator: Optional[ReadOnly[Integrator]],
    state: Optional[Pointer[State, MutUntrackedOrigin]],
    n_steps: Int,
) -> Bool:
    if not network or not integrator or not state or n_steps < 0:
        return False
    ref w = network.unsafe_value()[]
    ref i = integrator.unsafe_value()[]
    ref s = state.unsafe_value()[]
    if w.n < 0 or w.n > LARGEST_SIZE or i.method < METHOD_EULER or i.method > METHOD_RK45:
        return False
    if not i.dt > 0.0 or not isfinite(i.dt) or not i.atol >= 0.0 or not i.rtol >= 0.0:
        return False
    if not isfinite(w.zeta) or not isfinite(w.psi) or not isfinite(w.uniform_alpha):
        return False
    if w.n > 0 and (not w.omega or not w.knm or not s.theta):
        return False
    if not w.modulation:
        return True
    if w.n > 0 and not s.modulated:
        return False
    return w.modulate_every >= 1 and acceptable_modulation(w.n, w.modulation)
