// Builds the ops of element.def.
#include "graph/build.h"

#define PLAIN(name)                                                                                                    \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value x) {                                                          \
        return mz_build_unary(g, MZ_OP_##name, x, (mz_attrs){0});                                                      \
    }
#define FACTOR(name)                                                                                                   \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value x, float factor) {                                            \
        return mz_build_unary(g, MZ_OP_##name, x, (mz_attrs){.alpha = factor});                                        \
    }
#define RANGE(name)                                                                                                    \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value x, float low, float high) {                                   \
        if (!mz_build_broken(g) && !(low <= high))                                                                     \
            return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, #name ": to %g … %g", (double)low, (double)high));    \
        return mz_build_unary(g, MZ_OP_##name, x, (mz_attrs){.low = low, .high = high});                               \
    }
#define UNARY(name, told, ...)      told(name)
#define UNARY_OWN(name, told, ...)  told(name)
#define UNARY_FLAT(name, told, ...) told(name)
#define BINARY(name, ...)                                                                                              \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value a, mezzo_value b) {                                           \
        return mz_build_binary(g, MZ_OP_##name, a, b, (mz_attrs){0});                                                  \
    }
#define BINARY_OWN(name, ...) BINARY(name)
#define COMPARE(name, ...)    BINARY(name)
#define TERNARY(name, ...)                                                                                             \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value c, mezzo_value a, mezzo_value b) {                            \
        mz_node node = MZ_BUILD_NODE(g, MZ_OP_##name, a, b, c);                                                        \
        return mz_build_finish(g, &node);                                                                              \
    }
#include "graph/element.def"
