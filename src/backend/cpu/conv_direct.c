// Runs direct convolution: conv2d and conv2d_dx of stride 1 (rows), conv2d_dw (columns), one group of channels.
//
//   rows      pack the weight once; a thread copies the lines of the image that some lines of the result need, with
//             their padding, and multiplies them panel by panel
//   columns   copy images whole, some at a time; a thread has some tiles of dw and goes over all pixels, a few lines at
//             a time, which stay near
//
// Sums are in an order that depends on shapes alone.
#include "backend/cpu/conv_direct.h"

#include <omp.h>

#include "backend/cpu/conv.h"

#define LINE         64
#define MOST_TAPS    64                   // rows of a weight
#define ITEM_PIXELS  256                  // about this many pixels of the result; what they read stays in a core's L2
#define BAND_BYTES   ((int64_t)128 << 10) // for both operands of a weight's gradient
#define BLOCK_DEPTH  32                   // the k of a block of the left operand
#define PARTED_TILES 64 // with fewer large tiles of a weight's gradient, each group of images has its own sums
#define CHUNK_BYTES  ((int64_t)32 << 20) // of images copied whole, unless one is larger

// Holds the operand that is read, and the pixels over which the weight moves.
typedef struct direct {
    const mz_conv_kernels *kernels;
    const mz_tensor *image; // [B, height, width, channels]
    mezzo_dtype compute;
    int64_t images, height, width, channels;
    int64_t over_height, over_width; // number of positions of the weight
    int64_t taps_h, taps_w, stride, pad_h, pad_w;
    int64_t padded_width; // pixels of a copied line
} direct;

static direct direct_of(mz_matmul_path path, const mz_call *call) {
    const bool dw = call->op == MZ_OP_conv2d_dw, dx = call->op == MZ_OP_conv2d_dx;
    const mz_tensor *image = dw ? mz_in(call, conv2d_dw, x) : mz_in(call, conv2d_dw, dy),
                    *w = dw ? mz_out(call, conv2d_dw, dw) : mz_in(call, conv2d_dw, x);
    const mz_shape *over = dw ? &mz_in(call, conv2d_dw, dy)->shape : &mz_out(call, conv2d_dw, dw)->shape;
    direct d = {.kernels = path.kernel->conv, .image = image, .compute = call->numerics.compute};
    d.images = image->shape.dim[0];
    d.height = image->shape.dim[1];
    d.width = image->shape.dim[2];
    d.channels = image->shape.dim[3];
    d.over_height = over->dim[1];
    d.over_width = over->dim[2];
    d.taps_h = w->shape.dim[1];
    d.taps_w = w->shape.dim[2];
    d.stride = call->attrs.stride;
    d.pad_h = dx ? d.taps_h - 1 - call->attrs.pad_before : call->attrs.pad_before;
    d.pad_w = dx ? d.taps_w - 1 - call->attrs.pad_before : call->attrs.pad_before;
    d.padded_width = (d.over_width - 1) * d.stride + d.taps_w;
    return d;
}

const char *mz_conv_direct_refuses(mz_matmul_path path, const mz_call *call) {
    if (path.kernel->conv == NULL)
        return "this arithmetic has no direct convolution";
    if (call->attrs.groups != 1)
        return "serves one group of channels";
    if (call->op == MZ_OP_conv2d_dx && call->attrs.stride != 1)
        return "serves the gradient of stride 1";
    const direct d = direct_of(path, call);
    if (d.taps_h > MOST_TAPS)
        return "serves weights of up to 64 lines";
    if (d.pad_h < 0 || d.pad_w < 0)
        return "serves padding less than the weight";
    if (call->op != MZ_OP_conv2d_dw && d.taps_w * d.channels % path.kernel->conv->unit != 0)
        return "serves lines of a weight that fill its unit of k";
    if (d.channels % path.kernel->conv->pair != 0 && call->op != MZ_OP_conv2d_dw)
        return "serves an even number of channels";
    if (path.kernel->conv->a_block > 0 && d.taps_h == 1 && d.taps_w == 1 && d.stride == 1)
        return "a weight of one pixel is a product";
    return NULL;
}

