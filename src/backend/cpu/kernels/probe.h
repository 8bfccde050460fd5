// Declares short measurements and trials that isa.c runs once per process.
#ifndef MZ_CPU_PROBE_H
#define MZ_CPU_PROBE_H

#include <stdbool.h>
#include <stddef.h>

// Measures the multiply-adds per second of one core, by `rounds` rounds of a dozen or so independent instructions.
double mz_probe_fma__portable(int rounds);
// Copies whole vectors past the caches where the level can: a stored line is not read first. Both are 64-byte aligned,
// and bytes is a multiple of 64.
void mz_probe_stream__portable(void *dst, const void *src, size_t bytes);
#if defined(__x86_64__)
void mz_probe_stream__avx2(void *dst, const void *src, size_t bytes);
void mz_probe_stream__avx512(void *dst, const void *src, size_t bytes);
double mz_probe_fma__avx2(int rounds);
double mz_probe_fma__avx512(int rounds);
double mz_probe_bf16_dot(int rounds); // vdpbf16ps; kernels/avx512bf16_probe.c
double mz_probe_amx(int rounds);      // tdpbf16ps; kernels/amx_probe.c
// Multiplies one pair of tiles of small integers; returns true when every sum is exact. It raises SIGILL where tiles
// cannot run.
bool mz_probe_amx_result(void);
#elif defined(__aarch64__)
void mz_probe_stream__neon(void *dst, const void *src, size_t bytes);
double mz_probe_fma__neon(int rounds);
double mz_probe_bf16_dot(int rounds); // bfdot; kernels/neonbf16_probe.c
#endif

#endif
