//go:build !(goexperiment.simd && amd64)

package kernel

// available lists the vector sets of this processor, fastest first.
func available() []kernels { return []kernels{x1{}} }
