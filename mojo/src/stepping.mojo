"""Explicit Runge-Kutta steps from the tableaux, the controller of the adaptive one, and the loop that takes
them: modulation, observation and records at their steps. A run cut into pieces ends in the same bits as in
one piece.
"""

from std.ffi import external_call
from std.math import fma
from std.memory import unsafe_memcpy, unsafe_memset_zero
from std.utils.numerics import isfinite

from coupling import Traits, scan
from drift import Drive, Matrices, drift, sincos_padded
from lanes import (
    Doubles,
    ExactSum,
    LANES,
    Lanes,
    MutDoubles,
    PAD,
    ZERO,
    any_of,
    first_lanes,
    keep,
    larger,
    largest_of,
    load,
    load_first,
    nonzero,
    padded,
    store,
    store_first,
    sum_of,
)
from memory import Cursor
from modulation import Scratch, modulate, scratch_doubles
from structures import (
    Integrator,
    METHOD_EULER,
    METHOD_RK4,
    NONFINITE_PHASE,
    NONFINITE_STATE,
    Network,
    OK,
    Record,
    State,
)
from tableaux import (
    DORMAND_PRINCE_A,
    DORMAND_PRINCE_ADAPTIVE,
    DORMAND_PRINCE_B,
    DORMAND_PRINCE_EMBEDDED,
    DORMAND_PRINCE_STAGES,
    EULER_A,
    EULER_ADAPTIVE,
    EULER_B,
    EULER_EMBEDDED,
    EULER_STAGES,
    MAX_STAGES,
    RK4_A,
    RK4_ADAPTIVE,
    RK4_B,
    RK4_EMBEDDED,
    RK4_STAGES,
)
from vectormath import mean_phase, radius, sincos, wrap, wrap_one


@fieldwise_init
struct Tableau(Copyable):
    """An explicit Runge-Kutta method; a parameter of the functions that take its steps."""

    var stages: Int
    var a: Array[Float64, MAX_STAGES * MAX_STAGES]
    """The strictly lower triangle, row by row."""
    var b: Array[Float64, MAX_STAGES]
    var embedded: Array[Float64, MAX_STAGES]
    """Weights of the lower-order solution, or zeros."""
    var adaptive: Bool


comptime EULER = Tableau(EULER_STAGES, EULER_A, EULER_B, EULER_EMBEDDED, EULER_ADAPTIVE)
comptime RK4 = Tableau(RK4_STAGES, RK4_A, RK4_B, RK4_EMBEDDED, RK4_ADAPTIVE)
comptime DORMAND_PRINCE = Tableau(
    DORMAND_PRINCE_STAGES,
    DORMAND_PRINCE_A,
    DORMAND_PRINCE_B,
    DORMAND_PRINCE_EMBEDDED,
    DORMAND_PRINCE_ADAPTIVE,
)

comptime SAFETY = 0.9
comptime GROWTH_LIMIT = 5.0
"""Of one step."""
comptime SHRINK_LIMIT = 0.2
"""Of one failed attempt."""
comptime STEP_LIMIT = 10.0
"""Of any step, in units of the first."""
comptime MAX_ATTEMPTS = 4
"""The last one is taken whatever its error."""
comptime VECTORS = 8
"""Arrays of oscillators besides the slopes."""


def stages_of(method: Int) -> Int:
    if method == METHOD_EULER:
        return EULER.stages
    return RK4.stages if method == METHOD_RK4 else DORMAND_PRINCE.stages


def run_doubles(network: Network, method: Int) -> Int:
    """The scratch of a run."""
    var vectors = (VECTORS + stages_of(method)) * padded(network.n)
    var lags = 0
    if network.alpha:
        lags = (4 if network.modulation else 2) * padded(network.n * network.n)
    var attention = 0
    if network.modulation:
        attention = scratch_doubles(network.n, network.modulation.unsafe_value()[])
    return PAD + vectors + lags + attention


@fieldwise_init
struct Attempt(TrivialRegisterPassable):
    """How one attempt of a step went."""

    var finite: Bool
    var error: Float64
    """The largest, in units of the tolerance; NaN or infinity when it cannot be told."""


