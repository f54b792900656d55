package kernel

import (
	"fmt"
	"math"
	"math/big"
	"math/rand"
	"slices"
	"testing"
)

// withEverySet runs a test on each set of vectors that this processor has.
func withEverySet(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	before := inUse
	defer func() { inUse = before }()
	for _, set := range available() {
		inUse = set
		t.Run(set.name(), test)
	}
}

func nans(n int) []float64 { return slices.Repeat([]float64{math.NaN()}, n) }

func largestGap(a, b []float64) float64 {
	largest := 0.0
	for i := range a {
		largest = max(largest, math.Abs(a[i]-b[i]))
	}
	return largest
}

// sameBits tells zeros of unlike signs apart.
func sameBits(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}

func randoms(rng *rand.Rand, n int, low, high float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = low + (high-low)*rng.Float64()
	}
	return x
}

// coupling is a random symmetric matrix without self-coupling.
func coupling(rng *rand.Rand, n int) []float64 {
	knm := randoms(rng, n*n, 0.1, 1)
	for i := range n {
		knm[i*n+i] = 0
		for j := range i {
			knm[i*n+j] = knm[j*n+i]
		}
	}
	return knm
}

func parameters(rng *rand.Rand, heads, model int) *Modulation {
	temperature := make([]float64, heads)
	for h := range temperature {
		temperature[h] = 0.7 + 0.2*float64(h)
	}
	return &Modulation{
		Heads: heads, Model: model, BlockSize: -1, Temperature: temperature, Lambda: 0.5,
		WQ: randoms(rng, model*model, -0.6, 0.6), WK: randoms(rng, model*model, -0.6, 0.6),
		WV: randoms(rng, model*model, -0.6, 0.6), WO: randoms(rng, model*model, -0.6, 0.6),
	}
}

// memory is a scratch full of NaN.
func memory(size int) []float64 { return nans(size) }

func modulate(m *Modulation, n int, knm, theta, out []float64) Status {
	if !m.Acceptable(n) {
		return InvalidArgument
	}
	return m.Modulate(n, knm, theta, out, memory)
}

func advance(network *Network, integrator *Integrator, state *State, steps int64, record *Record) Status {
	if !Acceptable(network, integrator, state, steps) {
		return InvalidArgument
	}
	return Run(network, integrator, state, steps, record, memory(RunScratch(network, integrator.Method)))
}

func order(theta []float64) (r, psi float64, status Status) {
	return OrderParameter(theta, memory(OrderScratch))
}

// direct is the modulation by its definition (MATH: softmax over what each row sees, both sides averaged).
func direct(m *Modulation, n int, knm, theta []float64) []float64 {
	width, unit := m.width(), make([][]float64, n)
	sees := func(i, j int) bool {
		return i != j && knm[i*n+j] != 0 && (m.BlockSize < 0 || max(i-j, j-i) <= m.BlockSize)
	}
	x := func(i, d int) float64 {
		if d%2 == 0 {
			return math.Cos(float64(d/2+1) * theta[i])
		}
		return math.Sin(float64(d/2+1) * theta[i])
	}
	project := func(w []float64, h, i, e int) (sum float64) {
		for d := range m.Model {
			sum += x(i, d) * w[(h*m.Model+d)*width+e]
		}
		return sum
	}
	for i := range n {
		y := make([]float64, m.Model)
		for h := range m.Heads {
			logits, largest := make([]float64, n), math.Inf(-1)
			for j := range n {
				for e := range width {
					logits[j] += project(m.WQ, h, i, e) * project(m.WK, h, j, e)
				}
				logits[j] /= math.Sqrt(float64(width)) * m.Temperature[h]
				if sees(i, j) {
					largest = max(largest, logits[j])
				}
			}
			total := 0.0
			for j := range n {
				if sees(i, j) {
					weight := math.Exp(logits[j] - largest)
					total += weight
					for e := range width {
						y[h*width+e] += weight * project(m.WV, h, j, e)
					}
				}
			}
			for e := range width {
				if total > 0 {
					y[h*width+e] /= total
				}
			}
		}
		unit[i] = make([]float64, m.Model)
		norm := 0.0
		for e := range m.Model {
			for r := range m.Model {
				unit[i][e] += y[r] * m.WO[r*m.Model+e]
			}
			norm += unit[i][e] * unit[i][e]
		}
		for e := range m.Model {
			unit[i][e] /= math.Sqrt(norm) + normFloor
		}
	}
	half := func(i, j int) float64 {
		a := 0.0
		for e := range m.Model {
			a += unit[i][e] * unit[j][e]
		}
		if !sees(i, j) {
			a = -1
		}
		return knm[i*n+j] * (1 + m.Lambda*0.5*(1+a))
	}
	out := make([]float64, n*n)
	for i := range n {
		for j := range n {
			if i != j {
				out[i*n+j] = 0.5 * (half(i, j) + half(j, i))
			}
		}
	}
	return out
}

