// Compiles matmul_split.c for processors that round to BF16 in one instruction. Its parts differ where FP16's first
// part is rounded to nearest instead of truncated; their sum is the whole value either way.
#define MZ_ISA_AVX512 1
#include "backend/cpu/kernels/matmul_split.c"
