// Package kernel is the mathematics of networks of phase oscillators on slices of float64: modulation of a
// coupling matrix by attention over the phases, and the Kuramoto-Sakaguchi integrators that use it.
//
// Matrices are row-major. Nothing here keeps a slice, writes to an input or holds a state; the scratch that a
// function needs is given by its caller, who learns its size from the function beside it.
package kernel

import (
	"math"
	"syscall"
)

// Status tells how a call ended; the numbers are those of enum spo_status.
type Status int32

// The statuses.
const (
	OK                 Status = iota
	InvalidArgument           // a number out of its range, or a slice that must not be nil
	OutOfMemory               // nothing was written
	NonfiniteCoupling         // NaN or infinity in K
	AsymmetricCoupling        // |K_ij - K_ji| > 1e-12 (1 + min(|K_ij|, |K_ji|))
	NonzeroDiagonal           // |K_ii| > 1e-12
	NonfinitePhase            // NaN or infinity in theta
	NonfiniteState            // a step gave NaN or infinity: the state is the last good one
)

// LargestSize is the largest number of oscillators or width of a model: squares and products stay in range.
const LargestSize = 1 << 28

const _ int = LargestSize << 34 // sizes of arrays need 64 bits

// Pad is the number of oscillators to which arrays in a scratch are rounded up, so that loops over them have
// no remainder.
const Pad = lanesLimit

const lanesLimit = 8

func padded(n int) int { return (n + Pad - 1) / Pad * Pad }

// kernels is what one set of vectors computes (vector_x1.go tells what each function means). Slices are of
// padded length except for K and its rows.
type kernels interface {
	name() string
	sincos(x, sine, cosine []float64)
	wrap(y, wrapped []float64) bool
	combine(theta, slopes, weights []float64, dt float64, out []float64)
	pull(n int, knm, s, c, p, q []float64)
	closeDrift(d driftConstants, p, q, s, c, omega, f []float64)
	mirrored(n int, knm []float64) bool
	survey(knm []float64) (zeros int, finite bool)
	harmonics(model, stride int, x []float64)
	project(h head, model int, scale float64, x, wq, wk, wv []float64) float64
	attend(h head)
	unitOutputs(model, stride int, y, wo, unit []float64)
	scaleRows(g gram, first, last, low, high int, source, out []float64)
}

var inUse = choose()

// choose takes the fastest set of vectors, or the one that the environment names if this processor has it.
func choose() kernels {
	sets := available()
	wish, _ := syscall.Getenv("SPO_FAST_INSTRUCTION_SET")
	for _, set := range sets {
		if set.name() == wish {
			return set
		}
	}
	return sets[0]
}

// rounder is 1.5 2^52: added to |x| < 2^51 it leaves round(x) in the low bits of the significand.
const rounder = 0x1.8p52

const twoPi = 2 * math.Pi

// pi / 2 in parts of 53 bits. A fused product of the first with |k| < 2^41 leaves no error.
const (
	halfPi1 = 0x1.921fb54442d18p0
	halfPi2 = 0x1.1a62633145c07p-54
	halfPi3 = -0x1.f1976b7ed8fbcp-110
)

const (
	sincosLimit = 0x1p40 // beyond it package math takes over, right to a unit of 1, not of the result
	wrapLimit   = 0x1p30 // up to here the number of turns is exact to the last one, which wrap mends
)

// sincosConstants are what a vector of sines and cosines is made from; the names below are places in it.
var sincosConstants = [...]float64{
	sinCoefficients[0], sinCoefficients[1], sinCoefficients[2], sinCoefficients[3], sinCoefficients[4],
	sinCoefficients[5], cosCoefficients[0], cosCoefficients[1], cosCoefficients[2], cosCoefficients[3],
	cosCoefficients[4], cosCoefficients[5], halfPi1, halfPi2, halfPi3, 2 / math.Pi, rounder,
	sincosLimit * sincosLimit, 1, 0.5, math.Float64frombits(1), math.Float64frombits(2),
}

const (
	ofSine      = 0
	ofCosine    = 6
	ofHalfPi    = 12
	ofQuarters  = 15
	ofRounder   = 16
	ofLimit     = 17
	ofOne       = 18
	ofHalf      = 19
	ofFirstBit  = 20
	ofSecondBit = 21
)

func sincosFar(x, sine, cosine []float64) {
	for i, phase := range x {
		if !(math.Abs(phase) <= sincosLimit) {
			sine[i], cosine[i] = math.Sincos(phase)
		}
	}
}

func wrapFar(y, wrapped []float64) {
	for i, phase := range y {
		wrapped[i] = wrapOne(phase)
	}
}

// wrapOne is x modulo 2 pi in [0, 2 pi), NaN for what is not finite; a result that rounds to 2 pi becomes 0.
func wrapOne(x float64) float64 {
	if x >= 0 && x < twoPi {
		return x
	}
	y := math.Mod(x, twoPi)
	if y < 0 {
		y += twoPi
	}
	if y == twoPi {
		return 0
	}
	return y
}

func allFinite(x []float64) bool {
	excess := 0.0
	for _, v := range x {
		excess += v - v
	}
	return excess == 0
}

// cutter hands out the parts of a scratch one after the other.
type cutter []float64

func (c *cutter) cut(n int) []float64 {
	part := (*c)[:n:n]
	*c = (*c)[n:]
	return part
}
