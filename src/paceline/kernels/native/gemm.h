// out[rows, n] = a[rows, k] . w[n, k]: bf16 with float32 accumulators in one fixed order over k, or
// int8 with int32 accumulators, which are exact in any order.
//
// Weights are panels of 16 outputs: [n / 16][k / 2][16][2] bf16 or [n / 16][k / 4][16][4] int8, k
// padded to a multiple of 64 bytes. What follows counts words, of two or four k. A work item is a
// group of up to four panels: they come from memory exactly once, and every row of the batch meets
// them while they sit in the core's cache. An output element is always the same chain of dots over
// k, whatever tile it is computed in (an accumulator that is put down between two k-blocks keeps
// its bits), so its bits depend on its own row and weights alone.
#pragma once

#include "quantize.h"
#include "team.h"

namespace paceline {

constexpr int kPanels = 4;                // panels in a work item, at most
constexpr int kWidth = kPanels * kLanes;  // floats in a row of the accumulator block
constexpr int kBlockRows = 192;           // rows whose accumulators stay in the L2 cache
constexpr int kBlockWords = 224;          // words of k whose panels stay in the L1 cache
#if defined(__AVX512F__)
// Accumulators fill 24 of 32 registers: so many rows beside four panels, so many beside two.
constexpr int kTileRows = 6, kPairTileRows = 12;
#else
// Of 16 half as wide registers accumulators fill 8, and weights and activations the others.
constexpr int kTileRows = 4, kPairTileRows = 4;
#endif
// Where the hardware prefetches best alone, the start of a group is fetched all the same: during
// the last words of the group before.
constexpr int kTailWords = 32;
// What is computed next is fetched into the L2 cache: L1 has room for what is computed now, and the
// core can wait for twice as many lines of L2.
constexpr int kNextLevel = 2;  // of __builtin_prefetch

// What a matrix is made of: how a word of activations meets one of weights. Beside up to kAloneRows
// rows the hardware prefetches best alone; panels of int8 are short streams.
struct Bf16 {
    static constexpr bool kWhole = false;  // whole numbers
    static constexpr int kAloneRows = kTileRows;
    using Sums = Part;
    PL_INLINE Sums dot(Sums sums, UPart a, UPart w) { return dot2(sums, a, w); }
};
struct Int8 {
    static constexpr bool kWhole = true;
    static constexpr int kAloneRows = 2;
    using Sums = IPart;
    PL_INLINE Sums dot(Sums sums, UPart a, UPart w) { return dot4(sums, a, w); }
};

// Row-major activations, as bf16 or as int8 with what each row was scaled by. `stride` counts
// words, padded as weights are.
struct Activations {
    const uint32_t* words;
    int64_t stride;
    const RowScale* scales = nullptr;
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
    int64_t panel_stride, words;
    float* c;               // the accumulators' bits, whatever they count in
    bool first;             // start from zero, not from c
    const uint32_t* ahead;  // panels to fetch on the way
};

// Panels whose accumulators the registers hold beside R rows, of P.
template <int R, int P>
constexpr int at_once() {
    return kParts == 1 ? P : R == 1 ? P : R == 2 && P >= 2 ? 2 : 1;
}

// R rows times P panels over some words of k, fetching kAhead panels for later.
template <class Format, int R, int P, int kAhead>
void gemm_tile(const TileArguments& t) {
    constexpr int kNow = at_once<R, P>();
    if constexpr (kNow < P) {
        gemm_tile<Format, R, kNow, kAhead ? kNow : 0>(t);
        TileArguments rest = t;
        rest.panels += kNow * t.panel_stride, rest.ahead += kNow * t.panel_stride;
        rest.c += kNow * kLanes;
        return gemm_tile<Format, R, P - kNow, kAhead == P ? P - kNow : 0>(rest);
    }
    using Sums = typename Format::Sums;
    Sums acc[R][P * kParts];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P * kParts; p++)
            acc[r][p] = t.first ? Sums{} : load_part_of<Sums>(t.c + r * kWidth + p * kPartLanes);
    const uint32_t *a = t.a, *panels = t.panels, *ahead = t.ahead;
    const int64_t a_stride = t.a_stride, panel_stride = t.panel_stride, words = t.words;
    for (int64_t i = 0; i < words; i++) {
        // The next tile's rows lie a stride apart, which no hardware prefetcher follows. Full tiles
        // only: in a small batch the rows are in the cache already.
        if (R == kPairTileRows && i % kLanes == 0)
            for (int r = 0; r < R; r++) __builtin_prefetch(a + (R + r) * a_stride + i, 0, 3);
        UPart w[P * kParts];
        for (int p = 0; p < P; p++)
            for (int part = 0; part < kParts; part++)
                w[p * kParts + part] =
                    load_part_of<UPart>(panels + p * panel_stride + i * kLanes + part * kPartLanes);
        for (int p = 0; p < kAhead; p++)
            __builtin_prefetch(ahead + p * panel_stride + i * kLanes, 0, kNextLevel);
        for (int r = 0; r < R; r++) {
            const UPart x = UPart{} + a[r * a_stride + i];
            for (int p = 0; p < P * kParts; p++) acc[r][p] = Format::dot(acc[r][p], x, w[p]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P * kParts; p++)
            store_part_of(t.c + r * kWidth + p * kPartLanes, acc[r][p]);
}

using TileFunction = void (*)(const TileArguments&);

template <class Format, int P, int kAhead, int kMost, int R = 1>
TileFunction tile_of_rows(int rows) {
    if constexpr (R < kMost)
        if (rows > R) return tile_of_rows<Format, P, kAhead, kMost, R + 1>(rows);
    return gemm_tile<Format, R, P, kAhead>;
}

// The tile for so many rows beside P panels; `ahead` panels to fetch: none, one or P.
template <class Format, int P>
TileFunction tile_beside(int rows, int ahead) {
    constexpr int kMost = P <= 2 ? kPairTileRows : kTileRows;
    if (ahead == 0) return tile_of_rows<Format, P, 0, kMost>(rows);
    if (ahead == 1) return tile_of_rows<Format, P, 1, kMost>(rows);
    return tile_of_rows<Format, P, P, kMost>(rows);
}

template <class Format>
TileFunction tile_function(int rows, int panels, int ahead) {
    switch (panels) {
        case 1: return tile_beside<Format, 1>(rows, ahead);
        case 2: return tile_beside<Format, 2>(rows, ahead);
        case 3: return tile_beside<Format, 3>(rows, ahead);
        default: return tile_beside<Format, 4>(rows, ahead);
    }
}

// One k-block of w's panels for all rows, in tiles as even as they go. While the first tiles
// compute, the panels at `ahead` are fetched: a share with each, because a burst would wait.
template <class Format>
void gemm_k_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t k0,
                  int64_t words, float* c, int64_t most_rows, const uint32_t* ahead) {
    const int64_t tiles = ceil_div(rows, most_rows);
    TileArguments tile{a.words + k0, a.stride, w.data + k0 * kLanes, w.stride, words, c,
                       k0 == 0,      ahead};
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t count = (rows + tiles - t - 1) / (tiles - t);
        const int share = !ahead || t >= w.count ? 0 : tiles == 1 ? w.count : 1;
        tile.ahead = ahead + t * w.stride;
        tile_function<Format>((int)count, w.count, share)(tile);
        tile.a += count * a.stride, tile.c += count * kWidth, rows -= count;
    }
}

