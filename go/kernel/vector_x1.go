package kernel

import (
	"math"
	"unsafe"
)

//go:generate go test -run TestTheLongerVectorsHaveTheSameText -update

// While vectors are in use, no double is computed on alone: on some processors each scalar instruction then
// costs hundreds of cycles, until finish ends the stretch.

// rowx1 is one vector in memory.
type rowx1 [lanesx1]float64

// rows is s in whole vectors.
func (x1) rows(s []float64) []rowx1 {
	return unsafe.Slice((*rowx1)(unsafe.Pointer(unsafe.SliceData(s))), len(s)/lanesx1)
}

// whole is the vector of one integer below 2^51, made without scalar floating-point instructions.
func (l x1) whole(i int) float64x1 {
	round := l.set(rounder)
	return l.integer(int64(i)).Add(round.AsInt64x1()).AsFloat64x1().Sub(round)
}

// loadFirst is a vector of the first doubles of s, with zeros behind them when s ends early. No byte past s
// is read, which the Part functions of simd/archsimd do not promise.
func (l x1) loadFirst(s []float64) float64x1 {
	if len(s) >= lanesx1 {
		return l.load(s)
	}
	return l.loadPart(s)
}

//go:noinline
func (l x1) loadPart(s []float64) float64x1 {
	l.finish()
	var row rowx1
	for i, x := range s {
		row[i] = x
	}
	return l.load(row[:])
}

// exp2 replaces t by 2^t for -1021 <= t <= 1023 (not checked): 2^r by polynomial, r in [-1/2, 1/2], then
// round(t) added to the exponent. Even and odd powers are two chains, since one would wait for itself.
func (l x1) exp2(t []rowx1) {
	q := &exp2Coefficients
	q0, q1, q2, q3, q4, q5 := l.set(q[0]), l.set(q[1]), l.set(q[2]), l.set(q[3]), l.set(q[4]), l.set(q[5])
	q6, q7, q8, q9, q10 := l.set(q[6]), l.set(q[7]), l.set(q[8]), l.set(q[9]), l.set(q[10])
	round, one := l.set(rounder), l.set(1)
	for j := range t {
		x := l.load(t[j][:])
		shifted := x.Add(round)
		r := x.Sub(shifted.Sub(round))
		z := r.Mul(r)
		even := q10.MulAdd(z, q8).MulAdd(z, q6).MulAdd(z, q4).MulAdd(z, q2).MulAdd(z, q0)
		odd := q9.MulAdd(z, q7).MulAdd(z, q5).MulAdd(z, q3).MulAdd(z, q1)
		p := odd.MulAdd(r, even).MulAdd(r, one)
		l.store(p.AsInt64x1().Add(shifted.AsInt64x1().ShiftAllLeft(52)).AsFloat64x1(), t[j][:])
	}
}

// sincosRowsx1 are the constants of sincos as vectors: too many for the registers, and what a compiler then
// does about them costs more than their loads.
var sincosRowsx1 = func() (rows [len(sincosConstants)]rowx1) {
	for i, constant := range sincosConstants {
		for lane := range rows[i] {
			rows[i][lane] = constant
		}
	}
	return rows
}()