func TestModulationAgainstItsDefinition(t *testing.T) {
	withEverySet(t, func(t *testing.T) {
		for _, n := range []int{1, 2, 3, 7, 8, 9, 16, 17, 33, 70} {
			for _, shape := range [][2]int{{1, 2}, {4, 4}, {4, 8}, {2, 8}, {1, 8}, {2, 6}, {1, 10}} {
				rng := rand.New(rand.NewSource(int64(n)))
				m, knm, theta := parameters(rng, shape[0], shape[1]), coupling(rng, n), randoms(rng, n, -9, 9)
				sparse := slices.Clone(knm)
				for e := range sparse {
					if i, j := e/n, e%n; (i+j)%3 == 0 {
						sparse[e] = 0
					}
				}
				oneSided := slices.Clone(sparse)
				for i := range n {
					if i%2 == 0 {
						oneSided[(n-1)*n+i], oneSided[i*n+n-1] = 0, 5e-13
					}
				}
				oneSided[n*n-1] = 0
				banded := *m
				banded.BlockSize = 3
				for name, c := range map[string]struct {
					m   *Modulation
					knm []float64
				}{"all": {m, knm}, "sparse": {m, sparse}, "one-sided": {m, oneSided}, "banded": {&banded, knm}} {
					out := nans(n * n)
					if status := modulate(c.m, n, c.knm, theta, out); status != OK {
						t.Fatalf("n = %d, %v, %s: status %d", n, shape, name, status)
					}
					if gap := largestGap(out, direct(c.m, n, c.knm, theta)); !(gap <= 1e-12) {
						t.Errorf("n = %d, %v, %s: off by %g", n, shape, name, gap)
					}
					for i := range n {
						for j := range n {
							if out[i*n+j] != out[j*n+i] || out[i*n+i] != 0 {
								t.Fatalf("n = %d, %v, %s: not symmetric at %d, %d", n, shape, name, i, j)
							}
						}
					}
				}
			}
		}
	})
}

func TestNoModulationKeepsTheBits(t *testing.T) {
	rng := rand.New(rand.NewSource(2))
	m, knm := parameters(rng, 4, 8), coupling(rng, 9)
	m.Lambda = 0
	knm[10], knm[3], knm[27] = math.Copysign(0, -1), 5e-13, 0
	out := nans(81)
	if status := modulate(m, 9, knm, randoms(rng, 9, 0, 6), out); status != OK || !sameBits(out, knm) {
		t.Errorf("status %d, %v", status, out)
	}
}

func TestExtremeWeightsStayFinite(t *testing.T) {
	withEverySet(t, func(t *testing.T) {
		for _, size := range []float64{1e3, 1e150, 1e300} {
			for _, temperature := range []float64{1e-3, 1} {
				rng := rand.New(rand.NewSource(3))
				n, m := 19, parameters(rng, 4, 8)
				for e := range m.WQ {
					m.WQ[e] *= size
					m.WK[e] *= size
				}
				for h := range m.Temperature {
					m.Temperature[h] = temperature
				}
				out := nans(n * n)
				status := modulate(m, n, coupling(rng, n), randoms(rng, n, 0, 6), out)
				if status != OK || !allFinite(out) {
					t.Errorf("weights %g, temperature %g: status %d", size, temperature, status)
				}
			}
		}
	})
}

// The phases may lie in the result.
func TestPhasesInsideTheResult(t *testing.T) {
	rng := rand.New(rand.NewSource(4))
	n := 12
	m, knm, theta := parameters(rng, 4, 8), coupling(rng, n), randoms(rng, n, 0, 6)
	knm[1], knm[n] = 0, 5e-13
	want, out := nans(n*n), nans(n*n)
	modulate(m, n, knm, theta, want)
	copy(out[n:], theta)
	if status := modulate(m, n, knm, out[n:2*n], out); status != OK || !sameBits(out, want) {
		t.Errorf("status %d", status)
	}
}

