// matmul_split.c once more, for processors that round to BF16 in one instruction: two to four times as fast, the same
// values but where FP16's first part is rounded to nearest instead of cut off: the sum of its parts is the whole value
// either way.
#define MZ_ISA_AVX512 1
#include "backend/cpu/kernels/matmul_split.c"
