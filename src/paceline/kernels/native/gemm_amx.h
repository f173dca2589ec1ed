// The matrix product on AMX tiles: 16 rows times 16 outputs over 32 k (bf16) or 64 k (int8)
// per instruction.
//
// Tiles are always whole: activations have slack rows behind them, whose results land in slack rows
// that nobody reads.
//
// A tile instruction on bf16 adds up the products of a word's first k and those of its second, over
// its 16 words, and then their sum to the accumulator; subnormal numbers are zeros to it (TDPBF16PS
// in Intel's Software Developer's Manual). A few rows do the same with vectors, which wait less for
// memory, so the bits stay with the row. Sums of int8 are exact in any order.
#pragma once

#include <immintrin.h>

#include "gemm.h"

namespace paceline {

// x * y + z, rounded once.
PL_INLINE Vec fused(Vec x, Vec y, Vec z) {
    return (Vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
}

}  // namespace paceline

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
        Vec even = {}, odd = {};
        for (int k = 0; k < emulated_words[a]; k++) {
            uint32_t word;
            memcpy(&word, &emulated_tiles[a].c[r][k], 4);
            const UVec x = splat_u(word), w = (UVec)load(emulated_tiles[b].c[k]);
            if constexpr (Format::kWhole) {
                sums = Format::dot(sums, x, w);
            } else {
                even = fused(low_half(x), low_half(w), even);
                odd = fused(high_half(x), high_half(w), odd);
            }
        }
        if constexpr (!Format::kWhole) sums += even + odd;
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

// While it lives, a thread has its tiles, and its vectors too count subnormal numbers as zeros.
class TileMode {
  public:
    TileMode() : before_(_mm_getcsr()) {
        constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZeros = 0x0040;
        _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZeros);
        amx_configure();
    }
    ~TileMode() {
        amx_release();
        _mm_setcsr(before_);
    }
    TileMode(const TileMode&) = delete;
    TileMode& operator=(const TileMode&) = delete;

  private:
    const unsigned before_;
};

constexpr int64_t kTileWords = 16 * kPanel;              // from 16 words of a panel to the next
constexpr int64_t kPanelBytes = kPanel * sizeof(float);  // stride of a tile's rows within a panel
constexpr int64_t kResultBytes = kWidth * sizeof(float);

// Some steps of k of a panel beside some rows: what to multiply, and what to fetch on the way.
struct TileSteps {
    const uint32_t* a;
    int64_t a_bytes;  // from a row to the next
    const uint32_t* w;
    int64_t tiles;
    float* c;               // the accumulators' bits, whatever they count in
    bool first;             // start from zero, not from c
    const uint32_t* ahead;  // lines to fetch into the L2 cache, one behind the other
    int64_t lines;          // so many at each step
};

// A quarter of the fetches of a step: the first rows of a panel (`kFirst`) fetch its words, others
// the words of the next panel, all with the first quarter. A tile waits for the last of its lines,
// and fetches that follow each other too closely wait as well, so empty instructions stand between.
template <bool kFirst>
PL_INLINE void fetch_quarter(const TileSteps& t, int64_t i, int64_t quarter) {
    if constexpr (kFirst) {
        const uint32_t* from = t.w + i * kTileWords + kNearWords * kPanel + quarter * 8 * kLanes;
#pragma GCC unroll 8
        for (int64_t l = 0; l < 8; l++) {
            fetch_here(from + l * kLanes);
            asm volatile("nop\n\tnop\n\tnop");
        }
    } else if (quarter == 0) {
        const uint32_t* from = t.ahead + i * t.lines * kLanes;
        for (int64_t l = 0; l < t.lines; l++) __builtin_prefetch(from + l * kLanes, 0, kNextLevel);
    }
}

