package kernel

import "math"

// x1 is the set of vectors of one double, for every processor. The kernels on it (vector_x1.go) use no more
// than the methods below, which float64x1, int64x1 and mask64x1 share with the vector types of simd/archsimd:
// the kernels on longer vectors are copies of the same text.
type x1 struct{}

const (
	lanesx1 = 1
	fullx1  = 1<<lanesx1 - 1 // a mask with all lanes set, in bits
)

type (
	float64x1 float64
	int64x1   int64
	mask64x1  bool
)

func (x1) name() string { return "scalar" }

// finish ends a stretch of vector instructions.
func (x1) finish() {}

func (x1) set(x float64) float64x1             { return float64x1(x) }
func (x1) load(s []float64) float64x1          { return float64x1(s[0]) }
func (x1) store(x float64x1, s []float64)      { s[0] = float64(x) }
func (x1) storeFirst(x float64x1, s []float64) { s[0] = float64(x) }
func (x1) iota() float64x1                     { return 0 }
func (x1) zero() float64x1                     { return 0 }

// sum ends a stretch of vector instructions.
func (x1) sum(x float64x1) float64 { return float64(x) }

// largest ends a stretch of vector instructions.
func (x1) largest(x float64x1) float64 { return float64(x) }

// sum4 writes the four sums over the lanes of a, b, c, d.
func (x1) sum4(a, b, c, d float64x1, s []float64) {
	s[0], s[1], s[2], s[3] = float64(a), float64(b), float64(c), float64(d)
}

// fused is x y + z with one rounding, in hardware or not: argument reductions need it.
func (x1) fused(x, y, z float64x1) float64x1 {
	return float64x1(math.FMA(float64(x), float64(y), float64(z)))
}

// A conversion keeps the compiler from contracting a product with a sum.

func (x float64x1) Add(y float64x1) float64x1 { return float64x1(x + y) }
func (x float64x1) Sub(y float64x1) float64x1 { return float64x1(x - y) }
func (x float64x1) Mul(y float64x1) float64x1 { return float64x1(x * y) }
func (x float64x1) Div(y float64x1) float64x1 { return float64x1(x / y) }
func (x float64x1) Sqrt() float64x1           { return float64x1(math.Sqrt(float64(x))) }

func (x float64x1) MulAdd(y, z float64x1) float64x1 {
	return float64x1(mulAdd(float64(x), float64(y), float64(z)))
}

// Max is y where either is NaN.
func (x float64x1) Max(y float64x1) float64x1 {
	if x > y {
		return x
	}
	return y
}

func (x float64x1) Less(y float64x1) mask64x1      { return x < y }
func (x float64x1) LessEqual(y float64x1) mask64x1 { return x <= y }
func (x float64x1) Equal(y float64x1) mask64x1     { return x == y }
func (x float64x1) NotEqual(y float64x1) mask64x1  { return x != y }

// Masked is x where the mask is set, else +0.
func (x float64x1) Masked(m mask64x1) float64x1 { return x.IfElse(m, 0) }

// IfElse is x where the mask is set, else y.
func (x float64x1) IfElse(m mask64x1, y float64x1) float64x1 {
	if m {
		return x
	}
	return y
}

func (m mask64x1) And(o mask64x1) mask64x1 { return m && o }

// ToBits has one bit a lane.
func (m mask64x1) ToBits() uint8 {
	if m {
		return 1
	}
	return 0
}

func (x float64x1) AsInt64x1() int64x1          { return int64x1(math.Float64bits(float64(x))) }
func (x int64x1) AsFloat64x1() float64x1        { return float64x1(math.Float64frombits(uint64(x))) }
func (x int64x1) Add(y int64x1) int64x1         { return x + y }
func (x int64x1) And(y int64x1) int64x1         { return x & y }
func (x int64x1) Xor(y int64x1) int64x1         { return x ^ y }
func (x int64x1) NotEqual(y int64x1) mask64x1   { return x != y }
func (x int64x1) ShiftAllLeft(n uint64) int64x1 { return x << n }
func (x1) integer(x int64) int64x1              { return int64x1(x) }
