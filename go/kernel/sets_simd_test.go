//go:build goexperiment.simd && amd64

package kernel

// exp2OfSets is 2^t, in place, of each set of vectors that this processor has.
func exp2OfSets() map[string]func(t []float64) {
	sets := map[string]func(t []float64){}
	for _, set := range available() {
		switch l := set.(type) {
		case x1:
			sets[l.name()] = func(t []float64) { l.exp2(l.rows(t)) }
		case x4:
			sets[l.name()] = func(t []float64) { l.exp2(l.rows(t)) }
		case x8:
			sets[l.name()] = func(t []float64) { l.exp2(l.rows(t)) }
		}
	}
	return sets
}