struct Run[method: Tableau, lag: Bool](Movable):
    """One run: its arrays, the numbers that stay, and whether the first slope of the step is already known
    (it was the last one of the step before)."""

    var n: Int
    var integrator: Integrator
    var omega: MutDoubles
    var theta: MutDoubles
    var next: MutDoubles
    """The candidate of a step, wrapped."""
    var stage: MutDoubles
    """The argument of a stage."""
    var slopes: MutDoubles
    """Shape (stages, padded)."""
    var matrices: Matrices
    var drive: Drive
    var in_force: Doubles
    """K or K' (n, n)."""
    var lag_cosine: MutDoubles
    """K in force times cos alpha and sin alpha; with modulation, cos alpha and sin alpha are kept, too."""
    var lag_sine: MutDoubles
    var alpha_cosine: MutDoubles
    var alpha_sine: MutDoubles
    var slope_known: Bool

    def __init__(
        out self,
        network: Network,
        integrator: Integrator,
        modulated: Optional[MutDoubles],
        mut cursor: Cursor,
    ):
        var n = network.n
        var stride = padded(n)
        self.n = n
        self.integrator = integrator.copy()
        var start = cursor.next
        self.omega = cursor.take(stride)
        self.theta = cursor.take(stride)
        self.next = cursor.take(stride)
        self.stage = cursor.take(stride)
        var sine = cursor.take(stride)
        var cosine = cursor.take(stride)
        var pull = cursor.take(stride)
        var push = cursor.take(stride)
        self.slopes = cursor.take(Self.method.stages * stride)
        unsafe_memset_zero(start, count=(VECTORS + Self.method.stages) * stride)
        self.lag_cosine = start
        self.lag_sine = start
        self.alpha_cosine = start
        self.alpha_sine = start
        comptime if Self.lag:
            self.lag_cosine = cursor.take(padded(n * n))
            self.lag_sine = cursor.take(padded(n * n))
            if network.modulation:
                self.alpha_cosine = cursor.take(padded(n * n))
                self.alpha_sine = cursor.take(padded(n * n))
        self.in_force = start
        if n > 0:
            self.in_force = network.knm.unsafe_value()
            if network.modulation:
                self.in_force = modulated.unsafe_value()
            unsafe_memcpy(dest=self.omega, src=network.omega.unsafe_value(), count=n)
        var k = self.in_force
        comptime if Self.lag:
            k = self.lag_cosine
        self.matrices = Matrices(n, k, self.lag_sine, sine, cosine, pull, push)
        self.drive = Drive(network)
        self.slope_known = False

    def take_lags(self, alpha: Doubles, modulated: Bool):
        """Sine and cosine of alpha (n, n), and without modulation at once their products with K."""
        var entries = self.n * self.n
        var cosine = self.alpha_cosine if modulated else self.lag_cosine
        var sine = self.alpha_sine if modulated else self.lag_sine
        for at in range(0, entries, LANES):
            var both = sincos(load_first(alpha, at, entries - at))
            store_first(cosine, at, both.cosine, entries - at)
            store_first(sine, at, both.sine, entries - at)
        if not modulated:
            self.multiply_lags(cosine, sine)

    def multiply_lags(self, cosine: Doubles, sine: Doubles):
        """Products of K in force with the cosines and sines of the lags (n, n), which they may replace."""
        var entries = self.n * self.n
        for at in range(0, entries, LANES):
            var left = entries - at
            var k = load_first(self.in_force, at, left)
            store_first(self.lag_cosine, at, k * load_first(cosine, at, left), left)
            store_first(self.lag_sine, at, k * load_first(sine, at, left), left)

    def apply_lags(self):
        """Products of K' with the lags, where each pair has its own."""
        comptime if Self.lag:
            self.multiply_lags(self.alpha_cosine, self.alpha_sine)

    def sincos_of(self, theta: Doubles):
        sincos_padded(self.n, theta, self.matrices.sine, self.matrices.cosine)

    def slope(self, stage: Int):
        """The drift at the phases whose sine and cosine are at hand becomes the slope of a stage."""
        drift[Self.lag](
            self.matrices, self.drive, self.omega, self.slopes.unsafe_offset(stage * padded(self.n))
        )

    @always_inline
    def combine[
        weights: Array[Float64, MAX_STAGES * MAX_STAGES], row: Int, count: Int
    ](self, dt: Float64, i: Int) -> Lanes:
        """The phases theta + dt sum_j weight_j slope_j; the sum is rounded before it is added, so that two
        such results lie on one grid and their difference is that of the stored numbers."""
        var sum = ZERO
        comptime for j in range(count):
            comptime weight = weights[row * MAX_STAGES + j]
            comptime if weight != 0.0:
                sum = fma(load(self.slopes, j * padded(self.n) + i), Lanes(weight), sum)
        return load(self.theta, i) + sum * dt

    def attempt(self, dt: Float64) -> Attempt:
        """Stages 2 ... of the method from the first slope; leaves y, wrapped, in self.next.

        For a method with an error estimate the last stage is taken at the wrapped y, so that its slope is,
        bit for bit, the first one of the next step.
        """
        comptime inner = Self.method.stages - Int(Self.method.adaptive)
        var stride = padded(self.n)
        comptime for stage in range(1, inner):
            for i in range(0, stride, LANES):
                store(self.stage, i, self.combine[Self.method.a, stage, stage](dt, i))
            self.sincos_of(self.stage)
            self.slope(stage)
        var excess = ZERO
        for i in range(0, stride, LANES):
            var y = self.combine[widened(Self.method.b), 0, inner](dt, i)
            excess += y - y
            store(self.stage, i, y)
            store(self.next, i, wrap(y))
        var finite = not any_of(nonzero(excess))
        comptime if not Self.method.adaptive:
            return Attempt(finite, 0.0)
        else:
            self.sincos_of(self.next)
            self.slope(inner)
            return Attempt(finite, self.error_of(dt))

    def error_of(self, dt: Float64) -> Float64:
        """The largest error of the unwrapped y in self.stage, in units of the tolerance."""
        var largest = ZERO
        var trouble = ZERO
        for i in range(0, padded(self.n), LANES):
            var y = load(self.stage, i)
            var lower = self.combine[widened(Self.method.embedded), 0, Self.method.stages](dt, i)
            var size = larger(abs(load(self.theta, i)), abs(y))
            var allowed = fma(Lanes(self.integrator.rtol), size, Lanes(self.integrator.atol))
            var ratio = keep(first_lanes(self.n - i), abs(y - lower) / allowed)
            trouble += ratio - ratio
            largest = larger(ratio, largest)
        return largest_of(largest) + sum_of(trouble)

    def step(mut self, mut dt: Float64) -> Tuple[Bool, Float64]:
        """One step from the first slope: is it finite, and its size; dt becomes the one to try next."""
        comptime if not Self.method.adaptive:
            return (self.attempt(dt).finite, dt)
        else:
            var attempts = 0
            while True:
                attempts += 1
                var taken = dt
                var made = self.attempt(dt)
                if made.error <= 1.0:
                    var growth = GROWTH_LIMIT
                    if made.error > 0.0:
                        growth = min(GROWTH_LIMIT, SAFETY * power(made.error, -0.2))
                    dt = min(dt * growth, STEP_LIMIT * self.integrator.dt)
                    return (made.finite, taken)
                dt *= larger_number(SHRINK_LIMIT, SAFETY * power(made.error, -0.25))
                if attempts == MAX_ATTEMPTS:
                    return (made.finite, taken)

    def observe(self, record: Record, state: State):
        """What a record keeps of a state, from its sine and cosine."""
        if record.t_observe:
            record.t_observe.unsafe_value()[unsafe_offset=state.step] = state.t
        if not record.r and not record.psi:
            return
        var s = ExactSum()
        var c = ExactSum()
        for i in range(0, padded(self.n), LANES):
            s.add(load(self.matrices.sine, i))
            c.add(load(self.matrices.cosine, i))
        var sine = s.total()
        var cosine = c.total()
        if record.r:
            record.r.unsafe_value()[unsafe_offset=state.step] = radius(self.n, sine, cosine)
        if record.psi:
            record.psi.unsafe_value()[unsafe_offset=state.step] = mean_phase(self.n, sine, cosine)

    def keep_state(self, record: Record, state: State):
        if record.every <= 0 or state.step % record.every != 0:
            return
        var row = state.step // record.every
        if record.theta:
            unsafe_memcpy(
                dest=record.theta.unsafe_value().unsafe_offset(row * self.n), src=self.theta, count=self.n
            )
        if record.t:
            record.t.unsafe_value()[unsafe_offset=row] = state.t

    def advance(mut self, mut state: State) -> Int32:
        """One step of the state; OK, or what is not finite."""
        if not self.slope_known:
            self.slope(0)
        var dt = state.dt
        var finite, taken = self.step(dt)
        if not finite:
            return NONFINITE_STATE
        swap(self.theta, self.next)
        state.step += 1
        state.dt = dt
        comptime if Self.method.adaptive:
            state.t += taken
            var last = self.slopes.unsafe_offset((Self.method.stages - 1) * padded(self.n))
            unsafe_memcpy(dest=self.slopes, src=last, count=padded(self.n))
            self.slope_known = True
        else:
            state.t = Float64(state.step) * self.integrator.dt
            self.sincos_of(self.theta)
        return OK


