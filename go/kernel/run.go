package kernel

import "math"

// Method is an integrator; the numbers are those of enum spo_method.
type Method int64

// The integrators.
const (
	Euler Method = iota
	RK4          // classical, fixed step
	RK45         // Dormand-Prince 5(4), adaptive
)

func (m Method) tableau() *tableau {
	switch m {
	case Euler:
		return &euler
	case RK4:
		return &rk4
	}
	return &dormandPrince
}

// Network is what is integrated:
//
//	d theta_i / dt = omega_i + sum_j K_ij sin(theta_j - theta_i - alpha_ij) + zeta sin(psi - theta_i)
type Network struct {
	N             int
	Omega         []float64 // (N)
	Knm           []float64 // (N, N)
	Alpha         []float64 // (N, N), or nil: the lag is uniform
	UniformAlpha  float64   // the lag of every pair when Alpha is nil
	Zeta, Psi     float64   // strength and phase of the drive
	Modulated     bool      // K' is in force; else K stays as it is
	Modulation    Modulation
	ModulateEvery int64 // K' is made anew at each step that this number divides
}

// Integrator chooses the method and its steps; Atol and Rtol are for RK45 only.
type Integrator struct {
	Method         Method
	DT, Atol, Rtol float64
}

// State is taken and given back, so that a run may be cut into pieces that end in equal bits.
type State struct {
	Theta     []float64 // (N), wrapped into [0, 2 pi) on entry and after each step
	Modulated []float64 // (N, N): K' in force between two calls; nil without modulation
	T, DT     float64   // time; step tried next
	Step      int64     // steps taken
}

// Record is what is kept; nil: not kept. Index s describes the state at step s, counted like State.Step.
type Record struct {
	Every             int64     // Theta and T keep the states after steps that this number divides; 0: none
	Theta             []float64 // row s / Every of (rows, N)
	T                 []float64 // (rows)
	R, Psi, TObserved []float64
}

// vectors of a run: omega, theta, next, stage, sine, cosine, minus cosine, P and Q, and P and Q of the lags.
const vectors = 11

// Acceptable tells whether a run of these is one.
func Acceptable(network *Network, integrator *Integrator, state *State, steps int64) bool {
	if steps < 0 || network.N < 0 || network.N > LargestSize {
		return false
	}
	if integrator.Method < Euler || integrator.Method > RK45 {
		return false
	}
	if !(integrator.DT > 0) || math.IsInf(integrator.DT, 0) {
		return false
	}
	if !(integrator.Atol >= 0) || !(integrator.Rtol >= 0) {
		return false
	}
	if network.Zeta-network.Zeta != 0 || network.Psi-network.Psi != 0 ||
		network.UniformAlpha-network.UniformAlpha != 0 {
		return false
	}
	if network.N > 0 && (network.Omega == nil || network.Knm == nil || state.Theta == nil) {
		return false
	}
	if !network.Modulated {
		return true
	}
	if network.N > 0 && state.Modulated == nil {
		return false
	}
	return network.ModulateEvery >= 1 && network.Modulation.Acceptable(network.N)
}

// RunScratch is the number of float64 that Run needs.
func RunScratch(network *Network, method Method) int {
	size := (vectors + method.tableau().stages) * padded(network.N)
	if network.Alpha != nil {
		size += network.lagMatrices() * padded(network.N*network.N)
	}
	if network.Modulated {
		size += network.Modulation.Scratch(network.N)
	}
	return size
}

// lagMatrices: K cos alpha and K sin alpha; cos alpha and sin alpha are kept only when K changes too.
func (network *Network) lagMatrices() int {
	if network.Modulated {
		return 4
	}
	return 2
}

// driftConstants: the turn of a uniform lag, and zeta sin(psi - theta) = driveSine cos theta - driveCosine
// sin theta.
type driftConstants struct{ turnCosine, turnSine, driveSine, driveCosine float64 }

// run is one run: its parts in the scratch, all padded.
type run struct {
	Network
	Integrator
	method                 *tableau
	constants              driftConstants
	knm                    []float64 // in force: K, or K'
	found                  traits    // of K, when it is modulated
	omega, theta, next     []float64
	stage, sine, cosine    []float64
	minus                  []float64 // -cosine, where each pair has its own lag
	pull, push             []float64 // P and Q of f = omega + cos P - sin Q + drive
	lagPull, lagPush       []float64
	slopes                 []float64 // (stages, padded)
	lagCosine, lagSine     []float64 // (N, N): K cos alpha and K sin alpha; nil when the lag is uniform
	alphaCosine, alphaSine []float64 // (N, N)
	modulation             []float64 // scratch of the modulation
}

