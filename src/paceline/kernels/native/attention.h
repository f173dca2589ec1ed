// Attention over paged KV, grouped heads, in chunks of 256 absolute positions.
//
// Every chunk yields a partial (maximum, sum, weighted values) of its own, and partials are merged
// in the order of the chunks by one formula, whether one thread walks over all of them or several
// threads share a long context. So a row's bits depend on its own position and KV alone. Masked
// tokens get probability 0 and add nothing. (Merging as in FlashAttention, Dao et al. 2022.)
#pragma once

#include <algorithm>

#include "gemm.h"
#include "softmax.h"

namespace paceline {

constexpr int kBlockTokens = 16;
constexpr int kChunkTokens = 256;
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
constexpr int kAttentionRows = 96;  // query rows x heads of the group in a work item, about
#if defined(__AVX512F__)
constexpr int kScoreRows = 6, kScoreBlocks = 4;
#else
constexpr int kScoreRows = 2, kScoreBlocks = 2;
#endif

// What a layer's rows see of their sequence, whose positions first…last are there.
struct Sight {
    int64_t window, bidirectional;  // as in PlLayer

    int64_t low(int64_t position, int64_t first) const {
        const int64_t reach = position - window + 1;
        return window && reach > first ? reach : first;
    }
    int64_t high(int64_t position, int64_t last) const {
        if (!bidirectional) return position;
        const int64_t reach = position + window - 1;
        return window && reach < last ? reach : last;
    }
};

// Query rows q0…q1-1 of one sequence against one KV head, over chunks c0…c1-1. `slot` is where
// the first chunk's partials go when items share these rows; -1 when this item finishes them.
struct AttentionItem {
    int32_t sequence, kv_head, q0, q1, c0, c1;
    int64_t slot;
    int32_t first, last;  // of the sequence
};

struct AttentionShape {
    int64_t kv_heads, group, head_dim, rows;
    float scale;
    Sight sight;
    const uint16_t* queries;  // [kv_heads][rows][group][head_dim] bf16
    const int32_t* positions;
    uint16_t* out;  // [rows][out_stride] bf16, heads side by side
    int64_t out_stride;
    float* partials;  // per slot: [rows of the item][head_dim + 2]
};

// Words of a block's keys for one KV head. Its values, as many, lie behind them: attention needs
// both, and memory is read faster in one piece.
inline int64_t key_words(int64_t head_dim) { return head_dim * kBlockTokens / 2; }

// The blocks of a sequence for one KV head.
struct KVBlocks {
    const uint32_t* first;  // the head's keys in block 0 of all
    const int32_t* table;
    int64_t stride, words;  // of a block, and of its keys for the head

