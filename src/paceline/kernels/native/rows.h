// What happens to single rows between the matrix products: norm, rotary, KV write, embedding.
#pragma once

#include "attention.h"

namespace paceline {

// y = x / rms(x) * weight as bf16 (RMSNorm, Zhang and Sennrich 2019). `padded` >= n is y's length.
inline void rms_norm(const float* x, const float* weight, int64_t n, int64_t padded, float epsilon,
                     uint16_t* y) {
    Vec squares = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < n; i++) total += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(total / (float)n + epsilon);
    for (i = 0; i + kLanes <= n; i += kLanes)
        store_bf16(y + i, load(x + i) * factor * load(weight + i));
    for (; i < n; i++) y[i] = float_to_bf16(x[i] * factor * weight[i]);
    for (; i < padded; i++) y[i] = 0;
}

inline void head_norm(float* x, const float* weight, int64_t n, float epsilon) {
    Vec squares = {};
    for (int64_t i = 0; i < n; i += kLanes) squares += load(x + i) * load(x + i);
    const float factor = 1.0f / __builtin_sqrtf(sum(squares) / (float)n + epsilon);
    for (int64_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * factor * load(weight + i));
}

// Rotates the first 2 * half elements, element i with element i + half (RoPE, Su et al. 2021).
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

inline uint32_t bf16_pair(float low, float high) {
    return (uint32_t)float_to_bf16(low) | (uint32_t)float_to_bf16(high) << 16;
}

// Whether x[n] holds finite numbers alone, as bf16 too.
inline bool all_finite(const float* x, int64_t n) {
    IVec beyond = {};
    for (int64_t i = 0; i < n; i += kLanes)
        beyond |= ((IVec)load(x + i) & 0x7fffffff) > 0x7f7f7fff;  // rounded up from there on
    int32_t any = 0;
    for (int lane = 0; lane < kLanes; lane++) any |= beyond[lane];
    return !any;
}

// Writes one token's key and value (float32 [head_dim] each) to its place in a block.
//
// Attention multiplies the values that a row does not see by 0, which NaN and infinity survive. So
// a value that holds such a number becomes zeros, and its key NaN: only rows that see the token get
// NaN, not those before it, and not the next owner of the block.
inline void write_kv(const float* key, const float* value, int64_t head_dim, int offset,
                     uint32_t* block) {
    constexpr uint16_t kNaN = 0x7fc0;
    const bool finite = all_finite(value, head_dim);
    for (int64_t d = 0; d < head_dim; d += 2)
        block[d / 2 * kBlockTokens + offset] =
            finite ? bf16_pair(key[d], key[d + 1]) : kNaN * 0x10001u;
    uint32_t* values = block + key_words(head_dim);
    uint16_t* to = (uint16_t*)(values + offset / 2 * head_dim) + offset % 2;
    for (int64_t d = 0; d < head_dim; d++) to[2 * d] = finite ? float_to_bf16(value[d]) : 0;
}

// One row's embedding as float32.
inline void embed(const PlModel& model, int64_t id, float* x) {
    if (model.mask_row && id == model.mask_id) {
        memcpy(x, model.mask_row, model.hidden * sizeof(float));
    } else if (model.embedding) {
        const uint16_t* row = model.embedding + id * model.hidden;
        for (int64_t i = 0; i < model.hidden; i++) x[i] = bf16_to_float(row[i]);
    } else {
        const int64_t pairs = ceil_div(model.hidden, 32) * 16;
        const uint32_t* lane = model.embedding_panels + id / kPanel * pairs * kPanel + id % kPanel;
        for (int64_t i = 0; i < model.hidden; i++) {
            uint32_t pair = lane[i / 2 * kPanel];
            x[i] = bf16_to_float((uint16_t)(i % 2 ? pair >> 16 : pair));
        }
    }
    if (model.embedding_scale != 1.0f)
        for (int64_t i = 0; i < model.hidden; i++) x[i] *= model.embedding_scale;
}

struct Best {
    float value;
    float excess;  // 0 while every offered number was finite, else NaN
    int64_t id;

    void offer(float other, int64_t other_id) {
        if (other > value || (other == value && other_id < id)) value = other, id = other_id;
    }
    bool finite() const { return excess == 0; }
};

// Offers c[count], whose ids start at `first`. Most groups hold nothing better: one look per group.
inline void offer_all(Best& best, const float* c, int64_t count, int64_t first) {
    float top = c[0];
    if (count % kLanes == 0) {
        Vec tops = load(c), excess = tops - tops;  // x - x: 0 for a finite x, else NaN
        for (int64_t j = kLanes; j < count; j += kLanes) {
            const Vec part = load(c + j);
            tops = max(tops, part), excess += part - part;
        }
        top = max_lane(tops);
        best.excess += sum(excess);
    } else {
        for (int64_t i = 0; i < count; i++) {
            top = c[i] > top ? c[i] : top;
            best.excess += c[i] - c[i];
        }
    }
    if (top < best.value) return;
    for (int64_t i = 0; i < count; i++)
        if (c[i] == top) return best.offer(top, first + i);
}

// Maximum and sum of exp(c[n] - maximum), in one fixed order.
inline Partial weigh(const float* c, int64_t n) {
    const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    auto at = [&](int64_t i) {
        return n - i >= kLanes ? load(c + i)
                               : select(lane < (int32_t)(n - i), load(c + i), splat(-3.0e38f));
    };
    Vec top = at(0);
    for (int64_t i = kLanes; i < n; i += kLanes) top = max(top, at(i));
    const float maximum = max_lane(top);
    Vec total = {};
    for (int64_t i = 0; i < n; i += kLanes) total += exp2((at(i) - maximum) * 1.44269504f);
    return {maximum, sum(total)};
}

// Row `slot` of a block under a causal convolution of `taps` taps: to[c] (+)= sum over taps t of
// (base[t][c] + dynamic[t][group of c]) * x[slot - t][c]. `at(t)` is row slot - t as a function of
// c.
template <class At, class Put>
void convolve_row(const float* base, const float* dynamic, int64_t taps, int64_t groups,
                  int64_t hidden, int64_t slot, At&& at, Put&& put) {
    const int64_t channels = hidden / groups;
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t c = g * channels; c < (g + 1) * channels; c++) {
            float total = 0;
            for (int64_t t = 0; t < taps && t <= slot; t++)
                total += (base[t * hidden + c] + dynamic[t * groups + g]) * at(t, c);
            put(c, total);
        }
    }
}

}  // namespace paceline
