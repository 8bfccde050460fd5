// Packing: rows of several short records. Each record lies in one row, once; a row is known by its number alone; and a
// model's loss and gradients are those of a record in each row.
// Seen to fail with: a mask of attention left out; positions that go on from one record to the next; the first target
// of a packed record left out; the next block's rows counted from 0.
#include "tiny_run.h"

#include "session/session.h"
#include "task/instructions.h"
#include "task/pack.h"

// --- rows ----------------------------------------------------------------------------------------------------------
static int64_t size_of(const void *user, uint64_t piece) {
    const int64_t *sizes = user;
    return sizes[piece];
}

TEST(test_first_row_with_room) {
    static const int64_t sizes[] = {6, 7, 3, 0, 10, 2, 1, 2};
    static const struct {
        size_t n;
        mz_packed pieces[4];
    } rows[] = {{3, {{0, 0}, {2, 6}, {6, 9}}}, {2, {{1, 0}, {5, 7}}}, {1, {{4, 0}}}, {1, {{7, 0}}}, {0, {{0, 0}}}};
    mz_packer *p;
    mz_packed pieces[MZ_PACK_BLOCK];
    size_t n;
    uint64_t all, positions;
    must(mz_packer_create(size_of, sizes, MZ_COUNT(sizes), 10, &p));
    for (size_t r = MZ_COUNT(rows); r-- > 0;) { // in any order
        must(mz_packer_row(p, r, pieces, &n));
        assert_int_equal(n, rows[r].n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(pieces[i].piece, rows[r].pieces[i].piece);
            assert_int_equal(pieces[i].column, rows[r].pieces[i].column);
        }
    }
    must(mz_packer_count(p, UINT64_MAX, &all, &positions));
    assert_int_equal(all, 4);
    assert_int_equal(positions, 31);
    mz_packer_free(p);
}

// Several blocks, and no end: sizes 20 to 400 in rows of 1,024, by a rule.
static int64_t some_size(const void *user, uint64_t piece) {
    (void)user;
    return 20 + (int64_t)((piece * 2654435761u >> 7) % 381);
}

TEST(test_every_piece_lies_in_one_row) {
    enum { PIECES = 5 * MZ_PACK_BLOCK };
    mz_packer *forward, *alone;
    static mz_packed pieces[MZ_PACK_BLOCK], again[MZ_PACK_BLOCK];
    bool seen[PIECES] = {false};
    size_t n, m;
    uint64_t rows, positions;
    must(mz_packer_create(some_size, NULL, UINT64_MAX, 1024, &forward));
    must(mz_packer_count(forward, PIECES, &rows, &positions));
    assert_true((double)positions > 0.95 * 1024 * (double)rows);
    for (uint64_t r = 0; r < rows; r++) {
        int64_t end = 0;
        must(mz_packer_row(forward, r, pieces, &n));
        for (size_t i = 0; i < n; i++) {
            assert_true(pieces[i].piece < PIECES && !seen[pieces[i].piece]);
            seen[pieces[i].piece] = true;
            assert_int_equal(pieces[i].column, end);
            end += some_size(NULL, pieces[i].piece);
        }
        assert_true(n > 0 && end <= 1024);
        if (r % 97 != 0)
            continue;
        must(mz_packer_create(some_size, NULL, UINT64_MAX, 1024, &alone)); // as a run that goes on there
        must(mz_packer_row(alone, r, again, &m));
        assert_int_equal(n, m);
        assert_memory_equal(pieces, again, n * sizeof *pieces);
        mz_packer_free(alone);
    }
    for (size_t i = 0; i < PIECES; i++)
        assert_true(seen[i]);
    mz_packer_free(forward);
}

static int64_t no_size(const void *user, uint64_t piece) {
    (void)user, (void)piece;
    return 0;
}

TEST(test_nothing_to_pack) {
    mz_packer *p;
    static mz_packed pieces[MZ_PACK_BLOCK];
    size_t n = 7;
    must(mz_packer_create(no_size, NULL, 5, 10, &p));
    must(mz_packer_row(p, 0, pieces, &n));
    assert_int_equal(n, 0);
    mz_packer_free(p);
    must(mz_packer_create(no_size, NULL, UINT64_MAX, 10, &p)); // it would look for ever
    assert_int_equal(mz_packer_row(p, 0, pieces, &n), MEZZO_ERR_INVALID);
    mz_packer_free(p);
}

