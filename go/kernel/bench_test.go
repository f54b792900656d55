package kernel

import (
	"fmt"
	"math/rand"
	"testing"
)

func BenchmarkModulate(b *testing.B) {
	for _, l := range available() {
		for _, n := range []int{16, 64, 256} {
			rng := rand.New(rand.NewSource(1))
			m, knm, theta, out := parameters(rng, 4, 8), coupling(rng, n), randoms(rng, n, 0, 6), make([]float64, n*n)
			room := memory(m.Scratch(n))
			take := func(int) []float64 { return room }
			b.Run(fmt.Sprint(l.name(), "/", n), func(b *testing.B) {
				inUse = l
				b.ReportAllocs()
				for b.Loop() {
					m.Modulate(n, knm, theta, out, take)
				}
			})
		}
	}
	inUse = choose()
}