// Copies one line of an image with its padding, in the kernels' format.
static void copy_line(const direct *d, int64_t image, int64_t line, char *to) {
    const int64_t size = d->kernels->pair == 2 ? 2 : 4, pixel = d->channels * size;
    const int64_t row = line - d->pad_h, seen = min64(d->width, d->padded_width - d->pad_w);
    if (row < 0 || row >= d->height || seen <= 0) {
        memset(to, 0, (size_t)(d->padded_width * pixel));
        return;
    }
    const char *from = (const char *)d->image->data +
                       (size_t)((image * d->height + row) * d->width * d->channels) * mezzo_dtype_size(d->image->dtype);
    memset(to, 0, (size_t)(d->pad_w * pixel));
    d->kernels->copy(to + d->pad_w * pixel, from, d->image->dtype, d->compute, seen * d->channels);
    memset(to + (d->pad_w + seen) * pixel, 0, (size_t)((d->padded_width - d->pad_w - seen) * pixel));
}

static void begin(mz_matmul_path path) {
    if (path.kernel->begin != NULL)
        path.kernel->begin();
}

static void end(mz_matmul_path path) {
    if (path.kernel->end != NULL)
        path.kernel->end();
}

// --- rows ----------------------------------------------------------------------------------------------------------
typedef struct row_plan {
    int64_t n, panels;               // channels of the result, in panels
    int64_t pixel, run, k;           // words of a pixel, of a row's run of taps, of all taps
    int64_t lines, blocks;           // lines: of the result, for an item; blocks: items of an image
    int64_t panels_each, across;     // panels_each: panels of an item; across: items side by side
    int64_t panel_bytes, band_bytes; // of a packed panel; of a thread's lines
} row_plan;

static row_plan plan_rows(const direct *d, const mz_call *call, int threads) {
    row_plan p = {.n = call->out[0].shape.dim[3], .pixel = d->channels / d->kernels->pair};
    p.run = d->taps_w * p.pixel;
    p.k = d->taps_h * p.run;
    p.panels = ceil_div(p.n, d->kernels->nr);
    p.lines = min64(d->over_height, max64(1, ITEM_PIXELS / d->over_width));
    p.blocks = ceil_div(d->over_height, p.lines);
    const int64_t wanted = ceil_div(2 * (int64_t)threads, d->images * p.blocks);
    p.panels_each = ceil_div(p.panels, min64(p.panels, wanted));
    p.across = ceil_div(p.panels, p.panels_each);
    p.panel_bytes = (int64_t)mz_align_up((size_t)(p.k * d->kernels->nr) * sizeof(mz_word) + MZ_PANEL_SLACK, LINE);
    const int64_t lines = (p.lines - 1) * d->stride + d->taps_h;
    p.band_bytes = (int64_t)mz_align_up((size_t)(lines * d->padded_width * p.pixel) * sizeof(mz_word), LINE);
    return p;
}

// Returns the weight as the product's right operand, whose rows are the channels of the result.
static mz_matmul_operand weight_of(const direct *d, const mz_call *call, mz_matmul_gather *gather) {
    const mz_tensor *w = &call->in[1];
    mz_matmul_operand b = {.data = w->data, .dtype = w->dtype, .compute = d->compute, .k_stride = 1};
    if (call->op == MZ_OP_conv2d) {
        b.i_stride = d->taps_h * d->taps_w * d->channels;
        return b;
    }
    *gather = (mz_matmul_gather){.what = MZ_GATHER_WEIGHT,
                                 .r = d->taps_h,
                                 .s = d->taps_w,
                                 .depth = d->channels,
                                 .pitch = w->shape.dim[3],
                                 .flipped = true};
    b.gather = gather;
    b.k_stride = 0;
    b.i_stride = 1;
    return b;
}

// Returns the epilogue of the result's sums.
static mz_matmul_epilogue epilogue_of(const mz_call *call) {
    const mz_tensor *y = mz_out(call, conv2d, y), *bias = mz_in(call, conv2d, bias);
    mz_matmul_epilogue e = {.y = y->data, .y_dtype = y->dtype, .via = MEZZO_F32, .ld = y->shape.dim[3]};
    if (call->op == MZ_OP_conv2d)
        e.via = call->attrs.via;
    if (call->op == MZ_OP_conv2d && mz_present(bias)) {
        e.bias = bias->data;
        e.bias_dtype = bias->dtype;
    }
    return e;
}