// Accumulator `tile` as the block of k before left it.
#define PL_TILE_BEGIN(tile, from)                   \
    do {                                            \
        if (t.first)                                \
            PL_TILE_ZERO(tile);                     \
        else                                        \
            PL_TILE_LOAD(tile, from, kResultBytes); \
    } while (0)

// Up to 16 rows: accumulators 0 and 1, activations 4, weights 5 and 6.
template <class Format, bool kFirst>
void amx_flat(const TileSteps& t) {
    PL_TILE_BEGIN(0, t.c);
    PL_TILE_BEGIN(1, t.c + kLanes);
    for (int64_t i = 0; i < t.tiles; i++) {
        const uint32_t* w = t.w + i * kTileWords;
        PL_TILE_LOAD(4, t.a + i * 16, t.a_bytes);
        fetch_quarter<kFirst>(t, i, 0);
        PL_TILE_LOAD(5, w, kPanelBytes);
        fetch_quarter<kFirst>(t, i, 1);
        PL_TILE_DOT(0, 4, 5);
        fetch_quarter<kFirst>(t, i, 2);
        PL_TILE_LOAD(6, w + kLanes, kPanelBytes);
        fetch_quarter<kFirst>(t, i, 3);
        PL_TILE_DOT(1, 4, 6);
    }
    PL_TILE_STORE(0, t.c, kResultBytes);
    PL_TILE_STORE(1, t.c + kLanes, kResultBytes);
}

// 32 rows: accumulators 0-3, activations 4 and 5, weights 6 and 7.
template <class Format, bool kFirst>
void amx_square(const TileSteps& t) {
    const uint32_t* lower = t.a + 4 * t.a_bytes;  // 16 rows on, in words
    float* under = t.c + 16 * kWidth;
    PL_TILE_BEGIN(0, t.c);
    PL_TILE_BEGIN(1, t.c + kLanes);
    PL_TILE_BEGIN(2, under);
    PL_TILE_BEGIN(3, under + kLanes);
    for (int64_t i = 0; i < t.tiles; i++) {
        const uint32_t* w = t.w + i * kTileWords;
        PL_TILE_LOAD(4, t.a + i * 16, t.a_bytes);
        fetch_quarter<kFirst>(t, i, 0);
        PL_TILE_LOAD(6, w, kPanelBytes);
        fetch_quarter<kFirst>(t, i, 1);
        PL_TILE_DOT(0, 4, 6);
        PL_TILE_LOAD(5, lower + i * 16, t.a_bytes);
        fetch_quarter<kFirst>(t, i, 2);
        PL_TILE_DOT(2, 5, 6);
        PL_TILE_LOAD(7, w + kLanes, kPanelBytes);
        fetch_quarter<kFirst>(t, i, 3);
        PL_TILE_DOT(1, 4, 7);
        PL_TILE_DOT(3, 5, 7);
    }
    PL_TILE_STORE(0, t.c, kResultBytes);
    PL_TILE_STORE(1, t.c + kLanes, kResultBytes);
    PL_TILE_STORE(2, under, kResultBytes);
    PL_TILE_STORE(3, under + kLanes, kResultBytes);
}
#undef PL_TILE_BEGIN

// Up to so many rows of bf16 and of int8 go through vectors, which wait less for memory than tiles
// do (docs/earlier-measurements.md, "One forward, by rows").
constexpr int kFewRows = 2, kFewRowsInt8 = 4;

