// Computes CRC32C by the processor's instruction (SSE 4.2), else by slicing, where eight tables take eight bytes a
// round (Kounavis and Berry, "Novel Table Lookup-Based Algorithms", 2008).
#include <pthread.h>

#include "base/stop.h"
#include "io/file.h"

static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_fill(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
        tables[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const unsigned char *p, size_t n) {
    uint64_t c = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; n > 0; p++, n--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return ~(uint32_t)c;
}
#endif

uint32_t mz_crc32c(uint32_t crc, const void *bytes, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(crc, bytes, n);
#endif
    return mz_crc32c_by_tables(crc, bytes, n);
}

uint32_t mz_crc32c_by_tables(uint32_t crc, const void *bytes, size_t n) {
    pthread_once(&tables_once, tables_fill);
    const unsigned char *p = bytes;
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t lo = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = tables[7][lo & 0xFF] ^ tables[6][lo >> 8 & 0xFF] ^ tables[5][lo >> 16 & 0xFF] ^ tables[4][lo >> 24] ^
              tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
    }
    for (; n > 0; p++, n--)
        crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

enum { PIECE = 16 << 20 };

mezzo_status mz_file_crc32c(const char *path, uint32_t *crc, uint64_t *size) {
    mz_map map;
    MEZZO_TRY(mz_map_open(path, &map));
    mezzo_status status = MEZZO_OK;
    *crc = 0;
    for (size_t at = 0; at < map.size && status == MEZZO_OK; at += PIECE) {
        *crc = mz_crc32c(*crc, map.data + at, map.size - at < PIECE ? map.size - at : PIECE);
        status = map.size > PIECE ? mz_stop_check(path) : MEZZO_OK;
    }
    if (size)
        *size = map.size;
    mz_map_close(&map);
    return status;
}
