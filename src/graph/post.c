// Holds the table of post-ops, and reads a node's list of them.
#include "graph/graph.h"

#define after(op, slot)  .joint = MZ_OUT(op, slot)
#define before(op, slot) .before = true, .joint = MZ_IN(op, slot)
#define MZ_OP_any        MZ_OP_COUNT
#define with(op, slot)   .with = MZ_IN(op, slot)
#define into(op, slot)   .into = MZ_OUT(op, slot)
#define keeps(op, slot)  .keeps = MZ_OUT(op, slot)
#define POST(of, called, does, ...)                                                                                    \
    [MZ_POST_##of##_##called] = {.op = MZ_OP_##of, .name = #called, .kind = MZ_POST_##does, __VA_ARGS__},
const mz_post_info mz_post_table[MZ_POST_COUNT] = {
#include "graph/post.def"
};

static bool is_act(const mz_post_info *p) {
    return p->kind >= MZ_POST_ACT && p->kind <= MZ_POST_GATE_DX;
}

static bool has_slot(uint32_t slots, int slot) {
    return slot == 0 || (slots >> slot & 1) != 0;
}

uint64_t mz_posts_of(mz_op op, const mz_attrs *attrs, uint32_t in, uint32_t out) {
    uint64_t posts = 0;
    bool acts = false; // a derivative's row stands before its activation's, which lacks an input
    for (mz_post post = 0; post < MZ_POST_COUNT; post++) {
        const mz_post_info *p = &mz_post_table[post];
        bool has = p->op == op && has_slot(in, p->with) && has_slot(out, p->into);
        if (is_act(p)) {
            const bool gate = p->kind == MZ_POST_GATE || p->kind == MZ_POST_GATE_DX;
            has = has && !acts && attrs->act != MZ_ACT_NONE && gate == (attrs->act == MZ_ACT_SWIGLU);
            acts = acts || has;
        }
        posts |= has ? MZ_POST_BIT(post) : 0;
    }
    return posts;
}

mz_post mz_post_find(mz_op op, mz_post_kind kind) {
    mz_post post = 0;
    while (post < MZ_POST_COUNT && (mz_post_table[post].op != op || mz_post_table[post].kind != kind))
        post++;
    return post;
}

int mz_act_out_slot(mz_op op) {
    const mz_post post = mz_post_find(op, MZ_POST_ACT_OUT);
    return post < MZ_POST_COUNT && mz_post_table[post].offered ? mz_post_table[post].into : -1;
}

const char *mz_post_name(mz_post post, const mz_attrs *attrs) {
    static const char *const acts[] = {"", "relu", "gelu", "gelu_tanh", "silu", "swiglu"};
    return is_act(&mz_post_table[post]) ? acts[attrs->act] : mz_post_table[post].name;
}

uint64_t mz_node_posts(const mz_node *n) {
    uint32_t in = 0, out = 0;
    for (int k = 0; k < n->n_in; k++)
        in |= n->in[k] >= 0 ? UINT32_C(1) << k : 0;
    for (int k = 0; k < n->n_out; k++)
        out |= n->out[k] >= 0 ? UINT32_C(1) << k : 0;
    return mz_posts_of(n->op, &n->attrs, in, out);
}
