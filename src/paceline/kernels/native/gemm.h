// out[rows, n] = a[rows, k] . w[n, k]: bf16 with float32 accumulators in one fixed order over k, or
// int8 with int32 accumulators, which are exact in any order.
//
// Weights are panels of 32 outputs: [n / 32][k / 2][32][2] bf16 or [n / 32][k / 4][32][4] int8, k
// padded to a multiple of 64 bytes. What follows counts words, of two or four k. Every thread has a
// run of adjacent panels, which it reads from one end to the other: one long stream of memory,
// which the hardware prefetches on AMD, and products fetch on Intel. Panels come from memory
// exactly once, and every row of the batch meets them while they sit in the core's cache. An output
// element is always the same chain of dots over k, whatever tile it is computed in (an accumulator
// that is put down between two k-blocks keeps its bits), so its bits depend on its own row and
// weights alone.
#pragma once

#include "quantize.h"
#include "team.h"

namespace paceline {

constexpr int kPanel = 2 * kLanes;        // outputs in a panel: two vectors
constexpr int kPanels = 2;                // panels in a work item, at most
constexpr int kWidth = kPanels * kPanel;  // floats in a row of the accumulator block
constexpr int kBlockRows = 192;           // rows whose accumulators stay in the L2 cache
constexpr int kBlockWords = 224;          // words of k whose panel stays in the L1 cache
#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // accumulators fill 24 of 32 registers
#else
// Of 16 half as wide registers accumulators fill 8, and weights and activations the others.
constexpr int kTileRows = 4;
#endif
// What is computed next is fetched into the L2 cache: L1 has room for what is computed now, and the
// core can wait for twice as many lines of L2.
constexpr int kNextLevel = 2;  // of __builtin_prefetch
// Fetches a line at this place among the instructions: compilers gather prefetches otherwise, and
// several at once wait for each other.
PL_INLINE void fetch_here(const void* line) {
#if defined(__x86_64__) || defined(__i386__)
    asm volatile("prefetcht1 %0" ::"m"(*(const char*)line));
#else
    __builtin_prefetch(line, 0, kNextLevel);
#endif
}
// Beside more than alone_rows() rows the hardware does not look far enough ahead: the panel's words
// are fetched so many before they are needed.
constexpr int kAheadWords = 64;
// The products of tiles, and the read loop that judges steps on Intel, fetch so many words ahead.
constexpr int kNearWords = 40;
inline bool is_intel() {
#if defined(__x86_64__) || defined(__i386__)
    static const bool intel = __builtin_cpu_is("intel");
    return intel;
#else
    return false;
#endif
}
// Beside up to so many rows AMD's hardware prefetches best alone; Intel's never does
// (docs/earlier-measurements.md, "One forward, by rows").
inline int64_t alone_rows() { return is_intel() ? 0 : 4; }

// Up to so many rows, fetches stand between the products; beside more, compilers place them better.
constexpr int kPinnedRows = 5;
// The products of so many rows keep fetches far enough apart. Beside panels of at least kLongPanel
// words fewer rows are multiplied as so many: the outputs of the slack rows are not read.
constexpr int64_t kApart = kParts == 1 ? 3 : 1, kLongPanel = 192;

// What a matrix is made of: how a word of activations meets one of weights.
struct Bf16 {
    static constexpr bool kWhole = false;  // whole numbers
    using Sums = Part;
    PL_INLINE Sums dot(Sums sums, UPart a, UPart w) { return dot2(sums, a, w); }
};
struct Int8 {
    static constexpr bool kWhole = true;
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

// Adjacent panels.
struct PanelGroup {
    const uint32_t* data;
    int64_t stride;  // uint32 words per panel
    int count;
};

struct TileArguments {
    const uint32_t* a;
    int64_t a_stride;
    const uint32_t* panel;
    int64_t words;
    float* c;               // the accumulators' bits, whatever they count in
    bool first;             // start from zero, not from c
    const uint32_t* ahead;  // vectors to fetch on the way, one behind the other
};

// Vectors of a panel whose accumulators the registers hold beside R rows.
template <int R>
constexpr int vectors_at_once() {
    return kParts == 1 || R <= 2 ? 2 : 1;
}

// R rows times V vectors of a panel over some words of k, fetching kAhead vectors a word for later.
template <class Format, int R, int V, int kAhead>
void gemm_tile(const TileArguments& t) {
    constexpr int kNow = vectors_at_once<R>();
    constexpr bool kPinned = kParts == 1 && R <= kPinnedRows;
    if constexpr (kNow < V) {
        gemm_tile<Format, R, kNow, kAhead>(t);
        TileArguments rest = t;
        rest.panel += kNow * kLanes, rest.c += kNow * kLanes;
        return gemm_tile<Format, R, V - kNow, 0>(rest);
    }
    using Sums = typename Format::Sums;
    Sums acc[R][V * kParts];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V * kParts; v++)
            acc[r][v] = t.first ? Sums{} : load_part_of<Sums>(t.c + r * kWidth + v * kPartLanes);
    const uint32_t *a = t.a, *panel = t.panel, *ahead = t.ahead;
    const int64_t a_stride = t.a_stride, words = t.words;
    for (int64_t i = 0; i < words; i++) {
        // The next tile's rows lie a stride apart, which no hardware prefetcher follows. Full tiles
        // only: in a small batch the rows are in the cache already.
        if (R == kTileRows && i % kLanes == 0)
            for (int r = 0; r < R; r++) __builtin_prefetch(a + (R + r) * a_stride + i, 0, 3);
        UPart w[V * kParts];
        for (int v = 0; v < V * kParts; v++)
            w[v] = load_part_of<UPart>(panel + i * kPanel + v * kPartLanes);
        if constexpr (!kPinned)
            for (int v = 0; v < kAhead; v++)
                __builtin_prefetch(ahead + (i * kAhead + v) * kLanes, 0, kNextLevel);
        for (int r = 0; r < R; r++) {
            const UPart x = UPart{} + a[r * a_stride + i];
            for (int v = 0; v < V * kParts; v++) acc[r][v] = Format::dot(acc[r][v], x, w[v]);
            if constexpr (kPinned)
                for (int v = r; v < kAhead; v += R) fetch_here(ahead + (i * kAhead + v) * kLanes);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V * kParts; v++)
            store_part_of(t.c + r * kWidth + v * kPartLanes, acc[r][v]);
}

using TileFunction = void (*)(const TileArguments&);

template <class Format, int kAhead, int R = 1>
TileFunction tile_of_rows(int64_t rows) {
    if constexpr (R < kTileRows)
        if (rows > R) return tile_of_rows<Format, kAhead, R + 1>(rows);
    return gemm_tile<Format, R, 2, kAhead>;
}

// One k-block of a panel for all rows, in tiles as even as they go. The first two of several tiles
// fetch the words behind it, half of them each, because a burst would wait. The halves are one
// behind the other: of every second vector, Intel fetches the one beside it as well.
template <class Format>
void gemm_k_block(const Activations& a, int64_t rows, const uint32_t* panel, int64_t k0,
                  int64_t words, float* c) {
    const int64_t tiles = ceil_div(rows, kTileRows);
    const uint32_t* from = panel + k0 * kPanel;
    TileArguments tile{a.words + k0, a.stride, from, words, c, k0 == 0, from + words * kPanel};
    if (tiles == 1) {
        tile.ahead = from + kAheadWords * kPanel;
        const bool alone = rows <= alone_rows();
        const int64_t tall = rows < kApart && words >= kLongPanel ? kApart : rows;
        return (alone ? tile_of_rows<Format, 0>(rows) : tile_of_rows<Format, 2>(tall))(tile);
    }
    for (int64_t t = 0; t < tiles; t++, tile.ahead += words * kLanes) {
        const int64_t count = (rows + tiles - t - 1) / (tiles - t);
        (t < 2 ? tile_of_rows<Format, 1>(count) : tile_of_rows<Format, 0>(count))(tile);
        tile.a += count * a.stride, tile.c += count * kWidth, rows -= count;
    }
}

// c[rows][kWidth] = a . panels. Rows of several tiles meet a k-block while it is in the L1 cache.
template <class Format>
void gemm_stream(const Activations& a, int64_t rows, const PanelGroup& w, int64_t words, float* c) {
    const int64_t blocks = rows > kTileRows ? ceil_div(words, kBlockWords) : 1;
    // Even blocks: each has time to fetch all of the one after it.
    const int64_t even = ceil_div(words, blocks * kLanes) * kLanes;
    for (int p = 0; p < w.count; p++)
        for (int64_t k = 0; k < words; k += even)
            gemm_k_block<Format>(a, rows, w.data + p * w.stride, k,
                                 words - k < even ? words - k : even, c + p * kPanel);
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

inline int64_t panel_words(const PlMatrix& w) {
    return ceil_div(w.k, w.scales ? 64 : 32) * 16 * kPanel;
}
inline int64_t panel_count(const PlMatrix& w) { return ceil_div(w.n, kPanel); }

// The first panel of thread `id`'s run of so many.
inline int64_t run_begin(int64_t panels, int id, int team) { return panels * id / team; }

// The panels that a thread meets first in a product: what to fetch while waiting for it to begin.
inline Ahead first_panels(const Worker& worker, const PlMatrix& w) {
    constexpr int64_t kFirst = 2;
    const int64_t words = panel_words(w), panels = panel_count(w);
    const int64_t begin = run_begin(panels, worker.id, worker.team.size);
    const int64_t end = run_begin(panels, worker.id + 1, worker.team.size);
    return {(const char*)(w.panels + begin * words),
            (const char*)(w.panels + (end < begin + kFirst ? end : begin + kFirst) * words)};
}

// Memory that an epilogue will write.
struct Place {
    const void* at;
    int64_t bytes;
};
inline Place floats(const float* at, int64_t count) { return {at, count * (int64_t)sizeof(float)}; }
// Up to so many rows, lines that are written soon stay in the L1 cache until then.
constexpr int64_t kSoonRows = 32;

// Fetches lines that another core has read since they were written last: a store would wait.
inline void fetch_to_write(const Place& place) {
    for (int64_t i = 0; i < place.bytes; i += 64) __builtin_prefetch((const char*)place.at + i, 1);
}

// Runs the product over the team; epilogue(row, column, count, c) gets the outputs column…column +
// count - 1 of each finished row, c[count], in whichever thread computed them. They begin at a
// whole panel, and only the last ones end within one. place(row, column, count) is what the
// epilogue will write for them. kRowSlack rows behind those of `a` may be read, and as many of
// `scratch` written.
template <class Epilogue, class PlaceOf>
void gemm(Worker& worker, const Activations& a, int64_t rows, const PlMatrix& w, float* scratch,
          Epilogue&& epilogue, PlaceOf&& place) {
    const int team = worker.team.size;
    const int64_t panel_size = panel_words(w), words = panel_size / kPanel, panels = panel_count(w);
    // Row chunks only where there are too few panels to go round; weights are then read per chunk.
    int64_t chunk = rows;
    const int64_t few = 6 * kPanels;  // panels of a thread
    if (rows > 2 * kBlockRows && panels < few * team) {
        chunk = ceil_div(rows, ceil_div(few * team, panels));
        chunk = ceil_div(chunk, kBlockRows) * kBlockRows;
    }
    const int64_t chunks = ceil_div(rows, chunk);
    auto items = [&](int run) {
        const int64_t count = run_begin(panels, run + 1, team) - run_begin(panels, run, team);
        return ceil_div(count, kPanels) * chunks;
    };
    worker.share_runs(items, [&](int run, int64_t item) {
        const int64_t panel = run_begin(panels, run, team) + item / chunks * kPanels;
        const int64_t left = run_begin(panels, run + 1, team) - panel;
        const int64_t row0 = item % chunks * chunk,
                      row1 = row0 + chunk < rows ? row0 + chunk : rows;
        const PanelGroup group{w.panels + panel * panel_size, panel_size,
                               (int)(left < kPanels ? left : kPanels)};
        const int64_t column = panel * kPanel, behind = w.n - column;
        const int64_t count = behind < group.count * kPanel ? behind : group.count * kPanel;
        if (rows <= kSoonRows)
            for (int64_t r = row0; r < row1; r++) fetch_to_write(place(r, column, count));
        for (int64_t r = row0; r < row1; r += kBlockRows) {
            const int64_t block = row1 - r < kBlockRows ? row1 - r : kBlockRows;
            const Activations part{a.words + r * a.stride, a.stride};
            if (w.scales) {
                gemm_block<Int8>(part, block, group, words, scratch);
                dequantize(scratch, kWidth, block, 2 * group.count, a.scales + r,
                           w.scales + column);
            } else {
                gemm_block<Bf16>(part, block, group, words, scratch);
            }
            for (int64_t i = 0; i < block; i++)
                epilogue(r + i, column, count, scratch + i * kWidth);
        }
    });
}

// The same where nothing is fetched to be written.
template <class Epilogue>
void gemm(Worker& worker, const Activations& a, int64_t rows, const PlMatrix& w, float* scratch,
          Epilogue&& epilogue) {
    auto nothing = [](int64_t, int64_t, int64_t) { return Place{nullptr, 0}; };
    gemm(worker, a, rows, w, scratch, epilogue, nothing);
}

}  // namespace paceline
