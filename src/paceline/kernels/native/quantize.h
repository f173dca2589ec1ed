// Rows as int8, one symmetric scale each, and products of such rows as float32.
//
// A row is rotated first: a Hadamard transform over its blocks, whose size is the largest power of
// two that divides the row's. It spreads the few large values that language models' activations
// have over all others, so that one scale serves them, and leaves a product of two rotated rows
// what it was, but for a factor (Ashkboos et al., QuaRot, 2024). Then q = round(x * (127 / max
// |x|)).
//
// The instructions multiply signed bytes by unsigned ones, so weights are kept plus 128; what that
// adds to every output of a row is 128 times the sum of its q.
#pragma once

#include "abi.h"
#include "vec.h"

namespace paceline {

constexpr float kLeast =
    1e-30f;  // rows of nothing larger count as zeros: their scale's inverse ends

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct RowScale {
    float scale;
    int32_t offset;  // what the weights' 128 adds to each sum
};

PL_INLINE void sum_and_difference(Vec& a, Vec& b) {
    const Vec sum = a + b;
    b = a - b, a = sum;
}

// Within a vector: elements 1, 2, 4 and 8 apart.
PL_INLINE Vec rotate_lanes(Vec v) {
    const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int distance = 1; distance < kLanes; distance *= 2)
        v = swap_lanes(v, distance) + select((lane & distance) != 0, -v, v);
    return v;
}

// Of elements `distance` and twice that apart: two powers of two in one pass over memory.
template <bool kLanesToo>
void rotate_fours(float* x, int64_t n, int64_t distance) {
    for (int64_t from = 0; from < n; from += 4 * distance)
        for (int64_t i = from; i < from + distance; i += kLanes) {
            Vec v[4];
            for (int j = 0; j < 4; j++) {
                v[j] = load(x + i + j * distance);
                if (kLanesToo) v[j] = rotate_lanes(v[j]);
            }
            sum_and_difference(v[0], v[1]), sum_and_difference(v[2], v[3]);
            sum_and_difference(v[0], v[2]), sum_and_difference(v[1], v[3]);
            for (int j = 0; j < 4; j++) store(x + i + j * distance, v[j]);
        }
}

// Sums and differences of elements a power of two apart, for every power below the block's size.
inline void rotate_blocks(float* x, int64_t n) {
    const int64_t block = n & -n;
    if (block < kLanes) return;
    int64_t distance = kLanes;
    if (block < 4 * kLanes) {
        for (int64_t i = 0; i < n; i += kLanes) store(x + i, rotate_lanes(load(x + i)));
    } else {
        rotate_fours<true>(x, n, distance);
        distance *= 4;
    }
    for (; 4 * distance <= block; distance *= 4) rotate_fours<false>(x, n, distance);
    if (distance == block) return;
    for (int64_t from = 0; from < n; from += 2 * distance)
        for (int64_t i = from; i < from + distance; i += kLanes) {
            Vec a = load(x + i), b = load(x + i + distance);
            sum_and_difference(a, b);
            store(x + i, a), store(x + i + distance, b);
        }
}

// x[n] bf16 -> q[n] with zeros up to `padded`, a multiple of 64; `wide` has room for as many
// floats. A NaN in x makes the scale NaN: as bits it is the largest.
inline RowScale quantize_row(const uint16_t* x, int64_t n, int64_t padded, float* wide, int8_t* q) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(wide + i, load_bf16(x + i));
    for (; i < padded; i++) wide[i] = i < n ? bf16_to_float(x[i]) : 0.0f;
    rotate_blocks(wide, n);
    UVec most = {};
    for (i = 0; i < n; i += kLanes) {
        const UVec bits = (UVec)load(wide + i) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; lane++) bits = most[lane] > bits ? most[lane] : bits;
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    const float inverse = largest > kLeast ? 127.0f / largest : 0.0f;
    UVec total = {};
    for (i = 0; i < padded; i += kLanes) {
        const IVec whole = round(load(wide + i) * inverse);
        total += (UVec)whole;
        const BVec bytes = __builtin_convertvector(whole, BVec);
        memcpy(q + i, &bytes, sizeof bytes);
    }
    uint32_t sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += total[lane];
    return {largest / 127.0f, (int32_t)(sum * 128)};
}

// Sums c[rows][width] of int32 become float32 in their place, in the first `panels` of each row.
inline void dequantize(float* c, int64_t width, int64_t rows, int panels, const RowScale* by_row,
                       const float* by_output) {
    for (int64_t r = 0; r < rows; r++, c += width) {
        for (int p = 0; p < panels; p++) {
            const UVec sums = (UVec)load(c + p * kLanes) - (uint32_t)by_row[r].offset;
            store(c + p * kLanes, __builtin_convertvector((IVec)sums, Vec) * by_row[r].scale *
                                      load(by_output + p * kLanes));
        }
    }
}

}  // namespace paceline