TEST(test_documents_of_a_stream) {
    static const int32_t tokens[] = {5, 6, 9, 7, 9, 9, 8, 4, 3, 9};
    int32_t targets[] = {6, 9, 7, 9, 9, 8, 4, 3, 9, 1}, positions[10];
    static const int32_t left[] = {6, 9, -1, 9, -1, -1, 4, 3, 9, -1};
    mz_mark_documents(9, 1, 10, tokens, targets, positions);
    assert_memory_equal(targets, left, sizeof left);
    const int32_t first_row[] = {0, 1, 2, 0, 1}, second_row[] = {0, 0, 1, 2, 3},
                  one_row[] = {0, 1, 2, 0, 1, 0, 0, 1, 2, 3};
    mz_mark_documents(9, 2, 5, tokens, targets, positions); // a row begins anew
    assert_memory_equal(positions, first_row, sizeof first_row);
    assert_memory_equal(positions + 5, second_row, sizeof second_row);
    mz_mark_documents(9, 1, 10, tokens, targets, positions);
    assert_memory_equal(positions, one_row, sizeof one_row);
}

// A pass in order: the same targets as with a record in each row, at the same tokens; two records have no target.
TEST(test_packed_batches) {
    enum { LENGTH = 24, RECORDS = 300, ROWS = 4 };
    mz_text t = {0};
    for (unsigned i = 0; i < RECORDS; i++)
        mz_text_addf(&t, "{\"prompt\": \"p%u\", \"completion\": \"%.*s\"}\n", i,
                     i % 100 == 50 ? 0 : (int)(1 + i * 7 % 30), "abcdefghijklmnopqrstuvwxyzabcdefg");
    must(mz_file_write_atomic("packed.jsonl", t.data, t.len));
    mz_text_free(&t);
    mezzo_tokenizer *bytes;
    mz_record_set set;
    mz_instructions *x;
    must(mezzo_tokenizer_create_byte(&bytes));
    must(mz_record_set_open("packed.jsonl", NULL, bytes, &set));
    must(mz_instructions_create(&set, 0, 1, false, &x));
    uint64_t pairs[2] = {0, 0}, sums[2] = {0, 0}, rows[2];
    for (int packed = 0; packed < 2; packed++) {
        const mz_instruction_order order = {.packed = packed != 0, .rows = ROWS, .length = LENGTH};
        mz_instruction_rows *made;
        int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH], positions[ROWS * LENGTH];
        must(mz_instruction_rows_create(x, &order, &made));
        rows[packed] = ROWS * mz_instruction_rows_batches(made);
        for (uint64_t k = 0; k < mz_instruction_rows_batches(made); k++) {
            must(mz_instruction_rows_batch(made, k, tokens, targets, packed ? positions : NULL));
            for (int i = 0; i < ROWS * LENGTH; i++) {
                if (packed)
                    assert_true(positions[i] == 0 || (i % LENGTH > 0 && positions[i] == positions[i - 1] + 1));
                if (targets[i] < 0)
                    continue;
                pairs[packed]++;
                sums[packed] += (uint64_t)targets[i] * 1000003u ^ (uint64_t)tokens[i] * 40503u ^
                                (uint64_t)(packed ? positions[i] : i % LENGTH);
            }
        }
        mz_instruction_rows_free(made);
    }
    assert_int_equal(pairs[0], pairs[1]);
    assert_int_equal(sums[0], sums[1]);
    assert_true(rows[1] < rows[0]);
    double alone, packed;
    must(mz_instructions_padding(x, LENGTH, &alone, &packed));
    assert_true(packed < alone && packed >= 0);
    mz_instructions_free(x);
    mz_record_set_close(&set);
    mezzo_tokenizer_free(bytes);
}

// --- a model -------------------------------------------------------------------------------------------------------
enum { LENGTH = 32, DOCUMENTS = 7, ROWS = 2, VOCAB = 40 };
static const struct {
    int row, column, length;
} documents[DOCUMENTS] = {{0, 0, 7}, {0, 7, 20}, {0, 27, 4}, {1, 0, 1}, {1, 1, 13}, {1, 14, 15}, {1, 29, 3}};

static int32_t token(int document, int at) {
    return (int32_t)((unsigned)(document * 31 + at * 7 + at * at) % VOCAB);
}

typedef struct batch {
    int32_t tokens[DOCUMENTS * LENGTH], targets[DOCUMENTS * LENGTH], positions[DOCUMENTS * LENGTH];
} batch;

