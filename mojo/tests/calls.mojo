"""What the test programs share: a tally, random numbers, and the portable functions on lists.

A list is freed after its last use, and pointers of untracked origin are no use: calls are therefore methods
of what owns the lists.
"""

from std.sys import exit

from lanes import Doubles, MutDoubles
from spo_fast import spo_kuramoto_run, spo_modulate, spo_order_parameter
from structures import Integrator, Modulation, Network, Record, State

comptime PI = 3.141592653589793


struct Tally(Movable):
    """Counts what holds and tells what does not."""

    var passed: Int
    var failed: Int

    def __init__(out self):
        self.passed = 0
        self.failed = 0

    def check(mut self, holds: Bool, what: String):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print("FAILED:", what)

    def finish(self):
        """Prints the count; the program fails if a check did."""
        print(self.passed, "passed,", self.failed, "failed")
        if self.failed > 0:
            exit(1)


struct Random(Movable):
    """A linear congruential generator (D. E. Knuth, The Art of Computer Programming 2, 3.3.4)."""

    var state: UInt64

    def __init__(out self, seed: Int):
        self.state = UInt64(seed)

    def uniform(mut self, low: Float64, high: Float64) -> Float64:
        self.state = self.state * 6364136223846793005 + 1442695040888963407
        return low + (high - low) * Float64(self.state >> 11) / 9007199254740992.0

    def list(mut self, count: Int, low: Float64, high: Float64) -> List[Float64]:
        var values = List[Float64]()
        for _ in range(count):
            values.append(self.uniform(low, high))
        return values^

    def symmetric(mut self, n: Int, density: Float64 = 1.0) -> List[Float64]:
        """Coupling (n, n) with a zero diagonal."""
        var values = List[Float64](length=n * n, fill=0.0)
        for i in range(n):
            for j in range(i):
                var value = self.uniform(0.1, 1.0)
                if self.uniform(0.0, 1.0) < density:
                    values[i * n + j] = value
                    values[j * n + i] = value
        return values^


def read_only(values: List[Float64]) -> Optional[Doubles]:
    return values.unsafe_ptr().unsafe_origin_cast[ImmUntrackedOrigin]()


def writable(mut values: List[Float64]) -> Optional[MutDoubles]:
    return values.unsafe_ptr().unsafe_origin_cast[MutUntrackedOrigin]()


def pointer_to[T: AnyType](value: T) -> Optional[Pointer[T, ImmUntrackedOrigin]]:
    return Pointer(to=value).unsafe_origin_cast[ImmUntrackedOrigin]()


def gap(a: Float64, b: Float64) -> Float64:
    """The distance of two angles."""
    var turns = (a - b) / (2.0 * PI)
    return abs(turns - round(turns)) * 2.0 * PI


def same_bits(a: List[Float64], b: List[Float64]) -> Bool:
    if len(a) != len(b):
        return False
    for k in range(len(a)):
        if a[k].to_bits[DType.uint64]() != b[k].to_bits[DType.uint64]():
            return False
    return True


def largest_difference(a: List[Float64], b: List[Float64]) -> Float64:
    """Infinite where one holds NaN."""
    var largest = 0.0
    for k in range(len(b)):
        var difference = abs(a[k] - b[k])
        if not difference <= largest:
            largest = difference if difference == difference else Float64.MAX
    return largest


def order_parameter(theta: List[Float64], mut r: Float64, mut psi: Float64) -> Int32:
    var out = List[Float64](length=2, fill=7.0)
    var second = out.unsafe_ptr().unsafe_offset(1).unsafe_origin_cast[MutUntrackedOrigin]()
    var status = spo_order_parameter(len(theta), read_only(theta), writable(out), second)
    r = out[0]
    psi = out[1]
    return status