static bool only_stored(const mz_matmul_epilogue *e) {
    return e->y_dtype == MEZZO_F32 && e->bias == NULL && (e->via == MEZZO_F32 || e->via == MEZZO_F64);
}

static void finish(mz_matmul_path path, const mz_matmul_epilogue *e, const float *tile, int64_t row, int64_t column,
                   int rows, int columns) {
    const mz_microkernel *mk = path.kernel;
    if (!(columns == mk->nr && mk->finish != NULL && mk->finish(e, tile, mk->nr, row, column, rows)))
        path.isa->epilogue(e, tile, mk->nr, row, column, rows, columns);
}

// Multiplies all pixels of `lines` lines of the result, starting with its pixel `first`, by one panel of the weight.
static void multiply_lines(mz_matmul_path path, const direct *d, const row_plan *p, const mz_matmul_epilogue *e,
                           const mz_word *band, int64_t first, int64_t lines, int64_t panel, const char *packed) {
    const mz_conv_kernels *kernels = d->kernels;
    const int64_t line_words = d->padded_width * p->pixel, pixels = lines * d->over_width;
    const int columns = (int)min64(kernels->nr, p->n - panel * kernels->nr);
    const bool in_place = only_stored(e) && columns == kernels->nr;
    int64_t offset[MOST_TAPS], line = 0, column = 0;
    for (int64_t r = 0; r < d->taps_h; r++)
        offset[r] = r * line_words;
    for (int64_t i = 0; i < pixels; i += kernels->mr) {
        const mz_word *rows[MZ_CONV_ROWS];
        float tile[MZ_CONV_ROWS * 32] __attribute__((aligned(LINE)));
        const int n = (int)min64(kernels->mr, pixels - i);
        for (int t = 0; t < kernels->mr; t++) {
            rows[t] = t < n ? band + line * d->stride * line_words + column * d->stride * p->pixel : rows[0];
            if (++column == d->over_width) {
                column = 0;
                line++;
            }
        }
        if (in_place && n == kernels->mr) {
            float *y = (float *)e->y + (first + i) * e->ld + panel * kernels->nr;
            kernels->rows(d->taps_h, p->run, rows, offset, packed, y, e->ld);
            continue;
        }
        kernels->rows(d->taps_h, p->run, rows, offset, packed, tile, kernels->nr);
        finish(path, e, tile, first + i, panel * kernels->nr, n, columns);
    }
}

static void run_rows(mz_matmul_path path, const mz_call *call, int threads) {
    const direct d = direct_of(path, call);
    const row_plan p = plan_rows(&d, call, threads);
    const mz_matmul_epilogue e = epilogue_of(call);
    mz_matmul_gather gather;
    const mz_matmul_operand w = weight_of(&d, call, &gather);
    char *packed = call->workspace, *bands = packed + p.panels * p.panel_bytes;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        begin(path);
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < p.panels; panel++)
            mz_matmul_pack_b(path, packed + panel * p.panel_bytes, &w, panel * d.kernels->nr,
                             (int)min64(d.kernels->nr, p.n - panel * d.kernels->nr), p.k * d.kernels->pair);
        char *band = bands + omp_get_thread_num() * p.band_bytes;
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < d.images * p.blocks * p.across; item++) {
            const int64_t across = item % p.across, block = item / p.across % p.blocks;
            const int64_t image = item / p.across / p.blocks, line = block * p.lines;
            const int64_t lines = min64(p.lines, d.over_height - line);
            const int64_t copied = (lines - 1) * d.stride + d.taps_h;
            for (int64_t i = 0; i < copied; i++)
                copy_line(&d, image, line * d.stride + i,
                          band + (size_t)(i * d.padded_width * p.pixel) * sizeof(mz_word));
            const int64_t last = min64(p.panels, (across + 1) * p.panels_each);
            for (int64_t panel = across * p.panels_each; panel < last; panel++)
                multiply_lines(path, &d, &p, &e, (const mz_word *)(const void *)band,
                               (image * d.over_height + line) * d.over_width, lines, panel,
                               packed + panel * p.panel_bytes);
        }
        end(path);
    }
}