func TestModulateStatuses(t *testing.T) {
	const n = 11
	nan, infinity := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		change func(m *Modulation, k, th []float64)
		want   Status
	}{
		"fine":                 {func(m *Modulation, k, th []float64) {}, OK},
		"no heads":             {func(m *Modulation, k, th []float64) { m.Heads = 0 }, InvalidArgument},
		"heads do not divide":  {func(m *Modulation, k, th []float64) { m.Heads = 3 }, InvalidArgument},
		"odd model":            {func(m *Modulation, k, th []float64) { m.Model = 7 }, InvalidArgument},
		"huge model":           {func(m *Modulation, k, th []float64) { m.Model = 1 << 30 }, InvalidArgument},
		"block size":           {func(m *Modulation, k, th []float64) { m.BlockSize = -2 }, InvalidArgument},
		"negative lambda":      {func(m *Modulation, k, th []float64) { m.Lambda = -1 }, InvalidArgument},
		"lambda NaN":           {func(m *Modulation, k, th []float64) { m.Lambda = nan }, InvalidArgument},
		"infinite lambda":      {func(m *Modulation, k, th []float64) { m.Lambda = infinity }, InvalidArgument},
		"no weights":           {func(m *Modulation, k, th []float64) { m.WO = nil }, InvalidArgument},
		"no temperature":       {func(m *Modulation, k, th []float64) { m.Temperature[2] = 0 }, InvalidArgument},
		"K is NaN":             {func(m *Modulation, k, th []float64) { k[1] = nan }, NonfiniteCoupling},
		"K is infinite":        {func(m *Modulation, k, th []float64) { k[n*n-1] = infinity }, NonfiniteCoupling},
		"asymmetric, diagonal": {func(m *Modulation, k, th []float64) { k[1], k[0] = 7, 1 }, AsymmetricCoupling},
		"diagonal":             {func(m *Modulation, k, th []float64) { k[0] = 1e-6 }, NonzeroDiagonal},
		"theta":                {func(m *Modulation, k, th []float64) { th[n-1] = -infinity }, NonfinitePhase},
	} {
		rng := rand.New(rand.NewSource(5))
		m, knm, theta := parameters(rng, 4, 8), coupling(rng, n), randoms(rng, n, 0, 6)
		c.change(m, knm, theta)
		out := nans(n * n)
		if status := modulate(m, n, knm, theta, out); status != c.want {
			t.Errorf("%s: status %d instead of %d", name, status, c.want)
		}
		if c.want != OK && !sameBits(out, nans(n*n)) {
			t.Errorf("%s: something was written", name)
		}
	}
	m := parameters(rand.New(rand.NewSource(5)), 4, 8)
	none := func(int) []float64 { return nil }
	one := []float64{0}
	for name, c := range map[string][2]Status{
		"empty":      {m.Modulate(0, nil, nil, nil, none), OK},
		"missing":    {m.Modulate(1, nil, one, one, none), InvalidArgument},
		"no memory":  {m.Modulate(1, one, one, one, none), OutOfMemory},
		"negative n": {modulate(m, -1, one, one, one), InvalidArgument},
		"huge n":     {modulate(m, LargestSize+1, one, one, one), InvalidArgument},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: status %d instead of %d", name, c[0], c[1])
		}
	}
}

func TestSizesOfScratchesDoNotOverflow(t *testing.T) {
	network := &Network{
		N: LargestSize, Alpha: []float64{}, Modulated: true, Modulation: Modulation{Heads: 1, Model: LargestSize},
	}
	if size := RunScratch(network, RK45); size <= 1<<58 || size > math.MaxInt/8 {
		t.Errorf("%d", size)
	}
}