    const uint32_t* key(int64_t block) const { return first + table[block] * stride; }
    const uint32_t* value(int64_t block) const { return key(block) + words; }
};

// s[R][B * 16] = q . K over B blocks of 16 tokens. `ahead`: blocks to fetch on the way, or null.
template <int R, int B, bool kAhead>
void score_tile(const uint32_t* q, int64_t q_stride, const uint32_t* const* k,
                const uint32_t* const* ahead, int64_t pairs, float* s) {
    Vec acc[R][B] = {};
    for (int64_t i = 0; i < pairs; i++) {
        UVec w[B];
        for (int b = 0; b < B; b++) w[b] = load_u(k[b] + i * kLanes);
        if (kAhead)
            for (int b = 0; b < B; b++) __builtin_prefetch(ahead[b] + i * kLanes, 0, 2);
        for (int r = 0; r < R; r++) {
            UVec x = splat_u(q[r * q_stride + i]);
            for (int b = 0; b < B; b++) acc[r][b] = dot2(acc[r][b], x, w[b]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) store(s + r * kChunkTokens + b * kLanes, acc[r][b]);
}

// o[R][C * 16] = p . V over whole blocks, from zero, for the columns from d on.
template <int R, int C, bool kAhead>
void value_tile(const uint32_t* p, const uint32_t* const* v, const uint32_t* const* ahead,
                int64_t blocks, int64_t head_dim, int64_t d, float* o) {
    Vec acc[R][C] = {};
    for (int64_t block = 0; block < blocks; block++) {
        const uint32_t* x = p + block * (kBlockTokens / 2);
        for (int i = 0; i < kBlockTokens / 2; i++) {
            const int64_t at = i * head_dim + d;
            UVec w[C];
            for (int c = 0; c < C; c++) w[c] = load_u(v[block] + at + c * kLanes);
            for (int c = 0; kAhead && c < C; c++)
                __builtin_prefetch(ahead[block] + at + c * kLanes, 0, 2);
            for (int r = 0; r < R; r++) {
                UVec weight = splat_u(x[r * (kChunkTokens / 2) + i]);
                for (int c = 0; c < C; c++) acc[r][c] = dot2(acc[r][c], weight, w[c]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(o + r * head_dim + d + c * kLanes, acc[r][c]);
}

// A chunk's blocks of keys and values, and the keys that are read after it: those of the item's
// next chunk, of the next item's first one, or this one's again where there is none.
struct ChunkBlocks {
    const uint32_t *keys[kChunkBlocks], *values[kChunkBlocks], *next_keys[kChunkBlocks];
    int64_t count;
};

template <int R, bool kAhead>
void score_rows(const uint32_t* q, int64_t pairs, const ChunkBlocks& kv, float* s) {
    constexpr int kWide = kScoreBlocks;
    int64_t b = 0;
    for (; b + kWide <= kv.count; b += kWide)
        score_tile<R, kWide, kAhead>(q, pairs, kv.keys + b, kv.values + b, pairs, s + b * kLanes);
    for (; b < kv.count; b++)
        score_tile<R, 1, kAhead>(q, pairs, kv.keys + b, kv.values + b, pairs, s + b * kLanes);
}

template <int R, bool kAhead>
void value_rows(const uint32_t* p, const ChunkBlocks& kv, int64_t head_dim, float* o) {
    constexpr int kWide = kScoreBlocks;  // columns of 16 at once
    int64_t d = 0;
    for (; d + kWide * kLanes <= head_dim; d += kWide * kLanes)
        value_tile<R, kWide, kAhead>(p, kv.values, kv.next_keys, kv.count, head_dim, d, o);
    for (; d < head_dim; d += kLanes)
        value_tile<R, 1, kAhead>(p, kv.values, kv.next_keys, kv.count, head_dim, d, o);
}

// Runs Tile<R, ahead>::run(row, context) over m rows, R at most kScoreRows; the first tile fetches.
template <template <int, bool> class Tile, int R = 1, class Context>
void run_tile(int64_t rows, int64_t first, const Context& context) {
    if constexpr (R < kScoreRows)
        if (rows > R) return run_tile<Tile, R + 1>(rows, first, context);
    first ? Tile<R, false>::run(first, context) : Tile<R, true>::run(first, context);
}
template <template <int, bool> class Tile, class Context>
void for_row_tiles(int64_t m, const Context& context) {
    for (int64_t tiles = ceil_div(m, kScoreRows), row = 0; tiles > 0; tiles--) {
        const int64_t rows = ceil_div(m - row, tiles);
        run_tile<Tile>(rows, row, context);
        row += rows;
    }
}

// Query rows in a work item, so that rows x heads of the group come to about kAttentionRows.
inline int64_t item_queries(int64_t group) {
    return group < kAttentionRows ? kAttentionRows / group : 1;
}

// Rows of scratch for m query rows: whole tiles.
inline int64_t whole_tiles(int64_t m) { return ceil_div(m, kLanes) * kLanes; }

// Scratch of one thread, in floats.
inline int64_t attention_scratch(int64_t group, int64_t head_dim) {
    const int64_t m = whole_tiles(item_queries(group) * group);
    return m * (kChunkTokens + kChunkTokens / 2 + 2 * head_dim + 4);
}

// The positions that row m / group of an item sees.
struct Span {
    int64_t low, high;

    Span(const AttentionShape& shape, const AttentionItem& item, int64_t m) {
        const int64_t position = shape.positions[item.q0 + m / shape.group];
        low = shape.sight.low(position, item.first), high = shape.sight.high(position, item.last);
    }
    bool reaches(int64_t chunk) const {
        return low < (chunk + 1) * kChunkTokens && high >= chunk * kChunkTokens;
    }
    bool begins(int64_t chunk) const { return low / kChunkTokens == chunk; }
};

inline uint16_t* output_row(const AttentionShape& shape, const AttentionItem& item, int64_t m) {
    int64_t row = item.q0 + m / shape.group, head = item.kv_head * shape.group + m % shape.group;
    return shape.out + row * shape.out_stride + head * shape.head_dim;
}

// One chunk of an item: what the row tiles need.
struct ChunkWork {
    const uint32_t* q;
    float* scores;      // [m][kChunkTokens]
    uint32_t* weights;  // [m][kChunkTokens / 2] pairs of bf16
    float* out;         // [m][head_dim]
    int64_t head_dim;
    ChunkBlocks blocks;
};
template <int R, bool kAhead>
struct ScoreTile {
    static void run(int64_t row, const ChunkWork& work) {
        const int64_t pairs = work.head_dim / 2;
        score_rows<R, kAhead>(work.q + row * pairs, pairs, work.blocks,
                              work.scores + row * kChunkTokens);
    }
};
template <int R, bool kAhead>
struct ValueTile {
    static void run(int64_t row, const ChunkWork& work) {
        value_rows<R, kAhead>(work.weights + row * (kChunkTokens / 2), work.blocks, work.head_dim,
                              work.out + row * work.head_dim);
    }
};

}  // namespace paceline

#ifdef PACELINE_AMX
#include "attention_amx.h"
#endif

namespace paceline {

#ifdef PACELINE_AMX
// Every row of a model goes the same way, so that its bits do not depend on the batch.
inline bool fits_tiles(int64_t head_dim) { return head_dim % (2 * kLanes) == 0; }
#else
struct AttentionTiles {
    AttentionTiles() {}
    ~AttentionTiles() {}
};
#endif

// The two products of m rows with a chunk.
inline void chunk_scores(int64_t m, const ChunkWork& work) {
#ifdef PACELINE_AMX
    if (fits_tiles(work.head_dim)) return amx_scores(m, work);
#endif
    for_row_tiles<ScoreTile>(m, work);
}
inline void chunk_values(int64_t m, const ChunkWork& work) {
#ifdef PACELINE_AMX
    if (fits_tiles(work.head_dim)) return amx_values(m, work);
#endif
    for_row_tiles<ValueTile>(m, work);
}

// `count` blocks of a chunk in a sequence of `total` blocks.
inline void locate_blocks(const KVBlocks& kv, int64_t chunk, int64_t count, int64_t total,
                          ChunkBlocks& blocks) {
    blocks.count = count;
    for (int64_t b = 0; b < count; b++) {
        const int64_t block = chunk * kChunkBlocks + b, next = block + kChunkBlocks;
        blocks.keys[b] = kv.key(block);
        blocks.values[b] = kv.value(block);
        blocks.next_keys[b] = kv.key(next < total ? next : block);
    }
}

// The item that the same thread is likely to take next. Short sequences are one chunk each, and
// their keys would otherwise come from memory while the thread waits.
struct NextItem {
    const AttentionItem* item;  // null when there is none
    KVBlocks kv;

    void locate(const AttentionShape& shape, ChunkBlocks& blocks) const {
        if (!item) return;
        const int64_t last_row = (item->q1 - item->q0) * shape.group - 1;
        const int64_t last = Span(shape, *item, last_row).high / kBlockTokens;
        for (int64_t b = 0; b < blocks.count; b++) {
            const int64_t block = item->c0 * kChunkBlocks + b;
            blocks.next_keys[b] = kv.key(block < last ? block : last);
        }
    }
};

inline void attention_item(const AttentionShape& shape, const AttentionItem& item,
                           const KVBlocks& kv, const NextItem& next, float* scratch) {
    const int64_t dim = shape.head_dim, group = shape.group, m = (item.q1 - item.q0) * group;
    ChunkWork work;
    work.q = (const uint32_t*)(shape.queries + (item.kv_head * shape.rows + item.q0) * group * dim);
    work.head_dim = dim;
    const int64_t whole = whole_tiles(m);
    work.scores = scratch;
    work.weights = (uint32_t*)(work.scores + whole * kChunkTokens);
    work.out = (float*)(work.weights + whole * (kChunkTokens / 2));
    float* out = work.out + whole * dim;
    Partial* running = (Partial*)(out + m * dim);
    Partial* partial = running + m;
    const int64_t last = Span(shape, item, m - 1).high;
    const float scale = shape.scale * 1.44269504f;  // log2(e): weights are powers of two
    for (int64_t c = item.c0; c < item.c1; c++) {
        const int64_t start = c * kChunkTokens;
        const int64_t tokens = last + 1 - start < kChunkTokens ? last + 1 - start : kChunkTokens;
        const int64_t blocks = ceil_div(tokens, kBlockTokens);
        locate_blocks(kv, c, blocks, last / kBlockTokens + 1, work.blocks);
        if (c == item.c1 - 1) next.locate(shape, work.blocks);
        chunk_scores(m, work);
        auto seen = [&](const Span& span) {
            return SeenTokens(std::max<int64_t>(span.low - start, 0),
                              std::min(span.high + 1 - start, tokens));
        };
        // All maxima come first, so that no row waits for its own.
        for (int64_t i = 0; i < m; i++) {
            const Span span(shape, item, i);
            if (span.reaches(c))
                partial[i].maximum =
                    largest_seen(work.scores + i * kChunkTokens, seen(span)) * scale;
        }
        for (int64_t i = 0; i < m; i++) {
            const Span span(shape, item, i);
            uint16_t* p = (uint16_t*)(work.weights + i * (kChunkTokens / 2));
            if (span.reaches(c))
                partial[i].sum = weigh_row(work.scores + i * kChunkTokens, seen(span), blocks,
                                           scale, partial[i].maximum, p);
            else  // out of this row's sight: its tile mates still need defined weights
                memset(p, 0, blocks * kBlockTokens * sizeof(uint16_t));
        }
        chunk_values(m, work);
        for (int64_t i = 0; i < m; i++) {
            const Span span(shape, item, i);
            if (!span.reaches(c)) continue;
            const float* values = work.out + i * dim;
            if (item.slot < 0) {
                merge_partial(span.begins(c), running[i], out + i * dim, partial[i], values, dim);
            } else {
                float* to = shape.partials + (item.slot + (c - item.c0) * m + i) * (dim + 2);
                memcpy(to, &partial[i], sizeof(Partial));
                memcpy(to + 2, values, dim * sizeof(float));
            }
        }
    }
    if (item.slot < 0)
        for (int64_t i = 0; i < m; i++)
            finish_row(running[i], out + i * dim, output_row(shape, item, i), dim);
}

// Merges the partials of rows whose chunks were shared: `item` spans all of their chunks.
inline void combine_item(const AttentionShape& shape, const AttentionItem& item, float* scratch) {
    const int64_t dim = shape.head_dim, m = (item.q1 - item.q0) * shape.group;
    for (int64_t i = 0; i < m; i++) {
        const Span span(shape, item, i);
        Partial running;
        for (int64_t c = item.c0; c < item.c1; c++) {
            if (!span.reaches(c)) continue;
            const float* from = shape.partials + (item.slot + (c - item.c0) * m + i) * (dim + 2);
            Partial chunk;
            memcpy(&chunk, from, sizeof chunk);
            merge_partial(span.begins(c), running, scratch, chunk, from + 2, dim);
        }
        finish_row(running, scratch, output_row(shape, item, i), dim);
    }
}

}  // namespace paceline