// --- columns -------------------------------------------------------------------------------------------------------
typedef struct column_plan {
    int64_t m, m_panels;             // dw's rows, the channels of dy
    int64_t run, run_panels;         // numbers that are contiguous for one row of taps, and their panels
    int64_t tiles;                   // one for each (row of taps, panel of its numbers, panel of m)
    int64_t parts;                   // groups of a chunk's images with sums of their own, which are added in order
    int64_t lines;                   // lines of dy in a band
    int64_t steps;                   // steps of k in a line: pixels, or pairs of them
    int64_t a_step, a_line, a_panel; // words of dy: of a step (or block of steps), a line, a panel of m
    int64_t padded_height;           // lines of a copied image
    int64_t chunk;                   // images copied at a time
    bool dy_in_place;
    int64_t image_words, dy_words; // words of one image, with the words that a tile reads past its end
    int64_t line_bytes;            // of a thread's BF16 line before it becomes words
} column_plan;

static void lay_out_gradient(column_plan *p, const mz_conv_kernels *kernels) {
    if (kernels->a_block == 0) {
        p->a_step = p->m;
        p->a_line = p->steps * p->m;
        p->a_panel = kernels->mr;
        return;
    }
    p->a_step = kernels->a_block;
    p->a_panel = ceil_div(p->steps * kernels->pair, BLOCK_DEPTH) * kernels->a_block;
    p->a_line = p->m_panels * p->a_panel;
}

static column_plan plan_columns(const direct *d, const mz_call *call) {
    const mz_conv_kernels *kernels = d->kernels;
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy);
    column_plan p = {.m = dy->shape.dim[3], .run = d->taps_w * d->channels};
    p.m_panels = ceil_div(p.m, kernels->mr);
    p.run_panels = ceil_div(p.run, kernels->nr);
    p.tiles = d->taps_h * p.run_panels * p.m_panels;
    p.steps = ceil_div(d->over_width, kernels->pair);
    p.padded_height = (d->over_height - 1) * d->stride + d->taps_h;
    p.dy_in_place = kernels->pair == 1 && dy->dtype == MEZZO_F32 && d->compute != MEZZO_F16 &&
                    d->compute != MEZZO_BF16 && p.m % kernels->mr == 0;
    lay_out_gradient(&p, kernels);
    p.image_words = p.padded_height * d->padded_width * d->channels;
    p.dy_words = p.dy_in_place ? 0 : d->over_height * p.a_line;
    p.chunk = max64(1, min64(d->images, CHUNK_BYTES / 4 / (p.image_words + p.dy_words)));
    p.parts = kernels->a_block > 0 ? min64(min64(p.chunk, d->images), ceil_div(PARTED_TILES, p.tiles)) : 1;
    const int64_t line = (d->stride * d->padded_width * d->channels + p.a_line) * (int64_t)sizeof(mz_word);
    p.lines = max64(1, min64(d->over_height, BAND_BYTES / line));
    p.lines = ceil_div(d->over_height, ceil_div(d->over_height, p.lines));
    const int64_t numbers = max64((d->padded_width + d->stride) * d->channels, 2 * p.steps * p.m);
    p.line_bytes = kernels->pair == 2 ? (int64_t)mz_align_up((size_t)numbers * sizeof(uint16_t), LINE) : 0;
    return p;
}

// Returns the words of all copied images, with those that a tile reads past the last one's end.
static int64_t room_for(const column_plan *p, int64_t words, int over) {
    return (int64_t)mz_align_up((size_t)(p->chunk * words + over) * sizeof(mz_word), LINE) / (int64_t)sizeof(mz_word);
}