// settings of a run that uses everything.
func settings(n int, method Method) (*Network, *Integrator, func() *State) {
	rng := rand.New(rand.NewSource(int64(n)))
	network := &Network{
		N: n, Omega: randoms(rng, n, -1, 1), Knm: coupling(rng, n), Alpha: randoms(rng, n*n, -1, 1), Zeta: 0.7,
		Psi: 1.1, Modulated: true, Modulation: *parameters(rng, 4, 8), ModulateEvery: 3,
	}
	theta := randoms(rng, n, -20, 20)
	return network, &Integrator{method, 0.02, 1e-7, 1e-4}, func() *State {
		return &State{Theta: slices.Clone(theta), Modulated: nans(n * n), DT: 0.02}
	}
}

func recordFor(n, steps int, every int64) *Record {
	rows, states := steps/int(every)+1, steps+1
	return &Record{every, nans(rows * n), nans(rows), nans(states), nans(states), nans(states)}
}

func TestPiecesEndInTheBitsOfTheWhole(t *testing.T) {
	const steps = 12
	withEverySet(t, func(t *testing.T) {
		for _, n := range []int{1, 5, 9, 33} {
			for method := Euler; method <= RK45; method++ {
				for _, name := range []string{"modulated lags", "modulated", "plain", "plain lags"} {
					network, integrator, start := settings(n, method)
					if name == "modulated" || name == "plain" {
						network.Alpha, network.UniformAlpha = nil, 0.3
					}
					if name == "plain" || name == "plain lags" {
						network.Modulated = false
					}
					whole, pieces := start(), start()
					a, b := recordFor(n, steps, 2), recordFor(n, steps, 2)
					status := advance(network, integrator, whole, steps, a)
					for _, piece := range []int64{1, 1, 4, 0, 5, 1} {
						status = max(status, advance(network, integrator, pieces, piece, b))
					}
					for _, pair := range [][2][]float64{
						{whole.Theta, pieces.Theta}, {a.Theta[n:], b.Theta[n:]}, {a.T[1:], b.T[1:]}, {a.R, b.R}, {a.Psi, b.Psi},
						{a.TObserved, b.TObserved}, {[]float64{whole.T, whole.DT}, []float64{pieces.T, pieces.DT}},
					} {
						if status != OK || !sameBits(pair[0], pair[1]) || !allFinite(pair[0]) {
							t.Fatalf("%s, n = %d, method %d: status %d", name, n, method, status)
						}
					}
					if whole.Step != steps || !sameBits(a.Theta[steps/2*n:], whole.Theta) {
						t.Errorf("%s, n = %d, method %d: step %d", name, n, method, whole.Step)
					}
				}
			}
		}
	})
}

// slopes of a state by the definition, a sine a pair.
func slopes(network *Network, knm, theta []float64) []float64 {
	f := make([]float64, network.N)
	for i := range f {
		f[i] = network.Omega[i] + network.Zeta*math.Sin(network.Psi-theta[i])
		for j := range f {
			lag := network.UniformAlpha
			if network.Alpha != nil {
				lag = network.Alpha[i*network.N+j]
			}
			f[i] += knm[i*network.N+j] * math.Sin(theta[j]-theta[i]-lag)
		}
	}
	return f
}

func TestRunsAgainstAPlainLoop(t *testing.T) {
	const steps, n, dt = 7, 13, 0.02
	moved := func(theta, f []float64, dt float64) []float64 {
		y := slices.Clone(theta)
		for i := range y {
			y[i] += dt * f[i]
		}
		return y
	}
	withEverySet(t, func(t *testing.T) {
		for _, every := range []int64{1, 3} {
			for _, method := range []Method{Euler, RK4} {
				network, integrator, start := settings(n, method)
				network.ModulateEvery = every
				state := start()
				theta, knm := slices.Clone(state.Theta), network.Knm
				if status := advance(network, integrator, state, steps, &Record{}); status != OK {
					t.Fatalf("status %d", status)
				}
				for step := range steps {
					if int64(step)%every == 0 {
						knm = direct(&network.Modulation, n, network.Knm, theta)
					}
					f := slopes(network, knm, theta)
					if method == RK4 {
						second := slopes(network, knm, moved(theta, f, dt/2))
						third := slopes(network, knm, moved(theta, second, dt/2))
						fourth := slopes(network, knm, moved(theta, third, dt))
						for i := range f {
							f[i] = (f[i] + 2*second[i] + 2*third[i] + fourth[i]) / 6
						}
					}
					theta = moved(theta, f, dt)
				}
				for i := range theta {
					if gap := math.Abs(math.Remainder(theta[i]-state.Theta[i], twoPi)); !(gap <= 1e-12) {
						t.Errorf("every %d, method %d: phase %d is off by %g", every, method, i, gap)
					}
				}
			}
		}
	})
}

