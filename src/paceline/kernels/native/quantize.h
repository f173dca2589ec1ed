// Activations as int8, one symmetric scale per row, and their products with int8 weights as float32.
//
// x = scale * q with q = round(x * (127 / max |x|)). The instructions multiply signed bytes by
// unsigned ones, so weights are kept plus 128; what that adds to every output of a row is 128 times
// the sum of its q. (Per-token dynamic W8A8, as in Xiao et al., SmoothQuant, 2022.)
#pragma once

#include "abi.h"
#include "vec.h"

namespace paceline {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr float kLeast = 1e-30f;  // rows of nothing larger count as zeros: their scale's inverse ends

struct RowScale {
    float scale;
    int32_t offset;  // what the weights' 128 adds to each sum
};

// x[n] bf16 -> q[padded], with zeros behind n; `padded` is a multiple of 64. A NaN in x makes the
// scale NaN: as bits it is the largest.
inline RowScale quantize_row(const uint16_t* x, int64_t n, int64_t padded, int8_t* q) {
    constexpr int64_t kRun = 2 * kLanes;
    auto words_at = [&](int64_t i) {
        UVec words = {};
        if (n - i >= kRun) return load_u((const uint32_t*)(x + i));
        memcpy(&words, x + i, (n - i) * sizeof(uint16_t));
        return words;
    };
    UVec most = {};
    for (int64_t i = 0; i < n; i += kRun) {
        const UVec words = words_at(i), low = words << 16, high = words & 0xffff0000u;
        const UVec a = low & 0x7fffffffu, b = high & 0x7fffffffu, larger = a > b ? a : b;
        most = larger > most ? larger : most;
    }
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; lane++) bits = most[lane] > bits ? most[lane] : bits;
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    const float inverse = largest > kLeast ? 127.0f / largest : 0.0f;
    UVec total = {};
    for (int64_t i = 0; i < n; i += kRun) {
        const UVec words = words_at(i);
        const IVec low = round((Vec)(words << 16) * inverse);
        const IVec high = round((Vec)(words & 0xffff0000u) * inverse);
        total += (UVec)low + (UVec)high;
        const HVec bytes = __builtin_convertvector((UVec)((low & 0xff) | (high & 0xff) << 8), HVec);
        memcpy(q + i, &bytes, sizeof bytes);
    }
    for (int64_t i = ceil_div(n, kRun) * kRun; i < padded; i++) q[i] = 0;
    uint32_t sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += total[lane];
    return {largest / 127.0f, (int32_t)(sum * 128)};
}

// Sums c[rows][width] of int32 become float32 in their place, in the first `panels` of each row.
inline void dequantize(float* c, int64_t width, int64_t rows, int panels, const RowScale* by_row,
                       const float* by_output) {
    for (int64_t r = 0; r < rows; r++, c += width) {
        for (int p = 0; p < panels; p++) {
            const IVec sums = (IVec)load(c + p * kLanes) - by_row[r].offset;
            store(c + p * kLanes, __builtin_convertvector(sums, Vec) * by_row[r].scale *
                                      load(by_output + p * kLanes));
        }
    }
}

}  // namespace paceline