// Copies a line of an image as words: each number, or each pixel paired with the one a stride further.
static void image_words(const direct *d, int64_t image, int64_t line, mz_word *to, uint16_t *narrow) {
    const int64_t numbers = d->padded_width * d->channels, step = d->stride * d->channels;
    if (d->kernels->pair == 1) {
        copy_line(d, image, line, (char *)to);
        return;
    }
    copy_line(d, image, line, (char *)narrow);
    memset(narrow + numbers, 0, (size_t)step * sizeof *narrow);
    d->kernels->words(to, narrow, narrow + step, numbers);
}

// Copies a line of dy, panel by panel of its channels, in blocks.
static void gradient_blocks(mz_matmul_path path, const direct *d, const column_plan *p, const mz_tensor *dy,
                            int64_t line, mz_word *to) {
    const mz_matmul_operand a = {
        .data = dy->data, .dtype = dy->dtype, .compute = d->compute, .i_stride = 1, .k_stride = p->m};
    const int64_t mr = d->kernels->mr;
    for (int64_t panel = 0; panel < p->m_panels; panel++)
        path.isa->pack(path.kernel->a_panel, (int)mr, to + panel * p->a_panel, &a, panel * mr,
                       (int)min64(mr, p->m - panel * mr), line * d->over_width, d->over_width,
                       p->a_panel / d->kernels->a_block * BLOCK_DEPTH);
}

// Copies a line of dy: each pixel, or each pair of them; after an odd one comes zero.
static void gradient_words(mz_matmul_path path, const direct *d, const column_plan *p, const mz_tensor *dy,
                           int64_t line, mz_word *to, uint16_t *narrow) {
    if (d->kernels->a_block > 0) {
        gradient_blocks(path, d, p, dy, line, to);
        return;
    }
    const int64_t numbers = d->over_width * p->m;
    const char *from = (const char *)dy->data + (size_t)(line * numbers) * mezzo_dtype_size(dy->dtype);
    if (d->kernels->pair == 1) {
        d->kernels->copy(to, from, dy->dtype, d->compute, numbers);
        return;
    }
    d->kernels->copy(narrow, from, dy->dtype, d->compute, numbers);
    memset(narrow + numbers, 0, (size_t)(2 * p->steps * p->m - numbers) * sizeof *narrow);
    for (int64_t k = 0; k < p->steps; k++)
        d->kernels->words(to + k * p->m, narrow + 2 * k * p->m, narrow + (2 * k + 1) * p->m, p->m);
}

// Multiplies tiles [first, last) over one image's lines, band by band.
static void multiply_image(const direct *d, const column_plan *p, const mz_word *a, const mz_word *b, float *sums,
                           int64_t first, int64_t last, bool add) {
    const mz_conv_kernels *kernels = d->kernels;
    const int64_t tile = (int64_t)kernels->mr * kernels->nr, line_words = d->padded_width * d->channels;
    for (int64_t line = 0; line < d->over_height; line += p->lines, add = true)
        for (int64_t t = first; t < last; t++) {
            const int64_t m_panel = t % p->m_panels, panel = t / p->m_panels % p->run_panels;
            const int64_t r = t / p->m_panels / p->run_panels;
            kernels->columns(min64(p->lines, d->over_height - line), p->steps,
                             a + line * p->a_line + m_panel * p->a_panel, p->a_step, p->a_line,
                             b + (line * d->stride + r) * line_words + panel * kernels->nr,
                             kernels->pair * d->stride * d->channels, d->stride * line_words, sums + t * tile, add);
        }
}

// Multiplies the images of a chunk of `n`, in tiles [first, last) of all parts, on the calling thread.
static void multiply_parts(const direct *d, const column_plan *p, const mz_word *dy, const mz_word *images, float *sums,
                           int64_t n, int64_t first, int64_t last, bool add) {
    const int64_t tile = (int64_t)d->kernels->mr * d->kernels->nr;
    const int64_t dy_words = d->over_height * p->a_line;
    for (int64_t part = first / p->tiles; part * p->tiles < last; part++) {
        const int64_t from = max64(first - part * p->tiles, 0), to = min64(last - part * p->tiles, p->tiles);
        const int64_t i0 = part * n / p->parts, i1 = (part + 1) * n / p->parts;
        for (int64_t i = i0; i < i1; i++)
            multiply_image(d, p, dy + i * dy_words, images + i * p->image_words, sums + part * p->tiles * tile, from,
                           to, add || i > i0);
    }
}

