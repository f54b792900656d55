package kernel

import "math"

// exactSum is a sum that carries its rounding errors along (A. Neumaier, Z. Angew. Math. Mech. 54 (1974) 39;
// the error of one addition by D. E. Knuth, The Art of Computer Programming 2, 4.2.2).
type exactSum struct{ sum, err float64 }

func (s *exactSum) add(x float64) {
	sum := s.sum + x
	fromX := sum - s.sum
	s.err += (s.sum - (sum - fromX)) + (x - fromX)
	s.sum = sum
}

func (s *exactSum) total() float64 { return s.sum + s.err }

// circularSums are the sums of sines and of cosines of the oscillators seen so far.
type circularSums struct{ sine, cosine exactSum }

func (c *circularSums) add(sine, cosine []float64) {
	sines, cosines := c.sine, c.cosine
	for i, s := range sine {
		sines.add(s)
		cosines.add(cosine[i])
	}
	c.sine, c.cosine = sines, cosines
}

// radius is R of n oscillators. The sums are too far from the ends of the range for hypot to matter, and this
// rounds less.
func (c *circularSums) radius(n int) float64 {
	if n == 0 {
		return 0
	}
	s, k := c.sine.total(), c.cosine.total()
	return min(1, math.Sqrt(math.FMA(s, s, float64(k*k)))/float64(n))
}

// meanPhase is psi in [0, 2 pi); 0 for no oscillators.
func (c *circularSums) meanPhase() float64 {
	return wrapOne(math.Atan2(c.sine.total(), c.cosine.total()))
}

// OrderScratch is the number of float64 that OrderParameter needs.
const OrderScratch = 3 * orderBlock

const orderBlock = 32 * Pad

// OrderParameter: r = |mean exp(i theta)| in [0, 1] and its argument psi in [0, 2 pi); both 0 for n = 0.
func OrderParameter(theta, scratch []float64) (r, psi float64, status Status) {
	if !allFinite(theta) {
		return 0, 0, NonfinitePhase
	}
	var sums circularSums
	free := cutter(scratch)
	phases, sine, cosine := free.cut(orderBlock), free.cut(orderBlock), free.cut(orderBlock)
	for rest := theta; len(rest) > 0; {
		count := copy(phases, rest)
		size := padded(count)
		clear(phases[count:size])
		inUse.sincos(phases[:size], sine[:size], cosine[:size])
		sums.add(sine[:count], cosine[:count])
		rest = rest[count:]
	}
	return sums.radius(len(theta)), sums.meanPhase(), OK
}
