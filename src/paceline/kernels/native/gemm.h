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

constexpr int kPanels = 4;                // panels in a work item, at most
constexpr int kWidth = kPanels * kLanes;  // floats in a row of the accumulator block
constexpr int kBlockRows = 192;           // rows whose accumulators stay in the L2 cache
constexpr int kBlockPairs = 224;          // pairs of k whose panels stay in the L1 cache
#if defined(__AVX512F__)
// Accumulators fill 24 of 32 registers: so many rows beside four panels, so many beside two.
constexpr int kTileRows = 6, kPairTileRows = 12;
#else
constexpr int kTileRows = 2, kPairTileRows = 2;
#endif
// For a single tile the hardware prefetches best alone, but for the start of a group: that is
// fetched during the last pairs of the group before.
constexpr int kTailPairs = 32;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Row-major bf16 activations as pairs of k. `stride` counts pairs: k / 2, padded as weights are.
struct Activations {
    const uint32_t* pairs;
    int64_t stride;
};

// A run of panels, and the panels that this thread will read afterwards (null when unknown).
struct PanelGroup {
    const uint32_t* data;
    int64_t stride;  // uint32 words per panel
    int count;
    const uint32_t* next;
};

struct TileArguments {
    const uint32_t* a;
    int64_t a_stride;
    const uint32_t* panels;
    int64_t panel_stride, pairs;
    float* c;
    bool first;             // start from zero, not from c
    const uint32_t* ahead;  // panels to fetch on the way
};

