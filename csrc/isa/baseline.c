/* The instruction set that every processor of the architecture has: SSE2 on x86-64, NEON on AArch64. */
#define SPO_LANES 2
#include "all.h"

#if defined(__x86_64__)
const spo_kernels spo_kernels_baseline = SPO_TABLE("sse2");
#elif defined(__aarch64__)
const spo_kernels spo_kernels_baseline = SPO_TABLE("neon");
#else
const spo_kernels spo_kernels_baseline = SPO_TABLE("generic");
#endif