// sincos: x, sine and cosine are of one length in whole vectors, and x is none of the others. r + tail = x -
// k pi / 2 in [-pi / 4, pi / 4]; sin r and cos r by polynomial; the quadrant k mod 4 swaps and signs them.
// Phases beyond sincosLimit, or not finite, go one by one to package math.
func (l x1) sincos(x, sine, cosine []float64) {
	k := func(constant int) float64x1 { return l.load(sincosRowsx1[constant][:]) }
	near, zero := l.zero().Equal(l.zero()), l.zero()
	xs := l.rows(x)
	sines, cosines := l.rows(sine)[:len(xs)], l.rows(cosine)[:len(xs)]
	for i := range xs {
		phase := l.load(xs[i][:])
		near = near.And(phase.Mul(phase).LessEqual(k(ofLimit)))
		shifted := l.fused(phase, k(ofQuarters), k(ofRounder))
		quadrant := shifted.AsInt64x1()
		turns := k(ofRounder).Sub(shifted) // -k
		r1 := l.fused(turns, k(ofHalfPi), phase)
		part := turns.Mul(k(ofHalfPi + 1))
		rest := l.fused(turns, k(ofHalfPi+2), l.fused(turns, k(ofHalfPi+1), zero.Sub(part)))
		r := r1.Add(part)
		tail := r1.Sub(r).Add(part).Add(rest)
		z := r.Mul(r)
		s := k(ofSine+5).MulAdd(z, k(ofSine+4)).MulAdd(z, k(ofSine+3)).MulAdd(z, k(ofSine+2))
		c := k(ofCosine+5).MulAdd(z, k(ofCosine+4)).MulAdd(z, k(ofCosine+3)).MulAdd(z, k(ofCosine+2))
		s = s.MulAdd(z, k(ofSine+1)).MulAdd(z, k(ofSine))
		c = c.MulAdd(z, k(ofCosine+1)).MulAdd(z, k(ofCosine))
		h := k(ofHalf).Mul(z)
		w := k(ofOne).Sub(h)
		s = r.Add(s.Mul(z).MulAdd(r, tail.Mul(w)))
		c = w.Add(c.Mul(z).MulAdd(z, zero.Sub(r).MulAdd(tail, k(ofOne).Sub(w).Sub(h))))
		first, second := k(ofFirstBit).AsInt64x1(), k(ofSecondBit).AsInt64x1()
		swap := quadrant.And(first).NotEqual(zero.AsInt64x1())
		sineSign := quadrant.And(second).ShiftAllLeft(62)
		cosineSign := quadrant.Add(first).And(second).ShiftAllLeft(62)
		l.store(c.IfElse(swap, s).AsInt64x1().Xor(sineSign).AsFloat64x1(), sines[i][:])
		l.store(s.IfElse(swap, c).AsInt64x1().Xor(cosineSign).AsFloat64x1(), cosines[i][:])
	}
	far := near.ToBits() != fullx1
	l.finish()
	if far {
		sincosFar(x, sine, cosine)
	}
}

// wrap: y modulo 2 pi into [0, 2 pi); false when some y is not finite. A result that rounds to 2 pi becomes
// 0.
func (l x1) wrap(y, wrapped []float64) bool {
	turn, perTurn, minusTurn := l.set(twoPi), l.set(1/twoPi), l.set(-twoPi)
	zero, round, limit := l.zero(), l.set(rounder), l.set(wrapLimit*wrapLimit)
	excess, near := zero, zero.Equal(zero)
	ys := l.rows(y)
	out := l.rows(wrapped)[:len(ys)]
	for i := range ys {
		x := l.load(ys[i][:])
		excess = excess.Add(x.Sub(x))
		near = near.And(x.Mul(x).LessEqual(limit))
		whole := x.Mul(perTurn).Add(round).Sub(round)
		z := l.fused(whole, minusTurn, x)
		z = z.Add(turn.Masked(z.Less(zero)))
		l.store(z.Masked(z.Less(turn)), out[i][:])
	}
	finite, far := excess.Equal(zero).ToBits() == fullx1, near.ToBits() != fullx1
	l.finish()
	if far {
		wrapFar(y, wrapped)
	}
	return finite
}

// combine: out = theta + dt sum_j weight_j slope_j. The sum is rounded before it is added, so that two such
// results lie on one grid and their difference is that of the stored numbers.
func (l x1) combine(theta, slopes, weights []float64, dt float64, out []float64) {
	step := l.set(dt)
	from, to := l.rows(theta), l.rows(out)[:len(theta)/lanesx1]
	for i := range from {
		sum := l.zero()
		for j, weight := range weights {
			sum = l.load(slopes[j*len(theta)+i*lanesx1:]).MulAdd(l.set(weight), sum)
		}
		l.store(l.load(from[i][:]).Add(sum.Mul(step)), to[i][:])
	}
	l.finish()
}