def widened(weights: Array[Float64, MAX_STAGES]) -> Array[Float64, MAX_STAGES * MAX_STAGES]:
    """One row of weights in the place of a triangle."""
    var rows = Array[Float64, MAX_STAGES * MAX_STAGES](fill=0.0)
    for j in range(MAX_STAGES):
        rows[j] = weights[j]
    return rows^


def power(base: Float64, exponent: Float64) -> Float64:
    return external_call["pow", Float64](base, exponent)


def larger_number(a: Float64, b: Float64) -> Float64:
    """The larger of two; a where b is NaN."""
    return b if b > a else a


def run_of[
    method: Tableau, lag: Bool
](
    network: Network,
    integrator: Integrator,
    mut state: State,
    n_steps: Int,
    record: Record,
    scratch: MutDoubles,
) -> Int32:
    """A run by one method, K with one uniform lag or with a lag for each pair."""
    var n = network.n
    var cursor = Cursor(scratch)
    var run = Run[method, lag](network, integrator, state.modulated, cursor)
    var traits = Traits()
    var modulated = Bool(network.modulation)
    comptime if lag:
        run.take_lags(network.alpha.unsafe_value(), modulated)
    if modulated and n > 0:
        var status = scan(n, network.knm.unsafe_value(), traits)
        if status != OK:
            return status
    for i in range(n):
        var phase = wrap_one(state.theta.unsafe_value()[unsafe_offset=i])
        if not isfinite(phase):
            return NONFINITE_PHASE
        run.theta[unsafe_offset=i] = phase
    if modulated and state.step % network.modulate_every != 0:
        run.apply_lags()
    run.sincos_of(run.theta)
    var status = OK
    var end = state.step + n_steps
    while True:
        run.observe(record, state)
        if state.step == end:
            break
        if modulated and state.step % network.modulate_every == 0:
            status = modulate_state(network, state, traits, run.theta, cursor.copy())
            if status != OK:
                break
            run.apply_lags()
            run.slope_known = False
        status = run.advance(state)
        if status != OK:
            break
        run.keep_state(record, state)
    if n > 0:
        unsafe_memcpy(dest=state.theta.unsafe_value(), src=run.theta, count=n)
    return status


