// The shapes at which kernels are tested against the reference (src/study/measure/kernel_shapes.def has those that are
// timed). Odd and even, one, around vector and tile widths (8, 16, 32, 64), around the matmul driver's blocks, and
// large enough that a second thread works. 1, 7, 15, 17 and 50,257 stand in every dimension, but for attention's
// longest.
#ifndef MZ_SHAPES_H
#define MZ_SHAPES_H

// X(M, N, K): y [M, N] = x [M, K] · wᵀ, w [N, K]
#define MZ_MATMUL_SHAPES(X)                                                                                            \
    X(1, 1, 1)                                                                                                         \
    X(1, 17, 40)                                                                                                       \
    X(2, 3, 5)                                                                                                         \
    X(7, 33, 15)                                                                                                       \
    X(16, 16, 32)                                                                                                      \
    X(17, 31, 33)                                                                                                      \
    X(32, 64, 64)                                                                                                      \
    X(65, 50, 129)                                                                                                     \
    X(128, 96, 64)                                                                                                     \
    X(5, 24, 1030)                                                                                                     \
    X(3, 1100, 20)                                                                                                     \
    X(530, 20, 24)                                                                                                     \
    X(150, 130, 257)                                                                                                   \
    X(1, 7, 15)                                                                                                        \
    X(7, 15, 17)                                                                                                       \
    X(15, 17, 1)                                                                                                       \
    X(17, 1, 7)                                                                                                        \
    X(40, 70, 800)

// X(batch, M, N, K): y [batch, M, N] = a · b
#define MZ_BATCHED_SHAPES(X)                                                                                           \
    X(1, 1, 1, 1)                                                                                                      \
    X(1, 5, 7, 3)                                                                                                      \
    X(3, 16, 16, 32)                                                                                                   \
    X(2, 33, 18, 65)                                                                                                   \
    X(7, 15, 17, 1)                                                                                                    \
    X(15, 17, 1, 7)                                                                                                    \
    X(17, 1, 7, 15)                                                                                                    \
    X(6, 20, 48, 16)

// X(rows, width): normalisations and reductions along rows
#define MZ_ROW_SHAPES(X)                                                                                               \
    X(1, 1)                                                                                                            \
    X(3, 5)                                                                                                            \
    X(1, 64)                                                                                                           \
    X(7, 16)                                                                                                           \
    X(5, 33)                                                                                                           \
    X(17, 128)                                                                                                         \
    X(2, 1030)                                                                                                         \
    X(300, 7)                                                                                                          \
    X(15, 17)                                                                                                          \
    X(17, 15)                                                                                                          \
    X(1, 50257)                                                                                                        \
    X(50257, 1)                                                                                                        \
    X(130, 384)

// X(n): one element at a time
#define MZ_FLAT_SHAPES(X)                                                                                              \
    X(1)                                                                                                               \
    X(7)                                                                                                               \
    X(16)                                                                                                              \
    X(33)                                                                                                              \
    X(1000)                                                                                                            \
    X(15)                                                                                                              \
    X(17)                                                                                                              \
    X(50257)                                                                                                           \
    X(70001)

// X(B, T, H, Hkv, D)
#define MZ_ATTENTION_SHAPES(X)                                                                                         \
    X(1, 1, 1, 1, 1)                                                                                                   \
    X(1, 2, 1, 1, 4)                                                                                                   \
    X(2, 5, 3, 3, 8)                                                                                                   \
    X(1, 17, 2, 2, 16)                                                                                                 \
    X(2, 33, 4, 2, 20)                                                                                                 \
    X(1, 65, 2, 1, 32)                                                                                                 \
    X(2, 70, 4, 4, 64)                                                                                                 \
    X(1, 128, 2, 1, 80)                                                                                                \
    X(1, 256, 1, 1, 40)                                                                                                \
    X(1, 133, 1, 1, 33)                                                                                                \
    X(1, 300, 2, 1, 40)                                                                                                \
    X(1, 7, 1, 1, 15)                                                                                                  \
    X(7, 15, 1, 1, 17)                                                                                                 \
    X(1, 17, 15, 15, 7)                                                                                                \
    X(1, 15, 17, 17, 1)                                                                                                \
    X(2, 66, 2, 2, 128)

// X(tokens, V, C)
#define MZ_EMBEDDING_SHAPES(X)                                                                                         \
    X(1, 1, 1)                                                                                                         \
    X(5, 3, 7)                                                                                                         \
    X(64, 20, 33)                                                                                                      \
    X(300, 65, 128)                                                                                                    \
    X(3000, 700, 24)                                                                                                   \
    X(15, 17, 1)                                                                                                       \
    X(17, 50257, 7)                                                                                                    \
    X(50257, 7, 1)                                                                                                     \
    X(2500, 5, 35)

#endif
