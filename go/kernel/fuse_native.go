//go:build arm64 || loong64 || ppc64 || ppc64le || riscv64 || s390x

package kernel

import "math"

// mulAdd is x y + z with one rounding, which is one instruction here.
func mulAdd(x, y, z float64) float64 { return math.FMA(x, y, z) }
