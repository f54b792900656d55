//go:build goexperiment.simd && amd64

package kernel

import (
	"simd/archsimd"
	"unsafe"
)

// x4 is the set of AVX2 vectors with fused multiply-add.
type x4 struct{}

const (
	lanesx4 = 4
	fullx4  = 1<<lanesx4 - 1
)

type (
	float64x4 = archsimd.Float64x4
	mask64x4  = archsimd.Mask64x4
)

func (x4) name() string { return "avx2" }

// finish keeps later SSE instructions, of whatever language, from waiting for the upper halves of registers.
func (x4) finish() { archsimd.ClearAVXUpperBits() }

func (x4) set(x float64) float64x4             { return archsimd.BroadcastFloat64x4(x) }
func (x4) integer(x int64) archsimd.Int64x4    { return archsimd.BroadcastInt64x4(x) }
func (x4) load(s []float64) float64x4          { return archsimd.LoadFloat64x4(s) }
func (x4) store(x float64x4, s []float64)      { x.Store(s) }
func (x4) storeFirst(x float64x4, s []float64) { x.StorePart(s) }
func (x4) fused(x, y, z float64x4) float64x4   { return x.MulAdd(y, z) }
func (x4) zero() float64x4                     { return float64x4{} }
func (x4) iota() float64x4                     { return archsimd.LoadFloat64x4(countUp[:]) }

// sum4 adds neighbours, then the halves that hold sums of the same vector.
func (x4) sum4(a, b, c, d float64x4, s []float64) {
	ab, cd := a.ConcatAddPairsGrouped(b), c.ConcatAddPairsGrouped(d)
	ab.ConcatPermute128Scalars(0, 2, cd).Add(ab.ConcatPermute128Scalars(1, 3, cd)).Store(s)
}

func (l x4) sum(x float64x4) float64 {
	var s [lanesx4]float64
	x.Store(s[:])
	l.finish()
	return (s[0] + s[1]) + (s[2] + s[3])
}

func (l x4) largest(x float64x4) float64 {
	var s [lanesx4]float64
	x.Store(s[:])
	l.finish()
	return max(s[0], s[1], s[2], s[3])
}

// mirrored compares squares of four with their transposed counterparts.
func (l x4) mirrored(n int, knm []float64) bool {
	bits := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(knm))), n*n)
	var differs archsimd.Int64x4
	whole := n / lanesx4 * lanesx4
	for i := 0; i < whole; i += lanesx4 {
		for j := 0; j <= i; j += lanesx4 {
			a, b := bits[i*n+j:], bits[j*n+i:]
			b0, b1 := archsimd.LoadInt64x4(b), archsimd.LoadInt64x4(b[n:])
			b2, b3 := archsimd.LoadInt64x4(b[2*n:]), archsimd.LoadInt64x4(b[3*n:])
			even01, odd01 := b0.InterleaveLoGrouped(b1), b0.InterleaveHiGrouped(b1)
			even23, odd23 := b2.InterleaveLoGrouped(b3), b2.InterleaveHiGrouped(b3)
			d0 := archsimd.LoadInt64x4(a).Xor(even01.ConcatPermute128Scalars(0, 2, even23))
			d1 := archsimd.LoadInt64x4(a[n:]).Xor(odd01.ConcatPermute128Scalars(0, 2, odd23))
			d2 := archsimd.LoadInt64x4(a[2*n:]).Xor(even01.ConcatPermute128Scalars(1, 3, even23))
			d3 := archsimd.LoadInt64x4(a[3*n:]).Xor(odd01.ConcatPermute128Scalars(1, 3, odd23))
			differs = differs.Or(d0.Or(d1)).Or(d2.Or(d3))
		}
	}
	same := differs.IsZero()
	l.finish()
	for i := whole; i < n; i++ {
		same = same && mirroredRow(n, knm, i, 0, i) == 0
	}
	return same
}

// halves adds the two halves of a vector.
func halves(x float64x8) float64x4 { return x.GetLo().Add(x.GetHi()) }

// x8 is the set of AVX-512 vectors.
type x8 struct{}

const (
	lanesx8 = 8
	fullx8  = 1<<lanesx8 - 1
)

type (
	float64x8 = archsimd.Float64x8
	mask64x8  = archsimd.Mask64x8
)

func (x8) name() string { return "avx512" }
func (x8) finish()      { archsimd.ClearAVXUpperBits() }

func (x8) set(x float64) float64x8             { return archsimd.BroadcastFloat64x8(x) }
func (x8) integer(x int64) archsimd.Int64x8    { return archsimd.BroadcastInt64x8(x) }
func (x8) load(s []float64) float64x8          { return archsimd.LoadFloat64x8(s) }
func (x8) store(x float64x8, s []float64)      { x.Store(s) }
func (x8) storeFirst(x float64x8, s []float64) { x.StorePart(s) }
func (x8) fused(x, y, z float64x8) float64x8   { return x.MulAdd(y, z) }
func (x8) zero() float64x8                     { return float64x8{} }
func (x8) iota() float64x8                     { return archsimd.LoadFloat64x8(countUp[:]) }
func (x8) sum(x float64x8) float64             { return x4{}.sum(halves(x)) }
func (x8) largest(x float64x8) float64         { return x4{}.largest(x.GetLo().Max(x.GetHi())) }

func (x8) sum4(a, b, c, d float64x8, s []float64) {
	x4{}.sum4(halves(a), halves(b), halves(c), halves(d), s)
}

func (x8) mirrored(n int, knm []float64) bool { return x4{}.mirrored(n, knm) }

var countUp = [lanesx8]float64{0, 1, 2, 3, 4, 5, 6, 7}

// available lists the vector sets of this processor, fastest first.
func available() []kernels {
	sets := []kernels{x1{}}
	if archsimd.X86.AVX2() && archsimd.X86.FMA() {
		sets = append([]kernels{x4{}}, sets...)
		if archsimd.X86.AVX512() {
			sets = append([]kernels{x8{}}, sets...)
		}
	}
	return sets
}