func TestRunStatuses(t *testing.T) {
	const n = 5
	for name, c := range map[string]struct {
		change func(network *Network, integrator *Integrator, state *State)
		want   Status
	}{
		"fine":       {func(w *Network, i *Integrator, s *State) {}, OK},
		"method":     {func(w *Network, i *Integrator, s *State) { i.Method = 3 }, InvalidArgument},
		"dt":         {func(w *Network, i *Integrator, s *State) { i.DT = 0 }, InvalidArgument},
		"atol":       {func(w *Network, i *Integrator, s *State) { i.Atol = -1 }, InvalidArgument},
		"rtol":       {func(w *Network, i *Integrator, s *State) { i.Rtol = math.NaN() }, InvalidArgument},
		"zeta":       {func(w *Network, i *Integrator, s *State) { w.Zeta = math.Inf(1) }, InvalidArgument},
		"omega":      {func(w *Network, i *Integrator, s *State) { w.Omega = nil }, InvalidArgument},
		"modulated":  {func(w *Network, i *Integrator, s *State) { s.Modulated = nil }, InvalidArgument},
		"every":      {func(w *Network, i *Integrator, s *State) { w.ModulateEvery = 0 }, InvalidArgument},
		"modulation": {func(w *Network, i *Integrator, s *State) { w.Modulation.Lambda = -1 }, InvalidArgument},
		"K":          {func(w *Network, i *Integrator, s *State) { w.Knm[1] = 9 }, AsymmetricCoupling},
		"theta":      {func(w *Network, i *Integrator, s *State) { s.Theta[4] = math.NaN() }, NonfinitePhase},
		"state":      {func(w *Network, i *Integrator, s *State) { w.Omega[2] = math.Inf(1) }, NonfiniteState},
		"plain K": {func(w *Network, i *Integrator, s *State) {
			w.Modulated, w.Knm[1], w.Knm[0] = false, 9, 1
		}, OK},
		"plain NaN": {func(w *Network, i *Integrator, s *State) {
			w.Modulated, w.Knm[7] = false, math.NaN()
		}, NonfiniteState},
	} {
		network, integrator, start := settings(n, RK45)
		state := start()
		c.change(network, integrator, state)
		if status := advance(network, integrator, state, 3, &Record{}); status != c.want {
			t.Errorf("%s: status %d instead of %d", name, status, c.want)
		}
		if c.want == NonfiniteState && (state.Step != 0 || state.T != 0 || !allFinite(state.Theta)) {
			t.Errorf("%s: %+v", name, state)
		}
	}
	empty := &State{DT: 1}
	if status := advance(&Network{}, &Integrator{DT: 1}, empty, 4, &Record{}); status != OK || empty.Step != 4 {
		t.Errorf("no oscillators: status %d, step %d", status, empty.Step)
	}
}

func TestOrderParameters(t *testing.T) {
	withEverySet(t, func(t *testing.T) {
		for _, n := range []int{1, 3, 8, 127, 128, 129, 1000} {
			for _, phase := range []float64{0, 1, 3, 6.2831, 1e9} {
				r, psi, status := order(slices.Repeat([]float64{phase}, n))
				if status != OK || r > 1 || r < 1-2.3e-16 || psi < 0 || psi >= twoPi {
					t.Errorf("%d equal phases %g: R = %v, psi = %v, status %d", n, phase, r, psi, status)
				}
			}
		}
	})
	if r, psi, status := order(nil); r != 0 || psi != 0 || status != OK {
		t.Errorf("no phases: %v, %v, %d", r, psi, status)
	}
	if _, _, status := order([]float64{1, math.NaN()}); status != NonfinitePhase {
		t.Errorf("NaN: status %d", status)
	}
}

