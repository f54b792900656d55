package kernel

import "math"

const (
	// boundLimit is the bound of the logits, in powers of two, up to which it replaces their maximum: weights
	// stay above 2^-64 and t rounds to 2^-48.
	boundLimit = 32.0
	// leastExponent: weights below 2^-1000 of the largest are raised to it. They cannot be seen in a sum that
	// is at least 1, and 2^t stays normal.
	leastExponent = -1000.0
	// normFloor keeps |O| > 0 in the unit output O / (|O| + normFloor): part of the definition.
	normFloor = 1e-12
	// tileKeys is the number of keys whose weights stand in the first cache at a time.
	tileKeys = 64
)

// Modulation is multi-head attention over the phases that rescales K. A head has width Model / Heads.
type Modulation struct {
	Heads, Model int       // Heads >= 1 divides Model, which is even
	BlockSize    int       // pairs with |i - j| > BlockSize keep K_ij; -1: no limit
	WQ, WK, WV   []float64 // (Heads, Model, width)
	WO           []float64 // (Model, Model)
	Temperature  []float64 // (Heads), each > 0
	Lambda       float64   // >= 0
}

func (m *Modulation) width() int { return m.Model / m.Heads }

// SizesAcceptable tells whether the sizes are in their ranges, so that the lengths of the slices follow.
func (m *Modulation) SizesAcceptable() bool {
	return m.Heads >= 1 && m.Model >= 2 && m.Model <= LargestSize && m.Model%2 == 0 && m.Model%m.Heads == 0
}

// Acceptable tells whether sizes, slices and numbers of a modulation of n oscillators are in their ranges.
func (m *Modulation) Acceptable(n int) bool {
	if n < 0 || n > LargestSize || !m.SizesAcceptable() || m.BlockSize < -1 {
		return false
	}
	if !(m.Lambda >= 0) || math.IsInf(m.Lambda, 0) {
		return false
	}
	if m.WQ == nil || m.WK == nil || m.WV == nil || m.WO == nil || m.Temperature == nil {
		return false
	}
	for _, temperature := range m.Temperature {
		if !(temperature > 0) || math.IsInf(temperature, 0) {
			return false
		}
	}
	return true
}

// Scratch is the number of float64 that Modulate needs for n oscillators.
func (m *Modulation) Scratch(n int) int {
	return (4*m.Model+3)*padded(n) + (tileKeys+m.sumsOfHead()+4*m.Model)*lanesLimit
}

// sumsOfHead is the number of vectors in which the sums of a head are kept.
func (m *Modulation) sumsOfHead() int { return 3 * ((m.width() + 1) / 2) }

// head is one head as its keys and queries are seen from the kernels; arrays (width, stride).
type head struct {
	n, stride, width int
	q, k, v          []float64 // q becomes y, the output
	zeros            []float64 // (stride): the second of two features where the width is odd
	tile, sums       []float64
	longestKey       float64
	masked           bool
	knm              []float64 // its row j tells which queries see key j; unused when all do
	reach            int       // |i - j| up to it is seen
}

// pair is the lines e and e + 1 of x.
func (h *head) pair(x []float64, e int) (a, b []float64) {
	if e+1 == h.width {
		return x[e*h.stride:], h.zeros
	}
	return x[e*h.stride:], x[(e+1)*h.stride:]
}

// span is the range of keys that a block of queries may see.
func (h *head) span(i, lanes int) (low, high int) {
	if !h.masked {
		return 0, h.n
	}
	return max(0, i-h.reach), min(h.n, i+lanes+h.reach)
}

