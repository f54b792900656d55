//go:build !(goexperiment.simd && amd64)

package kernel

// exp2OfSets is 2^t, in place, of each set of vectors that this processor has.
func exp2OfSets() map[string]func(t []float64) {
	return map[string]func(t []float64){"scalar": func(t []float64) { x1{}.exp2(x1{}.rows(t)) }}
}