// R rows times P panels over some pairs of k, fetching kAhead panels for later.
template <int R, int P, int kAhead>
void gemm_tile(const TileArguments& t) {
    Vec acc[R][P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++)
            acc[r][p] = t.first ? Vec{} : load(t.c + r * kWidth + p * kLanes);
    const uint32_t *a = t.a, *panels = t.panels, *ahead = t.ahead;
    const int64_t a_stride = t.a_stride, panel_stride = t.panel_stride, pairs = t.pairs;
    for (int64_t i = 0; i < pairs; i++) {
        // The next tile's rows lie a stride apart, which no hardware prefetcher follows. Full tiles
        // only: in a small batch the rows are in the cache already.
        if (R == kPairTileRows && i % kLanes == 0)
            for (int r = 0; r < R; r++) __builtin_prefetch(a + (R + r) * a_stride + i, 0, 3);
        UVec w[P];
        for (int p = 0; p < P; p++) w[p] = load_u(panels + p * panel_stride + i * kLanes);
        for (int p = 0; p < kAhead; p++)
            __builtin_prefetch(ahead + p * panel_stride + i * kLanes, 0, 3);
        for (int r = 0; r < R; r++) {
            UVec x = splat_u(a[r * a_stride + i]);
            for (int p = 0; p < P; p++) acc[r][p] = dot2(acc[r][p], x, w[p]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store(t.c + r * kWidth + p * kLanes, acc[r][p]);
}

using TileFunction = void (*)(const TileArguments&);

template <int P, int kAhead, int kMost, int R = 1>
TileFunction tile_of_rows(int rows) {
    if constexpr (R < kMost)
        if (rows > R) return tile_of_rows<P, kAhead, kMost, R + 1>(rows);
    return gemm_tile<R, P, kAhead>;
}

// The tile for so many rows beside P panels; `ahead` panels to fetch: none, one or P.
template <int P>
TileFunction tile_beside(int rows, int ahead) {
    constexpr int kMost = P <= 2 ? kPairTileRows : kTileRows;
    if (ahead == 0) return tile_of_rows<P, 0, kMost>(rows);
    return ahead == 1 ? tile_of_rows<P, 1, kMost>(rows) : tile_of_rows<P, P, kMost>(rows);
}

inline TileFunction tile_function(int rows, int panels, int ahead) {
    switch (panels) {
        case 1: return tile_beside<1>(rows, ahead);
        case 2: return tile_beside<2>(rows, ahead);
        case 3: return tile_beside<3>(rows, ahead);
        default: return tile_beside<4>(rows, ahead);
    }
}

// One k-block of w's panels for all rows, in tiles as even as they go. While the first tiles
// compute, the panels at `ahead` are fetched: a share with each, because a burst would wait.
inline void gemm_k_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t k0,
                         int64_t pairs, float* c, int64_t most_rows, const uint32_t* ahead) {
    const int64_t tiles = ceil_div(rows, most_rows);
    TileArguments tile{a.pairs + k0, a.stride, w.data + k0 * kLanes, w.stride, pairs, c,
                       k0 == 0,      ahead};
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t count = (rows + tiles - t - 1) / (tiles - t);
        const int share = !ahead || t >= w.count ? 0 : tiles == 1 ? w.count : 1;
        tile.ahead = ahead + t * w.stride;
        tile_function((int)count, w.count, share)(tile);
        tile.a += count * a.stride, tile.c += count * kWidth, rows -= count;
    }
}

// c[rows][kWidth] = a . panels: four panels at once beside the rows of one tile, else two. There each
// k-block is fetched while the one before it computes, so that memory is never idle.
inline void gemm_stream(const Activations& a, int64_t rows, const PanelGroup& w, int64_t pairs,
                        float* c) {
    const bool one_tile = rows <= kTileRows;
    const int at_once = one_tile ? kPanels : 2;
    // Even blocks: each has time to fetch all of the one after it.
    const int64_t even = ceil_div(pairs, ceil_div(pairs, kBlockPairs) * kLanes) * kLanes;
    for (int p = 0; p < w.count; p += at_once) {
        const int count = w.count - p < at_once ? w.count - p : at_once;
        const bool whole = p + 2 * at_once <= w.count;
        const PanelGroup part{w.data + p * w.stride, w.stride, count,
                              whole ? w.data + (p + at_once) * w.stride : w.next};
        for (int64_t k = 0, block; k < pairs; k += block) {
            const int64_t left = pairs - k;
            const bool body = one_tile && left > kTailPairs;
            block = body ? left - kTailPairs : left < even ? left : even;
            const uint32_t* ahead = left > block ? part.data + (k + block) * kLanes : part.next;
            gemm_k_block(a, rows, part, k, block, c + p * kLanes,
                         one_tile ? kTileRows : kPairTileRows, body ? nullptr : ahead);
        }
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
    gemm_stream(a, rows, w, pairs, c);
#endif
}

// The groups that a product's panels are handed out in: as many rounds of full groups as go evenly
// round the team, then what is left in equal smaller ones, so that the threads end together.
struct Groups {
    int64_t panels, full, size, count;  // size: panels in a group after the full ones

    Groups(const PlMatrix& w, int team) {
        panels = ceil_div(w.n, kLanes);
        full = panels / (kPanels * team) * team;
        const int64_t rest = panels - full * kPanels;
        size = ceil_div(rest, 2 * team) * 2;  // even: gate and up stay together
        count = full + (rest ? ceil_div(rest, size) : 0);
    }
    int64_t begin(int64_t group) const {
        const int64_t first = group < full ? group * kPanels : full * kPanels + (group - full) * size;
        return first < panels ? first : panels;
    }
};

inline int64_t panel_words(const PlMatrix& w) { return ceil_div(w.k, 32) * 16 * kLanes; }

// The panels that a thread meets first in a product: what to fetch while waiting for it to begin.
inline Ahead first_panels(const Worker& worker, const PlMatrix& w) {
    const Groups groups(w, worker.team.size);
    const int64_t words = panel_words(w);
    return {(const char*)(w.panels + groups.begin(worker.id) * words),
            (const char*)(w.panels + groups.begin(worker.id + 1) * words)};
}

// Runs the product over the team; epilogue(row, panel, count, c) gets each finished row of a group,
// c[count * 16], in whichever thread computed it.
template <class Epilogue>
void gemm(Worker& worker, const Activations& a, int64_t rows, const PlMatrix& w, float* scratch,
          Epilogue&& epilogue) {
    const Groups groups(w, worker.team.size);
    const int64_t words = panel_words(w), pairs = words / kLanes;
    // Row chunks only where there are too few panels to go round; weights are then read per chunk.
    int64_t chunk = rows;
    if (rows > 2 * kBlockRows && groups.count < 6 * worker.team.size) {
        chunk = ceil_div(rows, ceil_div(6 * worker.team.size, groups.count));
        chunk = ceil_div(chunk, kBlockRows) * kBlockRows;
    }
    const int64_t chunks = ceil_div(rows, chunk);
    worker.share(groups.count * chunks, [&](int64_t item, int64_t next) {
        const int64_t panel = groups.begin(item / chunks), end = groups.begin(item / chunks + 1);
        const int64_t row0 = item % chunks * chunk, row1 = row0 + chunk < rows ? row0 + chunk : rows;
        const bool more = next < groups.count * chunks;
        const PanelGroup group{w.panels + panel * words, words, (int)(end - panel),
                               more ? w.panels + groups.begin(next / chunks) * words : nullptr};
        for (int64_t r = row0; r < row1; r += kBlockRows) {
            const int64_t block = row1 - r < kBlockRows ? row1 - r : kBlockRows;
            gemm_block({a.pairs + r * a.stride, a.stride}, block, group, pairs, scratch);
            for (int64_t i = 0; i < block; i++)
                epilogue(r + i, panel, group.count, scratch + i * kWidth);
        }
    });
}

}  // namespace paceline
