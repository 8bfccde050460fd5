// The loop over tiles of matrix products whose operands the tensor memory accelerator (TMA) fetches into shared memory,
// on compute capability 9.0. A kernel is a policy P of this loop.
//
// A block has one warp that fetches and two warpgroups that multiply. Shared memory begins with a ring of P::STAGES
// stages of P::SLOTS slots each, which hold one piece of a tile's sum. A slot has two barriers: its bytes have come
// ("full"), and every warp that reads it has done so ("empty"). One tile goes through both sides at the same time:
//
//   the fetching warp                            the multiplying warpgroups
//   P::walk finds the block's next tile          P::walk finds the same tile
//   P::loads: where its operands begin           P::sums: accumulators are zero
//   for each piece of the sum, P::STEP apart:    for each piece of the sum:
//     P::loads::fetch: waits until the stage       P::sums::multiply: waits until the stage is full, multiplies,
//     is empty, asks for boxes of both operands    promotes sums, releases the stage
//   ahead of the others by the whole ring        P::sums::finish: post-ops, stores
//
// The tensor cores keep about 14 bits of a sum of 8-bit products, and cut off what sums of BF16 terms lose. Where that
// is too little, multiply sums one piece from zero, and FP32 registers add the piece ("promotion").
//
// Beside these a policy has: args, the kernel's argument; STAGES and SLOT; warp, what a multiplying warp keeps from
// tile to tile; fetch_stage and stage, how the two sides count stages; readers(slot), the warps that release a slot;
// and what tile_policy has where it differs.
#ifndef MZ_TILE_LOOP_CUH
#define MZ_TILE_LOOP_CUH

#include "barrier.cuh"
#include "cluster.cuh"
#include "pdl_launch.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

enum { GROUPS = 2, THREADS = WARPGROUP * (1 + GROUPS), WARPS = GROUPS * WARPGROUP / 32, SHARED_ALIGN = 1024 };

template <typename P> struct tile_layout { // bytes of shared memory
    static constexpr int STAGE = P::SLOTS * P::SLOT, SLOTS = P::STAGES * P::SLOTS;
    static constexpr int AT_BARRIERS = P::STAGES * STAGE + P::BESIDE;
    static constexpr int BYTES = AT_BARRIERS + 2 * SLOTS * 8 + SHARED_ALIGN;
    static_assert(BYTES <= 227 * 1024, "shared memory of a block");
};

struct tile_maps { // of the operands
    const CUtensorMap *a, *b;
};

// --- the ring ------------------------------------------------------------------------------------------------------
struct tile_memory {
    unsigned char *shared;         // the ring's first byte
    uint32_t address, full, empty; // the same as an address; the barriers' addresses
};

// Holds a cluster's unit of work: two tiles, one below the other, and the pieces `from` … `to` - 1 of their sums.
struct tile_share {
    static constexpr bool any = true;
    unsigned down, right; // which pair of tiles
    int split, from, to;  // which part of the sum
};