// units are the unit outputs, (Model, padded n) and a vector more, somewhere in the scratch. seen has a
// symmetric pattern, or is the transpose of K. Theta is finite and is read before anything else.
func (m *Modulation) units(
	n int, seen []float64, found traits, theta, scratch []float64,
) (unit, room []float64) {
	stride, width := padded(n), m.width()
	free := cutter(scratch)
	features := free.cut(m.Model * stride)
	q, k, v := free.cut(m.Model*stride), free.cut(m.Model*stride), free.cut(m.Model*stride)
	phases, zeros := free.cut(stride), free.cut(stride)
	tile, sums := free.cut(tileKeys*lanesLimit), free.cut(m.sumsOfHead()*lanesLimit)
	copy(phases, theta[:n])
	clear(phases[n:])
	clear(zeros)
	inUse.sincos(phases, features[stride:2*stride], features[:stride])
	inUse.harmonics(m.Model, stride, features)
	reach := m.BlockSize
	if reach < 0 || reach > n {
		reach = n
	}
	for number := range m.Heads {
		rows, weights := number*width*stride, number*m.Model*width
		h := head{
			n: n, stride: stride, width: width, q: q[rows:], k: k[rows:], v: v[rows:], zeros: zeros,
			tile: tile, sums: sums, masked: reach < n-1 || !found.allEdges, knm: seen,
			reach: reach,
		}
		scale := math.Log2E / (math.Sqrt(float64(width)) * m.Temperature[number])
		h.longestKey = inUse.project(h, m.Model, scale, features, m.WQ[weights:], m.WK[weights:], m.WV[weights:])
		inUse.attend(h)
	}
	inUse.unitOutputs(m.Model, stride, q, m.WO, features)
	return scratch[:m.Model*stride+lanesLimit], free.cut(4 * m.Model * lanesLimit)
}

// gram is the matrix of the inner products of the columns of u (model, stride), which goes on for a vector;
// room holds four vectors for each line of u.
type gram struct {
	n, model, stride int
	u                []float64
	base             float64 // added to each product
	room             []float64
}

// scale: out = K (1 + lambda a), zero on the diagonal; source is the symmetric part of K, or out itself.
func (m *Modulation) scale(n int, source, unit, room, out []float64) {
	stride, reach := padded(n), m.BlockSize
	root, base := math.Sqrt(0.5*m.Lambda), 1+0.5*m.Lambda
	for e := range unit[:m.Model*stride] {
		unit[e] *= root
	}
	g := gram{n, m.Model, stride, unit, base, room}
	if reach < 0 || reach >= n-1 {
		for i := 0; i < n; i += 4 {
			inUse.scaleRows(g, i, n-1, 0, n, source, out)
		}
	} else {
		copy(out[:n*n], source)
		for i := range n {
			inUse.scaleRows(g, i, i, max(0, i-reach), min(n, i+reach+1), source, out)
		}
	}
	for i := range n {
		out[i*n+i] = 0
	}
}

// modulate: out = K' of an acceptable K and finite phases.
func (m *Modulation) modulate(n int, knm []float64, found traits, theta, scratch, out []float64) {
	seen, source := knm, knm
	if !found.symmetricPattern {
		// The kernels read the mask by columns, as rows of the transpose, for which out is the room; theta
		// may lie in it.
		free := cutter(scratch)
		phases := free.cut(padded(n))
		copy(phases, theta[:n])
		theta, scratch, seen = phases, free, out
		mixWithTranspose(n, knm, 1, out)
	}
	unit, room := m.units(n, seen, found, theta, scratch)
	if m.Lambda == 0 {
		copy(out[:n*n], knm)
		return
	}
	if !found.exactlySymmetric {
		mixWithTranspose(n, knm, 0.5, out)
		source = out
	}
	m.scale(n, source, unit, room, out)
}

// Modulate writes K' (n, n) to out, which may not overlap K. Nothing is written unless K and theta are
// acceptable; m has been found Acceptable. O(n^2 Model).
func (m *Modulation) Modulate(n int, knm, theta, out []float64, scratch func(size int) []float64) Status {
	if n == 0 {
		return OK
	}
	if knm == nil || theta == nil || out == nil {
		return InvalidArgument
	}
	found, status := scan(n, knm)
	if status != OK {
		return status
	}
	if !allFinite(theta[:n]) {
		return NonfinitePhase
	}
	room := scratch(m.Scratch(n))
	if room == nil {
		return OutOfMemory
	}
	m.modulate(n, knm, found, theta, room, out)
	return OK
}