// kFewRows rows times a panel, as tiles multiply them. One row is multiplied as two, since fetches
// are then far enough apart.
inline void amx_few(const TileSteps& t) {
    static_assert(kFewRows == 2, "a word has two lines");
    Vec sums[kFewRows][2] = {};
    if (!t.first)
        for (int r = 0; r < kFewRows; r++)
            for (int v = 0; v < 2; v++) sums[r][v] = load(t.c + r * kWidth + v * kLanes);
    const int64_t stride = t.a_bytes / 4;
    const uint32_t *a = t.a, *w = t.w;
    for (int64_t i = 0; i < t.tiles; i++) {
        Vec even[kFewRows][2] = {}, odd[kFewRows][2] = {};
        for (int64_t k = 0; k < 16; k++, a++, w += kPanel) {
            Vec low[2], high[2];
            for (int v = 0; v < 2; v++) {
                const UVec words = load_u(w + v * kLanes);
                low[v] = low_half(words), high[v] = high_half(words);
            }
            for (int r = 0; r < kFewRows; r++) {
                const UVec x = splat_u(a[r * stride]);
                for (int v = 0; v < 2; v++) {
                    even[r][v] = fused(low_half(x), low[v], even[r][v]);
                    odd[r][v] = fused(high_half(x), high[v], odd[r][v]);
                }
                fetch_here(w + kNearWords * kPanel + r * kLanes);  // a line for each row
            }
        }
        for (int r = 0; r < kFewRows; r++)
            for (int v = 0; v < 2; v++) sums[r][v] += even[r][v] + odd[r][v];
    }
    for (int r = 0; r < kFewRows; r++)
        for (int v = 0; v < 2; v++) store(t.c + r * kWidth + v * kLanes, sums[r][v]);
}

// Up to 32 rows.
template <class Format, bool kFirst>
void amx_rows(int64_t rows, const TileSteps& t) {
    if (kFirst && !Format::kWhole && rows <= kFewRows)
        amx_few(t);
    else if (rows <= 16)
        amx_flat<Format, kFirst>(t);
    else
        amx_square<Format, kFirst>(t);
}

// Steps of k whose words stay in the L1 cache beside more than 32 rows.
constexpr int64_t kBlockTiles = 12;
// Rows up to here stay in the L2 cache, and are read again for every panel. Of more, a few at a
// time meet all panels.
constexpr int64_t kRowBytes = 1 << 20;

// Rows that stay in the L2 cache times panels.
template <class Format>
void amx_block(const Activations& a, int64_t rows, const PanelGroup& w, int64_t tiles, float* c) {
    const int64_t groups = ceil_div(rows, 32);
    const int64_t blocks = groups > 1 ? ceil_div(tiles, kBlockTiles) : 1;
    const int64_t even = ceil_div(tiles, blocks);
    // Lines of the next words that each group of rows but the first fetches at each step.
    const int64_t lines = groups > 1 ? ceil_div(2 * kLanes, groups - 1) : 0;
    for (int64_t k = 0; k < tiles; k += even) {
        const int64_t steps = tiles - k < even ? tiles - k : even;
        for (int p = 0; p < w.count; p++) {
            const uint32_t* panel = w.data + p * w.stride + k * kTileWords;
            const uint32_t* next = panel + w.stride;
            if (p + 1 == w.count)
                next = w.data + (k + steps < tiles ? (k + steps) * kTileWords : w.count * w.stride);
            TileSteps t{a.words + k * 16, a.stride * 4, panel, steps,
                        c + p * kPanel,   k == 0,       next,  lines};
            amx_rows<Format, true>(rows, t);
            for (int64_t r = 32; r < rows; r += 32) {
                t.a += 32 * a.stride, t.c += 32 * kWidth;
                amx_rows<Format, false>(rows - r, t);
                t.ahead += steps * lines * kLanes;
            }
        }
    }
}

template <class Format>
void gemm_block_amx(const Activations& a, int64_t rows, const PanelGroup& w, int64_t words,
                    float* c) {
    if (Format::kWhole && rows <= kFewRowsInt8) return gemm_stream<Format>(a, rows, w, words, c);
    const int64_t tiles = words / 16, most = rows * tiles * 64 <= kRowBytes ? rows : 32;
    for (int64_t r = 0; r < rows; r += most) {
        const Activations part{a.words + r * a.stride, a.stride};
        amx_block<Format>(part, rows - r < most ? rows - r : most, w, tiles, c + r * kWidth);
    }
}

}  // namespace paceline