def modulate_state(
    network: Network, state: State, traits: Traits, theta: Doubles, var cursor: Cursor
) -> Int32:
    """The matrix K' of the present phases."""
    if network.n == 0:
        return OK
    ref modulation = network.modulation.unsafe_value()[]
    var room = Scratch(network.n, modulation, cursor)
    var knm = network.knm.unsafe_value()
    return modulate(network.n, knm, traits, theta, modulation, room, state.modulated.unsafe_value())


def run(
    network: Network,
    integrator: Integrator,
    mut state: State,
    n_steps: Int,
    record: Record,
    scratch: MutDoubles,
) -> Int32:
    """Advances an acceptable state by n_steps with a scratch of `run_doubles`."""
    if integrator.method == METHOD_EULER:
        return run_by[EULER](network, integrator, state, n_steps, record, scratch)
    if integrator.method == METHOD_RK4:
        return run_by[RK4](network, integrator, state, n_steps, record, scratch)
    return run_by[DORMAND_PRINCE](network, integrator, state, n_steps, record, scratch)


def run_by[
    method: Tableau
](
    network: Network,
    integrator: Integrator,
    mut state: State,
    n_steps: Int,
    record: Record,
    scratch: MutDoubles,
) -> Int32:
    if network.alpha:
        return run_of[method, True](network, integrator, state, n_steps, record, scratch)
    return run_of[method, False](network, integrator, state, n_steps, record, scratch)
