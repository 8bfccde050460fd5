// Compiles matmul_split.c for processors that round to BF16 in one instruction. Its values differ where FP16's first
// term is rounded to nearest instead of cut off; the sum of the terms is the whole value either way.
#define MZ_ISA_AVX512 1
#include "backend/cpu/kernels/matmul_split.c"