// c[rows][kWidth] = a . panels: four panels at once beside the rows of one tile, else two. There
// each k-block is fetched while the one before it computes, so that memory is never idle.
template <class Format>
void gemm_stream(const Activations& a, int64_t rows, const PanelGroup& w, int64_t words, float* c) {
    const bool one_tile = rows <= kTileRows;
    const int at_once = one_tile ? kPanels : 2;
    // Even blocks: each has time to fetch all of the one after it.
    const int64_t even = ceil_div(words, ceil_div(words, kBlockWords) * kLanes) * kLanes;
    for (int p = 0; p < w.count; p += at_once) {
        const int count = w.count - p < at_once ? w.count - p : at_once;
        const bool whole = p + 2 * at_once <= w.count;
        const PanelGroup part{w.data + p * w.stride, w.stride, count,
                              whole ? w.data + (p + at_once) * w.stride : w.next};
        for (int64_t k = 0, block; k < words; k += block) {
            const int64_t left = words - k;
            const bool body = rows <= Format::kAloneRows && left > kTailWords;
            block = body ? left - kTailWords : left < even ? left : even;
            const uint32_t* ahead = left > block ? part.data + (k + block) * kLanes : part.next;
            gemm_k_block<Format>(a, rows, part, k, block, c + p * kLanes,
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
template <class Format>
void gemm_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t words, float* c) {
#ifdef PACELINE_AMX
    gemm_block_amx<Format>(a, rows, w, words, c);
#else
    gemm_stream<Format>(a, rows, w, words, c);
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
        const int64_t first =
            group < full ? group * kPanels : full * kPanels + (group - full) * size;
        return first < panels ? first : panels;
    }
};

inline int64_t panel_words(const PlMatrix& w) {
    return ceil_div(w.k, w.scales ? 64 : 32) * 16 * kLanes;
}

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
    const int64_t panel_size = panel_words(w), words = panel_size / kLanes;
    // Row chunks only where there are too few panels to go round; weights are then read per chunk.
    int64_t chunk = rows;
    if (rows > 2 * kBlockRows && groups.count < 6 * worker.team.size) {
        chunk = ceil_div(rows, ceil_div(6 * worker.team.size, groups.count));
        chunk = ceil_div(chunk, kBlockRows) * kBlockRows;
    }
    const int64_t chunks = ceil_div(rows, chunk);
    worker.share(groups.count * chunks, [&](int64_t item, int64_t next) {
        const int64_t panel = groups.begin(item / chunks), end = groups.begin(item / chunks + 1);
        const int64_t row0 = item % chunks * chunk,
                      row1 = row0 + chunk < rows ? row0 + chunk : rows;
        const bool more = next < groups.count * chunks;
        const uint32_t* after = w.panels + groups.begin(next / chunks) * panel_size;
        const PanelGroup group{w.panels + panel * panel_size, panel_size, (int)(end - panel),
                               more ? after : nullptr};
        for (int64_t r = row0; r < row1; r += kBlockRows) {
            const int64_t block = row1 - r < kBlockRows ? row1 - r : kBlockRows;
            const Activations part{a.words + r * a.stride, a.stride};
            if (w.scales) {
                gemm_block<Int8>(part, block, group, words, scratch);
                dequantize(scratch, kWidth, block, group.count, a.scales + r,
                           w.scales + panel * kLanes);
            } else {
                gemm_block<Bf16>(part, block, group, words, scratch);
            }
            for (int64_t i = 0; i < block; i++)
                epilogue(r + i, panel, group.count, scratch + i * kWidth);
        }
    });
}

}  // namespace paceline