// `one`: the document whose targets count; -1: all.
static void fill(batch *b, bool packed, int one) {
    memset(b, 0, sizeof *b);
    memset(b->targets, -1, sizeof b->targets);
    for (int d = 0; d < DOCUMENTS; d++)
        for (int i = 0; i < documents[d].length; i++) {
            const int at = packed ? documents[d].row * LENGTH + documents[d].column + i : d * LENGTH + i;
            b->tokens[at] = token(d, i);
            b->positions[at] = i;
            if (one < 0 || one == d)
                b->targets[at] = token(d, i + 1);
        }
}

static void open_session(const char *name, mezzo_device *device, bool packed, mz_session *out) {
    mezzo_model_config c;
    mz_session_options o;
    must(mezzo_model_defaults(name, &c));
    c.layers = 2;
    c.heads = 4;
    c.d_model = 32;
    c.d_ff = 40;
    c.vocab = VOCAB;
    c.seq_len = LENGTH;
    if (strcmp(name, "llama") == 0 || strcmp(name, "glm4_moe") == 0)
        c.kv_heads = 2;
    if (strcmp(name, "glm4_moe") == 0) {
        c.head_dim = 8;
        c.dense_layers = 1;
        c.experts = 4;
        c.experts_per_token = 2;
        c.d_expert = 16;
    }
    must(mz_session_usual(&c, packed ? ROWS : DOCUMENTS, &o));
    o.form.documents = packed;
    o.seed = 7;
    mz_session_set_precision(&o, MEZZO_PRECISION_FP32);
    must(mz_session_open(device, &o, MZ_SESSION_PARAMS | MZ_SESSION_TRAIN, out));
}

static void run(mz_session *s, bool packed, int one, double *loss) {
    static batch b;
    const size_t bytes = sizeof(int32_t) * LENGTH * (packed ? ROWS : DOCUMENTS);
    float value;
    fill(&b, packed, one);
    must(mezzo_program_write(s->train, "tokens", b.tokens, bytes));
    must(mezzo_program_write(s->train, "targets", b.targets, bytes));
    if (packed)
        must(mezzo_program_write(s->train, "positions", b.positions, bytes));
    must(mezzo_params_zero_grad(s->params));
    must(mezzo_program_run(s->train, NULL, 1, 1));
    must(mezzo_program_read(s->train, "loss", &value, sizeof value));
    *loss = (double)value;
}

static void compare(const char *name, mezzo_device *device) {
    mz_session alone, packed;
    open_session(name, device, false, &alone);
    open_session(name, device, true, &packed);
    for (int one = -1; one < DOCUMENTS; one++) {
        double losses[2];
        run(&alone, false, one, &losses[0]);
        run(&packed, true, one, &losses[1]);
        if (!(fabs(losses[0] - losses[1]) <= 1e-6 * losses[0]))
            fail_msg("%s, document %d: a loss of %.9g, packed %.9g", name, one, losses[0], losses[1]);
        for (int i = 0; i < mezzo_params_count(alone.params); i++) {
            size_t n = 1;
            for (int d = 0; d < mezzo_params_rank(alone.params, i); d++)
                n *= (size_t)mezzo_params_shape(alone.params, i)[d];
            float *g[2] = {mz_alloc(n, sizeof(float)), mz_alloc(n, sizeof(float))};
            must(mezzo_params_read_grad(alone.params, i, g[0]));
            must(mezzo_params_read_grad(packed.params, i, g[1]));
            double most = 0, off = 0;
            for (size_t k = 0; k < n; k++) {
                most = fmax(most, fabs((double)g[0][k]));
                off = fmax(off, fabs((double)g[0][k] - (double)g[1][k]));
            }
            if (!(off <= 1e-6 * most + 1e-9))
                fail_msg("%s, document %d, %s: gradients differ by %g of %g", name, one,
                         mezzo_params_name(alone.params, i), off, most);
            mz_free(g[0]);
            mz_free(g[1]);
        }
    }
    mz_session_close(&alone);
    mz_session_close(&packed);
}

TEST(test_losses_and_gradients_are_those_of_records_alone) {
    static const char *const models[] = {"gpt2", "cs336", "llama", "glm4_moe"};
    mezzo_device *device;
    must(mezzo_device_open(test_device(), 2, &device));
    for (size_t i = 0; i < MZ_COUNT(models); i++)
        compare(models[i], device);
    mezzo_device_close(device);
}
