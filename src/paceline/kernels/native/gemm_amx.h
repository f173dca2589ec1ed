// The matrix product on AMX tiles: 16 rows times 16 outputs over 32 k (bf16) or 64 k (int8)
// per instruction.
//
// One row takes the same instructions as 32, so the bits stay with the row. Tiles are always whole:
// activations have slack rows behind them, whose results land in slack rows that nobody reads.
#pragma once

#include "gemm.h"

#ifdef PACELINE_AMX_EMULATED
namespace paceline {
// The tile instructions acted out, for testing this file on machines without them.
struct EmulatedTile {
    float c[16][16];
};
inline thread_local EmulatedTile emulated_tiles[8];
inline thread_local int emulated_rows[8], emulated_words[8];  // of a row

inline void emulate_load(int tile, const void* from, int64_t stride) {
    for (int r = 0; r < emulated_rows[tile]; r++)
        memcpy(emulated_tiles[tile].c[r], (const char*)from + r * stride, 4 * emulated_words[tile]);
}
inline void emulate_store(int tile, void* to, int64_t stride) {
    for (int r = 0; r < 16; r++) memcpy((char*)to + r * stride, emulated_tiles[tile].c[r], 64);
}
template <class Format>
void emulate_dot(int c, int a, int b) {
    for (int r = 0; r < 16; r++) {
        auto sums = (typename Format::Sums)load(emulated_tiles[c].c[r]);
        for (int k = 0; k < emulated_words[a]; k++) {
            uint32_t word;
            memcpy(&word, &emulated_tiles[a].c[r][k], 4);
            sums = Format::dot(sums, splat_u(word), (UVec)load(emulated_tiles[b].c[k]));
        }
        store(emulated_tiles[c].c[r], (Vec)sums);
    }
}
inline bool amx_prepare() { return true; }
inline void amx_configure(bool attention = false) {
    for (int t = 0; t < 8; t++) emulated_rows[t] = 16, emulated_words[t] = 16;
    if (attention) emulated_words[6] = 8, emulated_rows[7] = 8;
}
inline void amx_release() {}
}  // namespace paceline
#define PL_TILE_ZERO(t) emulated_tiles[t] = {}
#define PL_TILE_LOAD(t, from, stride) emulate_load(t, from, stride)
#define PL_TILE_STORE(t, to, stride) emulate_store(t, to, stride)
#define PL_TILE_DOT(c, a, b) emulate_dot<Format>(c, a, b)
#else
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
namespace paceline {
// Linux hands out the tile registers per process, on request (arch_prctl, xstate.rst).
inline bool amx_prepare() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return granted;
}
// All tiles whole; or for attention, tile 6 with half its columns and tile 7 with half its rows.
inline void amx_configure(bool attention = false) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    if (attention) config.bytes[6] = 32, config.rows[7] = 8;
    asm volatile("" : "+m"(config));  // GCC's intrinsic names its first 8 bytes only as read
    _tile_loadconfig(&config);
}
inline void amx_release() { _tile_release(); }
}  // namespace paceline
#define PL_TILE_ZERO(t) _tile_zero(t)
#define PL_TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define PL_TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define PL_TILE_DOT(c, a, b)          \
    do {                              \
        if constexpr (Format::kWhole) \
            _tile_dpbsud(c, a, b);    \
        else                          \
            _tile_dpbf16ps(c, a, b);  \
    } while (0)
#endif

namespace paceline {

constexpr int64_t kTileWords = 16 * kPanel;              // from 16 words of a panel to the next
constexpr int64_t kPanelBytes = kPanel * sizeof(float);  // stride of a tile's rows within a panel
constexpr int64_t kResultBytes = kWidth * sizeof(float);

// Up to 16 rows times one or two panels. Accumulators 0-3, activations 4, weights 5 and 6.
template <class Format>
void amx_flat(const uint32_t* a, int64_t a_bytes, const PanelGroup& w, int64_t tiles, float* c) {
    const uint32_t *w0 = w.data, *w1 = w0 + w.stride;
    const bool both = w.count > 1;
    PL_TILE_ZERO(0);
    PL_TILE_ZERO(1);
    PL_TILE_ZERO(2);
    PL_TILE_ZERO(3);
    for (int64_t i = 0; i < tiles; i++) {
        PL_TILE_LOAD(4, a + i * 16, a_bytes);
        PL_TILE_LOAD(5, w0 + i * kTileWords, kPanelBytes);
        PL_TILE_DOT(0, 4, 5);
        PL_TILE_LOAD(6, w0 + i * kTileWords + kLanes, kPanelBytes);
        PL_TILE_DOT(1, 4, 6);
        if (!both) continue;
        PL_TILE_LOAD(5, w1 + i * kTileWords, kPanelBytes);
        PL_TILE_DOT(2, 4, 5);
        PL_TILE_LOAD(6, w1 + i * kTileWords + kLanes, kPanelBytes);
        PL_TILE_DOT(3, 4, 6);
    }
    PL_TILE_STORE(0, c, kResultBytes);
    PL_TILE_STORE(1, c + kLanes, kResultBytes);
    if (!both) return;
    PL_TILE_STORE(2, c + 2 * kLanes, kResultBytes);
    PL_TILE_STORE(3, c + 3 * kLanes, kResultBytes);
}

// 32 rows times a panel: accumulators 0-3, activations 4 and 5, weights 6 and 7.
template <class Format>
void amx_square(const uint32_t* a, int64_t a_bytes, const uint32_t* w, int64_t tiles, float* c) {
    const uint32_t* lower = a + 4 * a_bytes;  // 16 rows on, in words
    PL_TILE_ZERO(0);
    PL_TILE_ZERO(1);
    PL_TILE_ZERO(2);
    PL_TILE_ZERO(3);
    for (int64_t i = 0; i < tiles; i++) {
        PL_TILE_LOAD(4, a + i * 16, a_bytes);
        PL_TILE_LOAD(6, w + i * kTileWords, kPanelBytes);
        PL_TILE_DOT(0, 4, 6);
        PL_TILE_LOAD(5, lower + i * 16, a_bytes);
        PL_TILE_DOT(2, 5, 6);
        PL_TILE_LOAD(7, w + i * kTileWords + kLanes, kPanelBytes);
        PL_TILE_DOT(1, 4, 7);
        PL_TILE_DOT(3, 5, 7);
    }
    float* under = c + 16 * kWidth;
    PL_TILE_STORE(0, c, kResultBytes);
    PL_TILE_STORE(1, c + kLanes, kResultBytes);
    PL_TILE_STORE(2, under, kResultBytes);
    PL_TILE_STORE(3, under + kLanes, kResultBytes);
}

template <class Format>
void gemm_block_amx(const Activations& a, int64_t rows, const PanelGroup& w, int64_t words,
                    float* c) {
    const int64_t bytes = a.stride * 4, tiles = words / 16;
    for (int64_t r = 0; r < rows; r += 32) {
        const uint32_t* x = a.words + r * a.stride;
        if (rows - r <= 16) {
            amx_flat<Format>(x, bytes, w, tiles, c + r * kWidth);
            return;
        }
        for (int p = 0; p < w.count; p++)
            amx_square<Format>(x, bytes, w.data + p * w.stride, tiles, c + r * kWidth + p * kPanel);
    }
}

}  // namespace paceline