static void finish_columns(mz_matmul_path path, const direct *d, const column_plan *p, const mz_matmul_epilogue *e,
                           float *sums, int64_t first, int64_t last) {
    const mz_conv_kernels *kernels = d->kernels;
    const int64_t tile = (int64_t)kernels->mr * kernels->nr;
    for (int64_t t = first; t < last; t++) {
        const int64_t row = t % p->m_panels * kernels->mr, from = t / p->m_panels % p->run_panels * kernels->nr;
        const int64_t r = t / p->m_panels / p->run_panels;
        for (int64_t part = 1; part < p->parts; part++)
            for (int64_t i = 0; i < tile; i++)
                sums[t * tile + i] += sums[(part * p->tiles + t) * tile + i];
        finish(path, e, sums + t * tile, row, r * p->run + from, (int)min64(kernels->mr, p->m - row),
               (int)min64(kernels->nr, p->run - from));
    }
}

static void run_columns(mz_matmul_path path, const mz_call *call, int threads) {
    const direct d = direct_of(path, call);
    const column_plan p = plan_columns(&d, call);
    const mz_conv_kernels *kernels = d.kernels;
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy), *dw = mz_out(call, conv2d_dw, dw);
    const mz_matmul_epilogue e = {
        .y = dw->data, .y_dtype = dw->dtype, .via = MEZZO_F32, .ld = d.taps_h * p.run, .add = call->attrs.accumulate};
    float *sums = call->workspace;
    mz_word *images = (mz_word *)(void *)(sums + p.parts * p.tiles * kernels->mr * kernels->nr);
    mz_word *copied = images + room_for(&p, p.image_words, kernels->nr);
    char *narrow = (char *)(copied + room_for(&p, p.dy_words, kernels->mr));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        begin(path);
        uint16_t *mine = (uint16_t *)(void *)(narrow + omp_get_thread_num() * p.line_bytes);
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads(), items = p.tiles * p.parts;
        for (int64_t image = 0; image < d.images; image += p.chunk) {
            const int64_t n = min64(p.chunk, d.images - image);
#pragma omp for schedule(static)
            for (int64_t line = 0; line < n * p.padded_height; line++)
                image_words(&d, image + line / p.padded_height, line % p.padded_height,
                            images + line * d.padded_width * d.channels, mine);
#pragma omp for schedule(static)
            for (int64_t line = 0; line < (p.dy_in_place ? 0 : n * d.over_height); line++)
                gradient_words(path, &d, &p, dy, image * d.over_height + line, copied + line * p.a_line, mine);
            const mz_word *a = copied;
            if (p.dy_in_place)
                a = (const mz_word *)dy->data + image * d.over_height * p.a_line;
            multiply_parts(&d, &p, a, images, sums, n, items * me / all, items * (me + 1) / all, image > 0);
#pragma omp barrier
        }
        finish_columns(path, &d, &p, &e, sums, p.tiles * me / all, p.tiles * (me + 1) / all);
        end(path);
    }
}

// --- both ----------------------------------------------------------------------------------------------------------
size_t mz_conv_direct_workspace(mz_matmul_path path, const mz_call *call, int threads) {
    const direct d = direct_of(path, call);
    if (call->op != MZ_OP_conv2d_dw) {
        const row_plan p = plan_rows(&d, call, threads);
        return (size_t)(p.panels * p.panel_bytes + threads * p.band_bytes);
    }
    const column_plan p = plan_columns(&d, call);
    const int64_t words = p.parts * p.tiles * d.kernels->mr * d.kernels->nr +
                          room_for(&p, p.image_words, d.kernels->nr) + room_for(&p, p.dy_words, d.kernels->mr);
    return (size_t)(words * (int64_t)sizeof(mz_word) + threads * p.line_bytes);
}

void mz_conv_direct_run(mz_matmul_path path, const mz_call *call, int threads) {
    if (call->op == MZ_OP_conv2d_dw)
        run_columns(path, call, threads);
    else
        run_rows(path, call, threads);
}
