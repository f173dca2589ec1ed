// Attention's two products on AMX tiles: 16 query rows (rows x heads of the group) times 16 tokens,
// then times 16 columns of the values.
//
// A block of keys is a tile of weights as it lies in the cache: 16 words of two dimensions each,
// beside 16 tokens. Its values are half a tile, 8 pairs of tokens, so the second product works with
// half tiles. Tiles are always whole: what the slack rows hold ends up in slack rows.
#pragma once

namespace paceline {

// Tiles 0-3 are sums, 4 queries, 5 keys, 6 weights (8 words of a row), 7 values (8 rows).
struct AttentionTiles {
    AttentionTiles() { amx_configure(true); }
    ~AttentionTiles() { amx_configure(); }
};

constexpr int64_t kKeyBytes = kBlockTokens * sizeof(uint32_t);  // stride of a tile of keys

inline void fetch_lines(const uint32_t* from, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++) __builtin_prefetch(from + i * kLanes, 0, 2);
}

// s[16][count * 16] = q . K over up to four blocks. `ahead`: blocks to fetch on the way, or null.
inline void amx_score_tile(const uint32_t* q, int64_t pairs, const uint32_t* const* k,
                           int64_t count, const uint32_t* const* ahead, float* s) {
    using Format = Bf16;
    const int64_t q_bytes = pairs * 4, s_bytes = kChunkTokens * sizeof(float);
    PL_TILE_ZERO(0);
    PL_TILE_ZERO(1);
    PL_TILE_ZERO(2);
    PL_TILE_ZERO(3);
    for (int64_t i = 0; i < pairs; i += 16) {
        PL_TILE_LOAD(4, q + i, q_bytes);
        PL_TILE_LOAD(5, k[0] + i * kLanes, kKeyBytes);
        PL_TILE_DOT(0, 4, 5);
        if (count > 1) {
            PL_TILE_LOAD(5, k[1] + i * kLanes, kKeyBytes);
            PL_TILE_DOT(1, 4, 5);
        }
        if (count > 2) {
            PL_TILE_LOAD(5, k[2] + i * kLanes, kKeyBytes);
            PL_TILE_DOT(2, 4, 5);
        }
        if (count > 3) {
            PL_TILE_LOAD(5, k[3] + i * kLanes, kKeyBytes);
            PL_TILE_DOT(3, 4, 5);
        }
        for (int64_t b = 0; ahead && b < count; b++) fetch_lines(ahead[b], i, 16);
    }
    PL_TILE_STORE(0, s, s_bytes);
    if (count > 1) PL_TILE_STORE(1, s + kLanes, s_bytes);
    if (count > 2) PL_TILE_STORE(2, s + 2 * kLanes, s_bytes);
    if (count > 3) PL_TILE_STORE(3, s + 3 * kLanes, s_bytes);
}

// o[16][head_dim] = p . V over a chunk's blocks, from zero, for up to four runs of 16 columns from
// d on.
inline void amx_value_tile(const uint32_t* p, const ChunkBlocks& kv, int64_t head_dim, int64_t d,
                           bool fetch, float* o) {
    using Format = Bf16;
    constexpr int64_t kPairs = kBlockTokens / 2;
    const int64_t p_bytes = kChunkTokens / 2 * 4, bytes = head_dim * 4;
    const int64_t count = (head_dim - d) / kLanes;
    PL_TILE_ZERO(0);
    PL_TILE_ZERO(1);
    PL_TILE_ZERO(2);
    PL_TILE_ZERO(3);
    for (int64_t b = 0; b < kv.count; b++) {
        const uint32_t* v = kv.values[b] + d;
        PL_TILE_LOAD(6, p + b * kPairs, p_bytes);
        PL_TILE_LOAD(7, v, bytes);
        PL_TILE_DOT(0, 6, 7);
        if (count > 1) {
            PL_TILE_LOAD(7, v + kLanes, bytes);
            PL_TILE_DOT(1, 6, 7);
        }
        if (count > 2) {
            PL_TILE_LOAD(7, v + 2 * kLanes, bytes);
            PL_TILE_DOT(2, 6, 7);
        }
        if (count > 3) {
            PL_TILE_LOAD(7, v + 3 * kLanes, bytes);
            PL_TILE_DOT(3, 6, 7);
        }
        if (fetch) fetch_lines(kv.next_keys[b], 0, head_dim / 2);
    }
    float* to = o + d;
    PL_TILE_STORE(0, to, bytes);
    if (count > 1) PL_TILE_STORE(1, to + kLanes, bytes);
    if (count > 2) PL_TILE_STORE(2, to + 2 * kLanes, bytes);
    if (count > 3) PL_TILE_STORE(3, to + 3 * kLanes, bytes);
}

inline void amx_scores(int64_t m, const ChunkWork& work) {
    const int64_t pairs = work.head_dim / 2;
    const ChunkBlocks& kv = work.blocks;
    for (int64_t row = 0; row < m; row += 16)
        for (int64_t b = 0; b < kv.count; b += 4)
            amx_score_tile(work.q + row * pairs, pairs, kv.keys + b,
                           std::min<int64_t>(4, kv.count - b), row ? nullptr : kv.values + b,
                           work.scores + row * kChunkTokens + b * kLanes);
}

inline void amx_values(int64_t m, const ChunkWork& work) {
    for (int64_t row = 0; row < m; row += 16)
        for (int64_t d = 0; d < work.head_dim; d += 4 * kLanes)
            amx_value_tile(work.weights + row * (kChunkTokens / 2), work.blocks, work.head_dim, d,
                           row == 0 && d == 0, work.out + row * work.head_dim);
}

}  // namespace paceline