// pull: p = K s and q = K c for the n rows of K, which is read once: four rows share each load of s and c.
// The last rows stand in for those that are missing to four, in the padding of p and q. s and c are 0 past n.
func (l x1) pull(n int, knm, s, c, p, q []float64) {
	sines, cosines := l.rows(s[:n]), l.rows(c[:n])
	tail := len(sines) * lanesx1
	for i := 0; i < n; i += 4 {
		line0, line1 := knm[i*n:][:n], knm[min(i+1, n-1)*n:][:n]
		line2, line3 := knm[min(i+2, n-1)*n:][:n], knm[min(i+3, n-1)*n:][:n]
		p0, p1, p2, p3 := l.zero(), l.zero(), l.zero(), l.zero()
		q0, q1, q2, q3 := l.zero(), l.zero(), l.zero(), l.zero()
		k0, k1 := l.rows(line0)[:len(sines)], l.rows(line1)[:len(sines)]
		k2, k3 := l.rows(line2)[:len(sines)], l.rows(line3)[:len(sines)]
		for j := range sines {
			sj, cj := l.load(sines[j][:]), l.load(cosines[j][:])
			k := l.load(k0[j][:])
			p0, q0 = k.MulAdd(sj, p0), k.MulAdd(cj, q0)
			k = l.load(k1[j][:])
			p1, q1 = k.MulAdd(sj, p1), k.MulAdd(cj, q1)
			k = l.load(k2[j][:])
			p2, q2 = k.MulAdd(sj, p2), k.MulAdd(cj, q2)
			k = l.load(k3[j][:])
			p3, q3 = k.MulAdd(sj, p3), k.MulAdd(cj, q3)
		}
		if tail < n {
			sj, cj := l.load(s[tail:]), l.load(c[tail:])
			k := l.loadPart(line0[tail:])
			p0, q0 = k.MulAdd(sj, p0), k.MulAdd(cj, q0)
			k = l.loadPart(line1[tail:])
			p1, q1 = k.MulAdd(sj, p1), k.MulAdd(cj, q1)
			k = l.loadPart(line2[tail:])
			p2, q2 = k.MulAdd(sj, p2), k.MulAdd(cj, q2)
			k = l.loadPart(line3[tail:])
			p3, q3 = k.MulAdd(sj, p3), k.MulAdd(cj, q3)
		}
		l.sum4(p0, p1, p2, p3, p[i:])
		l.sum4(q0, q1, q2, q3, q[i:])
	}
	l.finish()
}

// closeDrift: f from P, Q, sin theta, cos theta and omega; the uniform lag turns P and Q, the drive joins
// them.
func (l x1) closeDrift(d driftConstants, p, q, s, c, omega, f []float64) {
	turnCosine, turnSine := l.set(d.turnCosine), l.set(d.turnSine)
	driveSine, driveCosine := l.set(d.driveSine), l.set(d.driveCosine)
	zero := l.zero()
	out := l.rows(f)
	ps, qs, ss := l.rows(p)[:len(out)], l.rows(q)[:len(out)], l.rows(s)[:len(out)]
	cs, omegas := l.rows(c)[:len(out)], l.rows(omega)[:len(out)]
	for i := range out {
		pi, qi := l.load(ps[i][:]), l.load(qs[i][:])
		along := pi.MulAdd(turnCosine, zero.Sub(qi.Mul(turnSine))).Add(driveSine)
		across := qi.MulAdd(turnCosine, pi.Mul(turnSine)).Add(driveCosine)
		turned := zero.Sub(l.load(ss[i][:])).MulAdd(across, l.load(omegas[i][:]))
		l.store(l.load(cs[i][:]).MulAdd(along, turned), out[i][:])
	}
	l.finish()
}

// survey: how many entries are zero, and whether all are finite.
func (l x1) survey(knm []float64) (zeros int, finite bool) {
	zero, one := l.zero(), l.set(1)
	count, excess := zero, zero
	whole := l.rows(knm)
	for i := range whole {
		k := l.load(whole[i][:])
		count = count.Add(one.Masked(k.Equal(zero)))
		excess = excess.Add(k.Sub(k))
	}
	zeros, finite = int(l.sum(count)), excess.Equal(zero).ToBits() == fullx1
	for _, k := range knm[len(whole)*lanesx1:] {
		if k == 0 {
			zeros++
		}
		finite = finite && k-k == 0
	}
	l.finish()
	return zeros, finite
}

// harmonics: x_2m = cos((m + 1) theta), x_2m+1 = sin((m + 1) theta) for m >= 1 by the addition theorem from
// the first pair. x is (model, stride).
func (l x1) harmonics(model, stride int, x []float64) {
	for i := 0; i < stride; i += lanesx1 {
		c1, s1 := l.load(x[i:]), l.load(x[stride+i:])
		minusS1 := l.zero().Sub(s1)
		c, s := c1, s1
		for m := 2; m < model; m += 2 {
			c, s = c.MulAdd(c1, s.Mul(minusS1)), s.MulAdd(c1, c.Mul(s1))
			l.store(c, x[m*stride+i:])
			l.store(s, x[(m+1)*stride+i:])
		}
	}
	l.finish()
}