// exactSincos reduces with 300 bits of pi and leaves what is below a turn to package math.
func exactSincos(x float64) (sine, cosine float64) {
	const digits = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620" +
		"899862803482534211706798214808651328230664709384460955058223172535940812848"
	pi, _, err := big.ParseFloat(digits, 10, 300, big.ToNearestEven)
	if err != nil {
		panic(err)
	}
	exact := func(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }
	half := new(big.Float).Quo(pi, exact(2))
	turns, _ := new(big.Float).Quo(exact(x), half).Float64()
	quadrant := math.Round(turns)
	rest := new(big.Float).Sub(exact(x), new(big.Float).Mul(exact(quadrant), half))
	r, _ := rest.Float64()
	tail, _ := rest.Sub(rest, exact(r)).Float64()
	s, c := math.Sincos(r)
	s, c = s+c*tail, c-s*tail
	for range (int64(quadrant)%4 + 4) % 4 {
		s, c = c, -s
	}
	return s, c
}

func ulps(got, want float64) float64 {
	_, exponent := math.Frexp(want)
	return math.Abs(got-want) / math.Ldexp(1, max(exponent-53, -1074))
}

func TestSincos(t *testing.T) {
	x := []float64{
		0, math.Copysign(0, -1), math.Pi, math.Pi / 2, -math.Pi / 2, twoPi, 1e9, 1 << 30, 1e12, 1e15, 1e-300, 22,
	}
	rng := rand.New(rand.NewSource(6))
	for _, size := range []float64{1, 7, 1e5, 1e9, 1e12, 1e15} {
		x = append(x, randoms(rng, 4000, -size, size)...)
	}
	for k := range 1000 {
		x = append(x, float64(k*k*300)*math.Pi/2)
	}
	x = append(x, make([]float64, padded(len(x))-len(x))...)
	withEverySet(t, func(t *testing.T) {
		sine, cosine := nans(len(x)), nans(len(x))
		inUse.sincos(x, sine, cosine)
		worst := 0.0
		for i, phase := range x {
			s, c := exactSincos(phase)
			gap := max(ulps(sine[i], s), ulps(cosine[i], c))
			if math.Abs(phase) > sincosLimit {
				gap = max(math.Abs(sine[i]-s), math.Abs(cosine[i]-c)) * 0x1p52
			}
			if worst = max(worst, gap); !(gap <= 1.5) {
				t.Errorf("sincos(%v): off by %g ulp", phase, gap)
			}
		}
		t.Logf("worst error %.2f ulp", worst)
		if sine[0] != 0 || cosine[0] != 1 || sine[1] != 0 {
			t.Errorf("sin 0 = %v, cos 0 = %v, sin -0 = %v", sine[0], cosine[0], sine[1])
		}
	})
}

func TestWrap(t *testing.T) {
	x := []float64{0, -1e-300, twoPi, -twoPi, 100, -100, 1e9, -1e9, 1e12, -1e300, math.Pi, 0, 0, 0, 0, 0}
	withEverySet(t, func(t *testing.T) {
		wrapped := nans(len(x))
		if !inUse.wrap(x, wrapped) {
			t.Error("found a phase that is not finite")
		}
		for i, phase := range x {
			want := wrapOne(phase)
			gap := math.Abs(math.Remainder(wrapped[i]-want, twoPi))
			if !(gap <= 1e-15+math.Abs(phase)*1e-16) || wrapped[i] < 0 || wrapped[i] >= twoPi {
				t.Errorf("%v became %v", phase, wrapped[i])
			}
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			y := slices.Clone(x)
			y[13] = bad
			if inUse.wrap(y, wrapped) {
				t.Errorf("%v went unseen", bad)
			}
		}
	})
}

func TestExp2(t *testing.T) {
	rng := rand.New(rand.NewSource(7))
	x := append([]float64{0, -1, 1, 0.5, -0.5, -1000, 1023, -1021}, randoms(rng, 20000, -1021, 1023)...)
	for name, exp2 := range exp2OfSets() {
		got, worst := slices.Clone(x), 0.0
		exp2(got)
		for i, power := range x {
			worst = max(worst, ulps(got[i], math.Exp2(power)))
		}
		if !(worst <= 2.5) || got[0] != 1 || got[1] != 0.5 {
			t.Errorf("%s: worst error %g ulp, 2^0 = %v", name, worst, got[0])
		}
	}
}

func ExampleOrderParameter() {
	r, psi, _ := OrderParameter([]float64{0, math.Pi / 2}, make([]float64, OrderScratch))
	fmt.Printf("%.4f %.4f\n", r, psi)
	// Output: 0.7071 0.7854
}
