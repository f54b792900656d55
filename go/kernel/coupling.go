package kernel

import "math"

// symmetryTolerance is the difference, absolute and relative, up to which K_ij and K_ji count as equal.
const symmetryTolerance = 1e-12

// traits is what an acceptable coupling matrix promises.
type traits struct {
	exactlySymmetric bool
	symmetricPattern bool // an edge is one in both directions
	allEdges         bool // no entry off the diagonal is zero
}

func unequal(a, b float64) bool {
	return !(math.Abs(a-b) <= symmetryTolerance*(1+min(math.Abs(a), math.Abs(b))))
}

// scan tells the traits of K (n, n), or which promise it breaks.
func scan(n int, knm []float64) (traits, Status) {
	zeros, finite := inUse.survey(knm[:n*n])
	if !finite {
		return traits{}, NonfiniteCoupling
	}
	found := traits{exactlySymmetric: true, symmetricPattern: true}
	if !inUse.mirrored(n, knm) {
		var status Status
		if found, status = scanPairs(n, knm); status != OK {
			return traits{}, status
		}
	}
	for i := range n {
		k := knm[i*n+i]
		if math.Abs(k) > symmetryTolerance {
			return traits{}, NonzeroDiagonal
		}
		if k == 0 {
			zeros--
		}
	}
	found.allEdges = zeros == 0
	return found, OK
}

// tile is the side of the squares in which a matrix is walked along rows and columns at once.
const tile = 8

// mirrored tells whether K equals its transpose bit for bit.
func (x1) mirrored(n int, knm []float64) bool {
	differs := uint64(0)
	for top := 0; top < n; top += tile {
		for left := 0; left <= top; left += tile {
			for i := top; i < min(top+tile, n); i++ {
				differs |= mirroredRow(n, knm, i, left, min(left+tile, i))
			}
		}
	}
	return differs == 0
}

// mirroredRow is 0 if the columns low ... high - 1 of row i are those rows of column i.
func mirroredRow(n int, knm []float64, i, low, high int) uint64 {
	differs := uint64(0)
	for j := low; j < high; j++ {
		differs |= math.Float64bits(knm[i*n+j]) ^ math.Float64bits(knm[j*n+i])
	}
	return differs
}

// scanPairs looks at a matrix that is not its own mirror image, pair by pair.
func scanPairs(n int, knm []float64) (traits, Status) {
	found := traits{exactlySymmetric: true, symmetricPattern: true}
	for i := range n {
		for j := range i {
			a, b := knm[i*n+j], knm[j*n+i]
			if unequal(a, b) {
				return found, AsymmetricCoupling
			}
			found.exactlySymmetric = found.exactlySymmetric && a == b
			found.symmetricPattern = found.symmetricPattern && (a == 0) == (b == 0)
		}
	}
	return found, OK
}

// mixWithTranspose: out = (1 - weight) K + weight K^T for weight 1/2 (the symmetric part) or 1.
func mixWithTranspose(n int, knm []float64, weight float64, out []float64) {
	keep := 1 - weight
	for top := 0; top < n; top += tile {
		for left := 0; left < n; left += tile {
			for i := top; i < min(top+tile, n); i++ {
				for j := left; j < min(left+tile, n); j++ {
					out[i*n+j] = float64(keep*knm[i*n+j]) + float64(weight*knm[j*n+i])
				}
			}
		}
	}
}