func newRun(network *Network, integrator *Integrator, scratch []float64) run {
	r := run{Network: *network, Integrator: *integrator, method: integrator.Method.tableau(), knm: network.Knm}
	n, free := padded(network.N), cutter(scratch)
	clear(scratch[:(vectors+r.method.stages)*n])
	for _, part := range [vectors]*[]float64{
		&r.omega, &r.theta, &r.next, &r.stage, &r.sine, &r.cosine, &r.minus, &r.pull, &r.push, &r.lagPull,
		&r.lagPush,
	} {
		*part = free.cut(n)
	}
	r.slopes = free.cut(r.method.stages * n)
	copy(r.omega, network.Omega)
	if network.Alpha != nil {
		r.cutLags(&free)
	}
	r.modulation = free
	sine, cosine := math.Sincos(network.Psi)
	r.constants = driftConstants{1, 0, network.Zeta * sine, network.Zeta * cosine}
	if network.Alpha == nil {
		r.constants.turnSine, r.constants.turnCosine = math.Sincos(network.UniformAlpha)
	}
	return r
}

// cutLags finds the room of the lags and fills what depends on them alone.
func (r *run) cutLags(free *cutter) {
	entries := r.N * r.N
	r.lagCosine, r.lagSine = free.cut(padded(entries)), free.cut(padded(entries))
	cosine, sine := r.lagCosine, r.lagSine
	if r.Modulated {
		r.alphaCosine, r.alphaSine = free.cut(padded(entries)), free.cut(padded(entries))
		cosine, sine = r.alphaCosine, r.alphaSine
	}
	r.sincosMatrix(r.Alpha[:entries], sine, cosine)
	if !r.Modulated {
		r.multiplyLags(r.Knm, cosine, sine)
	}
}

// sincosMatrix: sine and cosine are padded, x is not; the last of it stands in stage meanwhile.
func (r *run) sincosMatrix(x, sine, cosine []float64) {
	whole := len(x) / Pad * Pad
	inUse.sincos(x[:whole], sine[:whole], cosine[:whole])
	if whole < len(x) {
		copy(r.stage, x[whole:])
		inUse.sincos(r.stage[:Pad], sine[whole:], cosine[whole:])
	}
}

func (r *run) multiplyLags(knm, cosine, sine []float64) {
	for e, k := range knm[:r.N*r.N] {
		r.lagCosine[e], r.lagSine[e] = k*cosine[e], k*sine[e]
	}
}

// applyLags: products of K' with the lags, where each pair has its own.
func (r *run) applyLags() {
	if r.alphaCosine != nil {
		r.multiplyLags(r.knm, r.alphaCosine, r.alphaSine)
	}
}

// turn takes sine and cosine of padded phases; zeros behind the N-th, so that sums over whole vectors are
// sums over oscillators.
func (r *run) turn(phases []float64) {
	inUse.sincos(phases, r.sine, r.cosine)
	clear(r.sine[r.N:])
	clear(r.cosine[r.N:])
}

// drift: f at the phases that turn has taken. sin(theta_j - theta_i - alpha_ij) is a sum of products of
// functions of i and of j, so that with s = sin theta and c = cos theta
//
//	f_i = omega_i + c_i P_i - s_i Q_i + zeta sin(psi - theta_i)
//	uniform lag a:  P = (K s) cos a - (K c) sin a,         Q = (K c) cos a + (K s) sin a
//	a lag a pair:   P = (K cos alpha) s - (K sin alpha) c, Q = (K cos alpha) c + (K sin alpha) s
func (r *run) drift(f []float64) {
	if r.lagCosine == nil {
		inUse.pull(r.N, r.knm, r.sine, r.cosine, r.pull, r.push)
	} else {
		for i, c := range r.cosine {
			r.minus[i] = -c
		}
		inUse.pull(r.N, r.lagCosine, r.sine, r.cosine, r.pull, r.push)
		inUse.pull(r.N, r.lagSine, r.minus, r.sine, r.lagPull, r.lagPush)
		for i := range r.pull {
			r.pull[i] += r.lagPull[i]
			r.push[i] += r.lagPush[i]
		}
	}
	inUse.closeDrift(r.constants, r.pull, r.push, r.sine, r.cosine, r.omega, f)
}

func (r *run) slope(stage int) []float64 {
	n := len(r.theta)
	return r.slopes[stage*n : (stage+1)*n]
}

// attempt takes stages 2 ... from the first slope and leaves y, wrapped, in next. For a method with an error
// estimate the last stage is taken at the wrapped y, so that its slope is, bit for bit, the first one of the
// next step; worst is then the largest error in units of the tolerance (NaN or infinity when it cannot be
// told).
func (r *run) attempt(dt float64) (worst float64, finite bool) {
	inner := r.method.stages
	if r.method.adaptive {
		inner--
	}
	for stage := 1; stage < inner; stage++ {
		inUse.combine(r.theta, r.slopes, r.method.a[stage][:stage], dt, r.stage)
		r.turn(r.stage)
		r.drift(r.slope(stage))
	}
	inUse.combine(r.theta, r.slopes, r.method.b[:inner], dt, r.stage)
	finite = inUse.wrap(r.stage, r.next)
	if !r.method.adaptive {
		return 0, finite
	}
	r.turn(r.next)
	r.drift(r.slope(inner))
	lower := r.pull // its sums have served
	inUse.combine(r.theta, r.slopes, r.method.embedded[:], dt, lower)
	return r.worstError(lower), finite
}

