//go:build !(arm64 || loong64 || ppc64 || ppc64le || riscv64 || s390x)

package kernel

// mulAdd is x y + z with two roundings: math.FMA may be a software routine here.
func mulAdd(x, y, z float64) float64 { return float64(x*y) + z }