@fieldwise_init
struct Attention(Copyable):
    """The parameters of a modulation and what they point to."""

    var n_heads: Int
    var d_model: Int
    var block_size: Int
    var w_q: List[Float64]
    var w_k: List[Float64]
    var w_v: List[Float64]
    var w_o: List[Float64]
    var temperature: List[Float64]
    var strength: Float64

    def __init__(out self, n_heads: Int, d_model: Int, seed: Int = 1):
        var random = Random(seed)
        self.n_heads = n_heads
        self.d_model = d_model
        self.block_size = -1
        self.w_q = random.list(d_model * d_model, -0.6, 0.6)
        self.w_k = random.list(d_model * d_model, -0.6, 0.6)
        self.w_v = random.list(d_model * d_model, -0.6, 0.6)
        self.w_o = random.list(d_model * d_model, -0.6, 0.6)
        self.temperature = List[Float64](length=n_heads, fill=1.0)
        self.strength = 0.5

    def parameters(self) -> Modulation:
        return Modulation(
            n_heads=self.n_heads,
            d_model=self.d_model,
            block_size=self.block_size,
            w_q=read_only(self.w_q),
            w_k=read_only(self.w_k),
            w_v=read_only(self.w_v),
            w_o=read_only(self.w_o),
            temperature=read_only(self.temperature),
            strength=self.strength,
        )

    def modulate(self, knm: List[Float64], theta: List[Float64], mut target: List[Float64]) -> Int32:
        """The target becomes K'."""
        var parameters = self.parameters()
        var status = spo_modulate(
            len(theta), read_only(knm), read_only(theta), pointer_to(parameters), writable(target)
        )
        _ = parameters^
        return status

    def modulated(self, knm: List[Float64], theta: List[Float64]) -> List[Float64]:
        """The matrix K' of acceptable arguments; NaN if they were refused."""
        var target = List[Float64](length=len(knm), fill=FloatLiteral.nan)
        _ = self.modulate(knm, theta, target)
        return target^


struct Oscillators(Copyable):
    """A network, a method, a state, and what is recorded."""

    var theta: List[Float64]
    var omega: List[Float64]
    var knm: List[Float64]
    var alpha: List[Float64]
    """Empty: the lag is uniform."""
    var uniform_alpha: Float64
    var zeta: Float64
    var psi: Float64
    var attention: Optional[Attention]
    var modulate_every: Int
    var integrator: Integrator
    var modulated: List[Float64]
    var t: Float64
    var dt: Float64
    var step: Int
    var states: List[Float64]
    """Row s: the state after step s."""
    var times: List[Float64]
    var r: List[Float64]
    var mean_phase: List[Float64]
    var observed: List[Float64]

    def __init__(
        out self, theta: List[Float64], omega: List[Float64], knm: List[Float64], method: Int, dt: Float64
    ):
        self.theta = theta.copy()
        self.omega = omega.copy()
        self.knm = knm.copy()
        self.alpha = []
        self.uniform_alpha = 0.0
        self.zeta = 0.0
        self.psi = 0.0
        self.attention = None
        self.modulate_every = 1
        self.integrator = Integrator(method, dt, 1e-6, 1e-3)
        self.modulated = List[Float64](length=len(knm), fill=0.0)
        self.t = 0.0
        self.dt = dt
        self.step = 0
        self.states = []
        self.times = []
        self.r = []
        self.mean_phase = []
        self.observed = []

    def record(mut self, steps: Int):
        """Makes room for the records of so many steps."""
        self.states = List[Float64](length=(steps + 1) * len(self.theta), fill=0.0)
        self.times = List[Float64](length=steps + 1, fill=0.0)
        self.r = List[Float64](length=steps + 1, fill=0.0)
        self.mean_phase = List[Float64](length=steps + 1, fill=0.0)
        self.observed = List[Float64](length=steps + 1, fill=0.0)

    def run(mut self, n_steps: Int) -> Int32:
        var network = Network(
            n=len(self.theta),
            omega=read_only(self.omega),
            knm=read_only(self.knm),
            alpha=None,
            uniform_alpha=self.uniform_alpha,
            zeta=self.zeta,
            psi=self.psi,
            modulation=None,
            modulate_every=self.modulate_every,
        )
        if len(self.alpha) > 0:
            network.alpha = read_only(self.alpha)
        var state = State(writable(self.theta), None, self.t, self.dt, self.step)
        var parameters = Attention(1, 2).parameters()
        if self.attention:
            parameters = self.attention.value().parameters()
            network.modulation = pointer_to(parameters)
            state.modulated = writable(self.modulated)
        var record = Record(
            every=1,
            theta=writable(self.states),
            t=writable(self.times),
            r=writable(self.r),
            psi=writable(self.mean_phase),
            t_observe=writable(self.observed),
        )
        var kept = pointer_to(record) if len(self.times) > 0 else None
        var state_at = Pointer(to=state).unsafe_origin_cast[MutUntrackedOrigin]()
        var status = spo_kuramoto_run(
            pointer_to(network), pointer_to(self.integrator), state_at, n_steps, kept
        )
        self.t = state.t
        self.dt = state.dt
        self.step = state.step
        _ = record^
        _ = network^
        _ = parameters^
        return status