// worstError compares y in stage with the solution of lower order.
func (r *run) worstError(lower []float64) float64 {
	worst, trouble := 0.0, 0.0
	for i, theta := range r.theta[:r.N] {
		y := r.stage[i]
		size := max(math.Abs(theta), math.Abs(y))
		ratio := math.Abs(y-lower[i]) / (float64(r.Rtol*size) + r.Atol)
		trouble += ratio - ratio
		if ratio > worst {
			worst = ratio
		}
	}
	return worst + trouble
}

// The controller of the adaptive step.
const (
	safety      = 0.9
	growthLimit = 5.0 // of one step
	shrinkLimit = 0.2 // of one failed attempt
	stepLimit   = 10  // of any step, in units of the first
	maxAttempts = 4   // the last one is taken whatever its error
)

// adaptiveStep takes one step from the first slope: the step size used, the one to try next.
func (r *run) adaptiveStep(dt float64) (taken, next float64, finite bool) {
	for attempts := 1; ; attempts++ {
		var worst float64
		worst, finite = r.attempt(dt)
		if worst <= 1 {
			growth := growthLimit
			if worst > 0 {
				growth = min(growthLimit, safety*math.Pow(worst, -0.2))
			}
			return dt, min(dt*growth, stepLimit*r.DT), finite
		}
		shrink := safety * math.Pow(worst, -0.25)
		if !(shrink > shrinkLimit) {
			shrink = shrinkLimit
		}
		if attempts == maxAttempts {
			return dt, dt * shrink, finite
		}
		dt *= shrink
	}
}

// observe keeps what a record keeps of every state, from its sine and cosine.
func (r *run) observe(record *Record, state *State) {
	if record.TObserved != nil {
		record.TObserved[state.Step] = state.T
	}
	if record.R == nil && record.Psi == nil {
		return
	}
	var sums circularSums
	sums.add(r.sine[:r.N], r.cosine[:r.N])
	if record.R != nil {
		record.R[state.Step] = sums.radius(r.N)
	}
	if record.Psi != nil {
		record.Psi[state.Step] = sums.meanPhase()
	}
}

// keep writes the rows of a record.
func (r *run) keep(record *Record, state *State) {
	if record.Every <= 0 || state.Step%record.Every != 0 {
		return
	}
	row := int(state.Step / record.Every)
	if record.Theta != nil {
		copy(record.Theta[row*r.N:(row+1)*r.N], r.theta)
	}
	if record.T != nil {
		record.T[row] = state.T
	}
}

// advance takes the steps from the state whose phases turn has taken.
func (r *run) advance(state *State, steps int64, record *Record) Status {
	slopeKnown := false // the first slope of this step was the last one of the step before
	for end := state.Step + steps; ; {
		r.observe(record, state)
		if state.Step == end {
			return OK
		}
		if r.Modulated && state.Step%r.ModulateEvery == 0 {
			r.Modulation.modulate(r.N, r.Knm, r.found, r.theta, r.modulation, state.Modulated)
			r.applyLags()
			slopeKnown = false
		}
		if !slopeKnown {
			r.drift(r.slope(0))
		}
		taken, next, finite := state.DT, state.DT, true
		if r.method.adaptive {
			taken, next, finite = r.adaptiveStep(state.DT)
		} else {
			_, finite = r.attempt(taken)
		}
		if !finite {
			return NonfiniteState
		}
		r.theta, r.next = r.next, r.theta
		state.Step++
		state.DT = next
		if r.method.adaptive {
			state.T += taken
			copy(r.slope(0), r.slope(r.method.stages-1))
			slopeKnown = true
		} else {
			state.T = float64(state.Step) * r.DT
			r.turn(r.theta)
		}
		r.keep(record, state)
	}
}

// Run advances an Acceptable state; with modulation, K must be symmetric. O(N^2) a stage.
func Run(
	network *Network, integrator *Integrator, state *State, steps int64, record *Record, scratch []float64,
) Status {
	r := newRun(network, integrator, scratch)
	n := network.N
	if network.Modulated {
		var status Status
		if r.found, status = scan(n, network.Knm); status != OK {
			return status
		}
		r.knm = state.Modulated
	}
	for i, theta := range state.Theta[:n] {
		r.theta[i] = wrapOne(theta)
	}
	if !allFinite(r.theta[:n]) {
		return NonfinitePhase
	}
	if network.Modulated && state.Step%network.ModulateEvery != 0 {
		r.applyLags()
	}
	r.turn(r.theta)
	status := r.advance(state, steps, record)
	copy(state.Theta, r.theta[:n])
	return status
}
