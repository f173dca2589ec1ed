// out[rows, n] = a[rows, k] . w[n, k], bf16 in, float32 accumulators, one fixed order over k.
//
// Weights are panels of 16 outputs: [n / 16][k / 2][16][2] bf16, k padded with zeros to a multiple
// of 32. A work item is a group of up to four panels: they come from memory exactly once, and every
// row of the batch meets them while they sit in the core's cache. An output element is always the
// same chain of dot2() over k, whatever tile it is computed in (an accumulator that is put down
// between two k-blocks keeps its bits), so its bits depend on its own row and weights alone.
#pragma once

#include "abi.h"
#include "team.h"

namespace paceline {

constexpr int kPanels = 4;               // panels in a work item, at most
constexpr int kWidth = kPanels * kLanes;  // floats in a row of the accumulator block
constexpr int kBlockRows = 192;          // rows whose accumulators stay in the L2 cache
constexpr int kBlockPairs = 96;          // pairs of k whose panels stay in the L1 cache
#if defined(__AVX512F__)
constexpr int kTileRows = 6;  // 6 x 4 accumulators fill 24 of 32 registers
#else
constexpr int kTileRows = 2;
#endif

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Row-major bf16 activations as pairs of k. `stride` counts pairs: half of k, padded as weights are.
struct Activations {
    const uint32_t* pairs;
    int64_t stride;
};

// R rows times P panels over `pairs` pairs of k; `ahead`, where set, is fetched on the way.
template <int R, int P, bool kPrefetch>
void gemm_tile(const uint32_t* a, int64_t a_stride, const uint32_t* panels, int64_t panel_stride,
               int64_t pairs, float* c, bool first, const uint32_t* ahead0, const uint32_t* ahead1) {
    Vec acc[R][P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++)
            acc[r][p] = first ? Vec{} : load(c + r * kWidth + p * kLanes);
    for (int64_t i = 0; i < pairs; i++) {
        UVec w[P];
        for (int p = 0; p < P; p++) w[p] = load_u(panels + p * panel_stride + i * kLanes);
        if (kPrefetch) {
            __builtin_prefetch(ahead0 + i * kLanes, 0, 2);
            __builtin_prefetch(ahead1 + i * kLanes, 0, 2);
        }
        for (int r = 0; r < R; r++) {
            UVec x = splat_u(a[r * a_stride + i]);
            for (int p = 0; p < P; p++) acc[r][p] = dot2(acc[r][p], x, w[p]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store(c + r * kWidth + p * kLanes, acc[r][p]);
}

using TileFunction = void (*)(const uint32_t*, int64_t, const uint32_t*, int64_t, int64_t, float*,
                              bool, const uint32_t*, const uint32_t*);

template <int R, bool kPrefetch>
constexpr TileFunction tile_of_width(int panels) {
    constexpr TileFunction table[] = {gemm_tile<R, 1, kPrefetch>, gemm_tile<R, 2, kPrefetch>,
                                      gemm_tile<R, 3, kPrefetch>, gemm_tile<R, 4, kPrefetch>};
    return table[panels - 1];
}

template <bool kPrefetch>
TileFunction tile_function(int rows, int panels) {
    switch (rows) {
        case 1: return tile_of_width<1, kPrefetch>(panels);
        case 2: return tile_of_width<2, kPrefetch>(panels);
#if defined(__AVX512F__)
        case 3: return tile_of_width<3, kPrefetch>(panels);
        case 4: return tile_of_width<4, kPrefetch>(panels);
        case 5: return tile_of_width<5, kPrefetch>(panels);
        default: return tile_of_width<6, kPrefetch>(panels);
#else
        default: return tile_of_width<2, kPrefetch>(panels);
#endif
    }
}

// A run of panels, and the panels that this thread will read afterwards (null when unknown).
struct PanelGroup {
    const uint32_t* data;
    int64_t stride;  // uint32 words per panel
    int count;
    const uint32_t* next;
};

// One k-block for all rows of the block, in tiles as even as they go. While the tiles compute, the
// panels of the next k-block are fetched, a share with each of the first tiles.
inline void gemm_k_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t k0,
                         int64_t pairs, float* c, const uint32_t* next) {
    int64_t tiles = ceil_div(rows, kTileRows), per_tile = ceil_div(kPanels, 2 * tiles) * 2;
    if (tiles >= kPanels) per_tile = 1;
    int panel = 0;
    for (int64_t t = 0, r = 0; t < tiles; t++) {
        int count = (int)((rows - r + tiles - t - 1) / (tiles - t));
        const uint32_t* x = a.pairs + r * a.stride + k0;
        const uint32_t* panels = w.data + k0 * kLanes;
        if (next && tiles > 1 && panel < w.count) {
            const uint32_t* ahead0 = next + panel * w.stride;
            bool two = per_tile > 1 && panel + 1 < w.count;
            tile_function<true>(count, w.count)(x, a.stride, panels, w.stride, pairs,
                                                c + r * kWidth, k0 == 0, ahead0,
                                                two ? ahead0 + w.stride : ahead0);
            panel += (int)per_tile;
        } else {
            tile_function<false>(count, w.count)(x, a.stride, panels, w.stride, pairs,
                                                 c + r * kWidth, k0 == 0, nullptr, nullptr);
        }
        r += count;
    }
}

}  // namespace paceline

#ifdef PACELINE_AMX
#include "gemm_amx.h"
#endif

namespace paceline {

// c[rows][kWidth] = a . panels for up to kBlockRows rows
inline void gemm_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t pairs,
                       float* c) {
#ifdef PACELINE_AMX
    gemm_block_amx(a, rows, w, pairs, c);
#else
    bool one_tile = rows <= kTileRows;  // then nothing is read twice, and the hardware prefetches
    int64_t step = one_tile ? pairs : kBlockPairs;
    for (int64_t k = 0; k < pairs; k += step) {
        int64_t count = pairs - k < step ? pairs - k : step;
        bool last = k + count == pairs;
        const uint32_t* next = last ? w.next : w.data + (k + count) * kLanes;
        gemm_k_block(a, rows, w, k, count, c, one_tile || rows > 4 * kTileRows ? nullptr : next);
    }
#endif
}


// Runs the product over the team; epilogue(row, panel, count, c) gets each finished row of a group,
// c[count * 16], in whichever thread computed it.
template <class Epilogue>
void gemm(Worker& worker, const Activations& a, int64_t rows, const PlMatrix& w, float* scratch,
          Epilogue&& epilogue) {
    int64_t pairs = ceil_div(w.k, 32) * 16, panels = ceil_div(w.n, kLanes);
    int per_item = kPanels;
    int64_t groups = ceil_div(panels, per_item);
    // Row chunks only where there are too few panels to go round; weights are then read per chunk.
    int64_t chunk = rows;
    if (rows > 2 * kBlockRows && groups < 6 * worker.team.size) {
        int64_t chunks = ceil_div(6 * worker.team.size, groups);
        chunk = ceil_div(ceil_div(rows, chunks), kBlockRows) * kBlockRows;
    }
    int64_t chunks = ceil_div(rows, chunk);
    auto panel_data = [&](int64_t item) {
        return w.panels + (item / chunks) * per_item * pairs * kLanes;
    };
    worker.share(groups * chunks, [&](int64_t item, int64_t next) {
        int64_t panel = (item / chunks) * per_item, row0 = (item % chunks) * chunk;
        int64_t row1 = row0 + chunk < rows ? row0 + chunk : rows;
        int count = (int)(panels - panel < per_item ? panels - panel : per_item);
        bool whole_next = (next / chunks + 1) * per_item <= panels && next < groups * chunks;
        PanelGroup group{panel_data(item), pairs * kLanes, count,
                         whole_next ? panel_data(next) : nullptr};
        for (int64_t r = row0; r < row1; r += kBlockRows) {
            int64_t block = row1 - r < kBlockRows ? row1 - r : kBlockRows;
            gemm_block({a.pairs + r * a.stride, a.stride}, block, group, pairs, scratch);
            for (int64_t i = 0; i < block; i++)
                epilogue(r + i, panel, count, scratch + i * kWidth);
        }
    });
}

}  // namespace paceline