// project: q = scale x W_Q, k = x W_K, v = x W_V for one head; the length of its longest key.
func (l x1) project(h head, model int, scale float64, x, wq, wk, wv []float64) float64 {
	longest, factor := l.zero(), l.set(scale)
	for i := 0; i < h.stride; i += lanesx1 {
		length := l.zero()
		for e := 0; e < h.width; e++ {
			query, key, value := l.zero(), l.zero(), l.zero()
			for m, w := 0, e; m < model; m, w = m+1, w+h.width {
				feature := l.load(x[m*h.stride+i:])
				query = feature.MulAdd(l.set(wq[w]), query)
				key = feature.MulAdd(l.set(wk[w]), key)
				value = feature.MulAdd(l.set(wv[w]), value)
			}
			length = key.MulAdd(key, length)
			l.store(query.Mul(factor), h.q[e*h.stride+i:])
			l.store(key, h.k[e*h.stride+i:])
			l.store(value, h.v[e*h.stride+i:])
		}
		longest = length.Max(longest)
	}
	l.finish()
	return math.Sqrt(l.largest(longest))
}

// attend replaces q by y, the softmax-weighted mean of the values that each query sees.
//
// A lane is a query; the keys follow one after the other, so no sum runs across lanes and no row has a
// remainder. They come in tiles, and each tile passes through small loops that are the same for every width
// of a head: the logits of two features at a time, 2^t, the mask, the sums of two features at a time.
func (l x1) attend(h head) {
	zero := l.zero()
	tile, sums := l.rows(h.tile)[:tileKeys], l.rows(h.sums)
	for i := 0; i < h.n; i += lanesx1 {
		low, high := h.span(i, lanesx1)
		length := zero
		for e := 0; e < h.width; e++ {
			q := l.load(h.q[e*h.stride+i:])
			length = q.MulAdd(q, length)
		}
		shift := length.Sqrt().Mul(l.set(h.longestKey))
		bounded := shift.LessEqual(l.set(boundLimit)).ToBits() == fullx1 // not for a NaN: infinity times 0
		if !bounded {
			shift = l.largestLogit(&h, i, low, high, tile)
		}
		for m := range sums {
			l.store(zero, sums[m][:])
		}
		for j := low; j < high; j += tileKeys {
			t := tile[:min(len(tile), high-j)]
			if bounded {
				l.logits(&h, i, j, zero.Sub(shift), t)
			} else {
				l.logits(&h, i, j, zero, t)
				l.clamp(shift, t)
			}
			l.exp2(t)
			if h.masked {
				l.hide(&h, i, j, zero, t)
			}
			for own := max(i, j); own < min(i+lanesx1, j+len(t)); own++ {
				t[own-j][own-i] = 0
			}
			l.accumulate(&h, j, t, sums)
		}
		for e := 0; e < h.width; e++ {
			total, o := l.load(sums[e/2*3][:]), l.load(sums[e/2*3+1+e%2][:])
			share := l.set(1).Div(total).Masked(zero.Less(total))
			l.store(o.Mul(share), h.q[e*h.stride+i:])
		}
	}
	l.finish()
}

// logits: t = start + q . k for the queries i ... and the keys j ... of the tile.
func (l x1) logits(h *head, i, j int, start float64x1, t []rowx1) {
	for e := 0; e < h.width; e += 2 {
		q0, q1 := h.pair(h.q, e)
		k0, k1 := h.pair(h.k, e)
		query0, query1 := l.load(q0[i:]), l.load(q1[i:])
		k0, k1 = k0[j:][:len(t)], k1[j:][:len(t)]
		for m := range t {
			if e > 0 {
				start = l.load(t[m][:])
			}
			l.store(query1.MulAdd(l.set(k1[m]), query0.MulAdd(l.set(k0[m]), start)), t[m][:])
		}
	}
}

// clamp: t = max(t - shift, leastExponent).
func (l x1) clamp(shift float64x1, t []rowx1) {
	least := l.set(leastExponent)
	for m := range t {
		l.store(l.load(t[m][:]).Sub(shift).Max(least), t[m][:])
	}
}

// hide writes fill where a query does not see a key: no edge, or outside of the band.
func (l x1) hide(h *head, i, j int, fill float64x1, t []rowx1) {
	zero, one := l.zero(), l.whole(1)
	reach := l.whole(h.reach)
	square := reach.Mul(reach)
	distance := l.iota().Add(l.whole(i - j))
	for m := range t {
		edges := l.loadFirst(h.knm[(j+m)*h.n+i : (j+m)*h.n+min(i+lanesx1, h.n)])
		seen := edges.NotEqual(zero).And(distance.Mul(distance).LessEqual(square))
		distance = distance.Sub(one)
		l.store(l.load(t[m][:]).IfElse(seen, fill), t[m][:])
	}
}

