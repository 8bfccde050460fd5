# The files under src/backend/cpu/kernels are compiled once per instruction-set level, so that one library serves every
# machine and picks at run time. MZ_ISA is the level's name (for symbol names), MZ_ISA_<LEVEL> is 1 (for #if):
#   NAME.c               every level of the target
#   avx512bf16_NAME.c    once, AVX-512 with BF16 dot products
#   amx_NAME.c           once, AMX tiles
#   neonbf16_NAME.c      once, NEON with BF16 dot products
# Result: cpu_kernel_objects.

set(avx2_flags -mavx2 -mfma -mf16c)
set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mavx2 -mprefer-vector-width=512)
set(avx512bf16_flags ${avx512_flags} -mavx512bf16)
set(amx_flags ${avx512bf16_flags} -mamx-tile -mamx-bf16)

file(GLOB kernels_every_level CONFIGURE_DEPENDS src/backend/cpu/kernels/*.c)
set(kernels_avx512bf16 ${kernels_every_level})
set(kernels_amx ${kernels_every_level})
set(kernels_neonbf16 ${kernels_every_level})
list(FILTER kernels_avx512bf16 INCLUDE REGEX "/kernels/avx512bf16_[^/]*$")
list(FILTER kernels_amx INCLUDE REGEX "/kernels/amx_[^/]*$")
list(FILTER kernels_neonbf16 INCLUDE REGEX "/kernels/neonbf16_[^/]*$")
list(FILTER kernels_every_level EXCLUDE REGEX "/kernels/(amx|avx512bf16|neonbf16)_[^/]*$")

set(cpu_kernel_objects "")

function(mezzo_cpu_kernels level sources)
    if(NOT sources)
        return()
    endif()
    string(TOUPPER ${level} level_upper)
    set(target mezzo_kernels_${level})
    add_library(${target} OBJECT ${sources})
    mezzo_flags(${target})
    if(NOT mezzo_sanitizers AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        target_compile_options(${target} PRIVATE -O3)
    endif()
    # Contraction only: -ffast-math would delete the NaN and infinity checks that mixed precision lives by.
    target_compile_options(${target} PRIVATE -ffp-contract=fast ${ARGN})
    target_compile_definitions(${target} PRIVATE MZ_ISA=${level} MZ_ISA_${level_upper}=1)
    target_include_directories(${target} PRIVATE include src)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_C)
    set(cpu_kernel_objects ${cpu_kernel_objects} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

mezzo_cpu_kernels(portable "${kernels_every_level}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    mezzo_cpu_kernels(avx2 "${kernels_every_level}" ${avx2_flags})
    mezzo_cpu_kernels(avx512 "${kernels_every_level}" ${avx512_flags})
    mezzo_cpu_kernels(avx512bf16 "${kernels_avx512bf16}" ${avx512bf16_flags})
    mezzo_cpu_kernels(amx "${kernels_amx}" ${amx_flags})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    mezzo_cpu_kernels(neon "${kernels_every_level}")
    mezzo_cpu_kernels(neonbf16 "${kernels_neonbf16}" -march=armv8.2-a+bf16)
endif()
