// Post-ops: the work of neighbouring nodes that an op's kernel does too (post.def).
#ifndef MZ_POST_H
#define MZ_POST_H

#include "graph/op.h"

typedef enum mz_post {
#define POST(op, name, ...) MZ_POST_##op##_##name,
#include "graph/post.def"
#undef POST
    MZ_POST_COUNT
} mz_post;

typedef enum mz_post_kind {
    MZ_POST_CAST,
    MZ_POST_ACT,
    MZ_POST_ACT_DX,
    MZ_POST_GATE,
    MZ_POST_GATE_DX,
    MZ_POST_ADD,
    MZ_POST_SUMS,
    MZ_POST_ACT_OUT,
    MZ_POST_STORE
} mz_post_kind;

// A row of post.def. with, into and keeps are 0 where the row does not name them: slot 0 is none of these.
typedef struct mz_post_info {
    mz_op op; // MZ_OP_COUNT: any that reads and writes mixed formats
    const char *name;
    mz_post_kind kind;
    bool before;
    int joint;       // after: an output; before: an input
    int with;        // an input
    int into, keeps; // outputs
    bool rounds, alike, fp32, low, unscaled, yields, one_scale, derived, backward, offered;
} mz_post_info;
extern const mz_post_info mz_post_table[MZ_POST_COUNT];

// A set of post-ops has a bit for each.
#define MZ_POST_BIT(post) (UINT64_C(1) << (post))

// Returns the list of post-ops of a node or call of `op` as a set: its order is that of the rows. Bit i of `in` and
// `out` says that slot i is present.
uint64_t mz_posts_of(mz_op op, const mz_attrs *attrs, uint32_t in, uint32_t out);
// Returns the op's post-op of a kind; MZ_POST_COUNT: it has none.
mz_post mz_post_find(mz_op op, mz_post_kind kind);
// Returns the output in which the op's offered act_out writes forward's numbers again; -1: the op has none.
int mz_act_out_slot(mz_op op);
// What explain calls a post-op: an activation by its own name.
const char *mz_post_name(mz_post post, const mz_attrs *attrs);

#endif