// accumulate adds the keys j ... of the tile to the sums: for each two features the weights, and the weighted
// values of the one and of the other.
func (l x1) accumulate(h *head, j int, t, sums []rowx1) {
	for e := 0; e < h.width; e += 2 {
		v0, v1 := h.pair(h.v, e)
		v0, v1 = v0[j:][:len(t)], v1[j:][:len(t)]
		s := sums[e/2*3:][:3]
		total, o0, o1 := l.load(s[0][:]), l.load(s[1][:]), l.load(s[2][:])
		for m := range t {
			weight := l.load(t[m][:])
			total = total.Add(weight)
			o0 = weight.MulAdd(l.set(v0[m]), o0)
			o1 = weight.MulAdd(l.set(v1[m]), o1)
		}
		l.store(total, s[0][:])
		l.store(o0, s[1][:])
		l.store(o1, s[2][:])
	}
}

// largestLogit is the largest logit that each query of block i sees; 0 where it sees none.
func (l x1) largestLogit(h *head, i, low, high int, tile []rowx1) float64x1 {
	none := l.set(math.Inf(-1))
	largest := none
	for j := low; j < high; j += tileKeys {
		t := tile[:min(len(tile), high-j)]
		l.logits(h, i, j, l.zero(), t)
		if h.masked {
			l.hide(h, i, j, none, t)
		}
		l.finish()
		for own := max(i, j); own < min(i+lanesx1, j+len(t)); own++ {
			t[own-j][own-i] = math.Inf(-1)
		}
		for m := range t {
			largest = l.load(t[m][:]).Max(largest)
		}
	}
	return largest.Masked(largest.NotEqual(none))
}

// unitOutputs: unit column i = O / (|O| + normFloor), O = y W_O; y and unit are (model, stride).
func (l x1) unitOutputs(model, stride int, y, wo, unit []float64) {
	for i := 0; i < stride; i += lanesx1 {
		squares := l.zero()
		for e := 0; e < model; e++ {
			sum := l.zero()
			for r, w := 0, e; r < model; r, w = r+1, w+model {
				sum = l.load(y[r*stride+i:]).MulAdd(l.set(wo[w]), sum)
			}
			squares = sum.MulAdd(sum, squares)
			l.store(sum, unit[e*stride+i:])
		}
		inverse := l.set(1).Div(squares.Sqrt().Add(l.set(normFloor)))
		for e := 0; e < model; e++ {
			l.store(l.load(unit[e*stride+i:]).Mul(inverse), unit[e*stride+i:])
		}
	}
	l.finish()
}

// scaleRows: out_ij = source_ij (base + u_i . u_j) for the columns low ... high - 1 of four rows from first;
// last stands in for those behind it. Symmetric to the last bit, since products commute and all sums run in
// one order.
func (l x1) scaleRows(g gram, first, last, low, high int, source, out []float64) {
	row0, row1 := first*g.n, min(first+1, last)*g.n
	row2, row3 := min(first+2, last)*g.n, min(first+3, last)*g.n
	start := l.set(g.base)
	own := l.rows(g.room)[:4*g.model]
	for e := range own {
		l.store(l.set(g.u[e/4*g.stride+min(first+e%4, last)]), own[e][:])
	}
	for j := low; j < high; j += lanesx1 {
		factor0, factor1, factor2, factor3 := start, start, start, start
		at := j
		for e := 3; e < len(own); e += 4 {
			column := l.load(g.u[at:])
			factor0 = column.MulAdd(l.load(own[e-3][:]), factor0)
			factor1 = column.MulAdd(l.load(own[e-2][:]), factor1)
			factor2 = column.MulAdd(l.load(own[e-1][:]), factor2)
			factor3 = column.MulAdd(l.load(own[e][:]), factor3)
			at += g.stride
		}
		end := min(j+lanesx1, high)
		factor0 = factor0.Mul(l.loadFirst(source[row0+j : row0+end]))
		factor1 = factor1.Mul(l.loadFirst(source[row1+j : row1+end]))
		factor2 = factor2.Mul(l.loadFirst(source[row2+j : row2+end]))
		factor3 = factor3.Mul(l.loadFirst(source[row3+j : row3+end]))
		l.storeFirst(factor0, out[row0+j:row0+end])
		l.storeFirst(factor1, out[row1+j:row1+end])
		l.storeFirst(factor2, out[row2+j:row2+end])
		l.storeFirst(factor3, out[row3+j:row3+end])
	}
	l.finish()
}