// Deals out tiles of ROWS × COLS of g.rows × g.cols results; DIVIDED: and g.splits parts of the sum of g.inner terms.
// They are taken in bands of BAND pairs, column by column of a band: as many columns of b as rows of a are read at a
// time. Row by row of long rows, all of b would pass by for two pairs of tiles.
template <typename A, int ROWS, int COLS, int L, int BAND, bool DIVIDED> struct dense_walk {
    unsigned unit, units, step, tiles, across, down; // no memory holds 2³² tiles
    int pieces;
    __device__ __forceinline__ dense_walk(const A &g) {
        across = static_cast<unsigned>((g.cols + COLS - 1) / COLS);
        pieces = static_cast<int>((g.inner + L - 1) / L);
        down = static_cast<unsigned>((g.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS));
        units = tiles = down * across;
        if constexpr (DIVIDED)
            units *= static_cast<unsigned>(g.splits);
        unit = blockIdx.x / CLUSTER;
        step = gridDim.x / CLUSTER;
    }
    __device__ __forceinline__ bool more() const { return unit < units; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ tile_share find(const A &g) const {
        const unsigned split = DIVIDED ? unit / tiles : 0, index = unit - split * tiles;
        tile_share s;
        if constexpr (BAND > 1) {
            const unsigned first = index / (BAND * across) * BAND,
                           high = min(down - first, static_cast<unsigned>(BAND));
            const unsigned of_band = index - first * across;
            s.right = of_band / high;
            s.down = first + of_band - s.right * high;
        } else {
            s.down = index / across;
            s.right = index % across;
        }
        s.split = static_cast<int>(split);
        s.from = 0, s.to = pieces;
        if constexpr (DIVIDED) {
            s.from = static_cast<int>(static_cast<int64_t>(pieces) * s.split / g.splits);
            s.to = static_cast<int>(static_cast<int64_t>(pieces) * (s.split + 1) / g.splits);
        }
        return s;
    }
    __device__ __forceinline__ tile_share tile(const A &, const tile_share &s) const { return s; }
};

// Where in a ring of N stages a loop is: parity changes with every turn of the ring. A loop knows it by the number of
// pieces so far, or goes from stage to stage.
template <int N> struct stage_by_count {
    uint32_t count = 0;
    __device__ __forceinline__ uint32_t stage() const { return count % N; }
    __device__ __forceinline__ uint32_t parity() const { return count / N & 1; }
    __device__ __forceinline__ void advance() { count++; }
};
template <int N> struct stage_by_turns {
    uint32_t at = 0, turn = 0;
    __device__ __forceinline__ uint32_t stage() const { return at; }
    __device__ __forceinline__ uint32_t parity() const { return turn; }
    __device__ __forceinline__ void advance() {
        if (++at == N)
            at = 0, turn ^= 1;
    }
    // Goes to the stage after `count` pieces.
    __device__ __forceinline__ void begin(uint32_t count) { at = count % N, turn = count / N & 1; }
};

template <typename P, typename STAGE> struct tile_ring : STAGE {
    const tile_memory &m;
    __device__ __forceinline__ tile_ring(const tile_memory &memory) : m(memory) {}
    // Slot i of the stage: its memory, and its barriers.
    __device__ __forceinline__ uint32_t slot(int i = 0) const {
        return m.address + (this->stage() * P::SLOTS + i) * P::SLOT;
    }
    __device__ __forceinline__ uint32_t full(int i = 0) const { return m.full + (this->stage() * P::SLOTS + i) * 8; }
    __device__ __forceinline__ uint32_t empty(int i = 0) const { return m.empty + (this->stage() * P::SLOTS + i) * 8; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct tile_warp { // of a multiplying warpgroup
    const tile_memory &memory;
    int group, index, lane; // which warpgroup; which warp of it
    uint32_t rank;          // which block of the cluster
    template <typename A> __device__ __forceinline__ tile_warp(const A &, const tile_memory &m) : memory(m) {
        const int thread = static_cast<int>(threadIdx.x) - WARPGROUP;
        group = group_of(thread), index = thread % WARPGROUP / 32, lane = thread & 31;
        rank = block_of_cluster();
    }
    __device__ __forceinline__ void end() const {} // after the last tile
};
#endif

// What policies share unless they say otherwise. N: stages.
template <int N> struct tile_policy {
    enum { STAGES = N, SLOTS = 1, STEP = 1, BESIDE = 0 }; // BESIDE: bytes of shared memory after the ring
    enum : bool {
        CLUSTERED = true,     // two blocks share boxes
        BY_TURNS = false,     // the warpgroups take turns at tiles
        PASSES_TURNS = false, // sums::multiply passes the turn
        UNROLLED = true       // the fetching loop may be
    };
    using stage = stage_by_count<N>; // of the multiplying side, and of the fetching one
    using fetch_stage = stage_by_count<N>;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using warp = tile_warp;
    static __device__ __forceinline__ bool fetches() {
        return threadIdx.x == 0;
    }
#endif
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename P>
__device__ __forceinline__ void fetch_tiles(const typename P::args &g, const tile_maps &maps, const tile_memory &m) {
    const uint32_t rank = block_of_cluster();
    tile_ring<P, typename P::fetch_stage> ring(m);
    for (typename P::walk w(g); w.more(); w.next()) {
        const auto place = w.find(g);
        if (!place.any)
            break;
        const auto t = w.tile(g, place);
        typename P::loads loads(g, t, rank);
        if constexpr (P::UNROLLED) {
            for (int k = t.from; k < t.to; k += P::STEP, ring.advance())
                loads.fetch(maps, k, ring);
        } else {
#pragma unroll 1
            for (int k = t.from; k < t.to; k += P::STEP, ring.advance())
                loads.fetch(maps, k, ring);
        }
    }
}

// A barrier of one warpgroup's threads.
__device__ __forceinline__ void warpgroup_sync(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(static_cast<int>(WARPGROUP)) : "memory");
}

// BY_TURNS: a warpgroup waits until the other has asked for all of its products. So the tensor cores work at one tile
// after another, and no warpgroup asks about a stage's barrier before the one whose phase comes first (a barrier tells
// odd phases from even ones, no more).
__device__ __forceinline__ void turn_wait(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 3), "r"(static_cast<int>(2 * WARPGROUP)) : "memory");
}
__device__ __forceinline__ void turn_pass(int group) {
    asm volatile("bar.arrive %0, %1;" ::"r"((group ^ 1) + 3), "r"(static_cast<int>(2 * WARPGROUP)) : "memory");
}

template <typename P> __device__ __forceinline__ void multiply_tiles(const typename P::args &g, const tile_memory &m) {
    typename P::warp warp(g, m);
    typename P::walk w(g);
    tile_ring<P, typename P::stage> ring(m);
    if (P::BY_TURNS && warp.group == 1)
        turn_pass(warp.group); // the first turn is the other's
    uint32_t before = 0;       // pieces of the tiles before
    for (int turn = 0; w.more(); w.next(), turn ^= 1, before += w.pieces) {
        if (P::BY_TURNS && turn != warp.group)
            continue;
        const auto place = w.find(g);
        if (!place.any)
            break;
        const auto t = w.tile(g, place);
        typename P::sums sums(g, warp, t);
        if constexpr (P::BY_TURNS) {
            ring.begin(before);
            turn_wait(warp.group);
        }
        for (int k = t.from; k < t.to; k += P::STEP, ring.advance())
            sums.multiply(g, warp, t, k, ring);
        if (P::BY_TURNS && !P::PASSES_TURNS)
            turn_pass(warp.group);
        sums.finish(g, warp, t, ring);
    }
    warp.end();
}
#endif

template <typename P>
__device__ __forceinline__ void loop_over_tiles(const typename P::args &g, const tile_maps &maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using layout = tile_layout<P>;
    extern __shared__ unsigned char tile_shared[];
    const uint32_t begin = shared_address(tile_shared),
                   first = (begin + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    const uint32_t full = first + layout::AT_BARRIERS;
    const tile_memory m = {tile_shared + (first - begin), first, full, full + layout::SLOTS * 8};
    if (threadIdx.x == 0) {
        for (int s = 0; s < layout::SLOTS; s++) {
            barrier_init(m.full + s * 8, 1);
            barrier_init(m.empty + s * 8, P::readers(s));
        }
        barrier_inits_release();
    }
    if constexpr (P::CLUSTERED)
        cluster_sync();
    else
        __syncthreads();
    wait_for_before();
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (P::fetches())
            fetch_tiles<P>(g, maps, m);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<P>(g, m);
    }
    if constexpr (P::CLUSTERED) {
        __syncwarp();
        cluster_sync(); // a block's memory stays while the other may still write to it
    }
#endif
}

template <typename P>
__global__ void __launch_bounds__(THREADS, 1)
    tile_kernel(const typename P::args g, const __grid_constant__ CUtensorMap a,
                const __grid_constant__ CUtensorMap b) {
    loop_over_tiles<P>(g, {&a, &b});
}
template <typename P>
__global__ void __launch_bounds__(THREADS, 1) IN_CLUSTERS
    tile_cluster_kernel(const typename P::args g, const __grid_constant__ CUtensorMap a,
                        const __grid_constant__ CUtensorMap b) {
    loop_over_tiles<P>(g, {&a, &b});
}

// --- launching -----------------------------------------------------------------------------------------------------
template <typename P> constexpr auto tile_kernel_of() {
    if constexpr (P::CLUSTERED)
        return tile_cluster_kernel<P>;
    else
        return tile_kernel<P>;
}

// Pairs of tiles of ROWS × COLS, one below the other.
template <int ROWS, int COLS> int64_t count_pairs(int64_t rows, int64_t cols) {
    return (rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * ((cols + COLS - 1) / COLS);
}

// By rough times in ns: a piece takes `piece`, two more begin and end a tile, and a part of the sum is written and read
// after a launch.
struct split_times {
    int piece, launch, bytes_per_ns;
};

// Returns how many parts sums of `pieces` are divided into: 1 where tiles are enough for the card.
inline int choose_splits(int64_t pairs, int64_t pieces, int64_t results, int sms, const split_times &t) {
    enum { MOST = 16, LEAST_PIECES = 4, EDGES = 2 };
    int64_t clusters = sms / CLUSTER, best = 0;
    int splits = 1;
    for (int s = 1; s <= MOST && (s == 1 || pieces / s >= LEAST_PIECES); s++) {
        int64_t time = (pairs * s + clusters - 1) / clusters * ((pieces + s - 1) / s + EDGES) * t.piece;
        if (s > 1)
            time += t.launch + 8 * s * results / t.bytes_per_ns;
        if (s == 1 || time < best) {
            best = time;
            splits = s;
        }
    }
    return splits;
}

// Asks for the shared memory that the kernel needs; cudaErrorInvalidDeviceFunction where there is no code for it.
template <typename P> cudaError_t prepare_tiles() {
    return cudaFuncSetAttribute(tile_kernel_of<P>(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                tile_layout<P>::BYTES);
}
// `units`: tiles, or with clusters pairs of them.
template <typename P>
cudaError_t launch_tiles(cudaStream_t stream, const typename P::args &g, const CUtensorMap &a, const CUtensorMap &b,
                         int64_t units, int sms) {
    constexpr int BLOCKS = P::CLUSTERED ? CLUSTER : 1;
    const int64_t most = sms / BLOCKS, taken = units < most ? units : most;
    return launch_dependent(stream, tile_kernel_of<P>(), dim3(static_cast<unsigned>(taken * BLOCKS)), dim3(THREADS),
                            tile_layout<P>::BYTES, g, a, b);
}

#endif
