// The backward kernel for test_attention_amx_emulated.c, which says what is emulated.
#if defined(MZ_AMX_EMULATE)
#define mz_attention_bwd__amx mz_attention_bwd__emulated
#include "backend/cpu/kernels/amx_attention_bwd.c"
#else
typedef int nothing_to_emulate;
#endif
