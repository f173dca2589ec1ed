// The softmax of attention by chunks: a row's probabilities in one chunk, and how chunks are merged
// (FlashAttention, Dao et al. 2022).
#pragma once

#include "quantize.h"

namespace paceline {

struct Partial {
    float maximum, sum;
};

// The largest of so many vectors, at least one.
inline float max_of(const float* s, int64_t vectors) {
    constexpr int kChains = 4;  // a maximum waits for the one before it
    Vec top[kChains];
    for (Vec& one : top) one = load(s);
    int64_t i = 0;
    for (; i + kChains <= vectors; i += kChains)
        for (int j = 0; j < kChains; j++) top[j] = max(top[j], load(s + (i + j) * kLanes));
    for (; i < vectors; i++) top[0] = max(top[0], load(s + i * kLanes));
    return max_lane(max(max(top[0], top[1]), max(top[2], top[3])));
}

// Scores of one row in a chunk -> bf16 probabilities relative to the chunk's own maximum.
// Tokens from…to-1 count; the rest of the chunk's `blocks` gets probability 0.
inline Partial softmax_row(float* s, int64_t from, int64_t to, int64_t blocks, float log2_scale,
                           uint16_t* p) {
    const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t begin = from / kLanes, whole = to / kLanes, end = ceil_div(to, kLanes);
    const IVec after = lane >= (int32_t)(from % kLanes), before = lane < (int32_t)(to % kLanes);
    auto hide = [&](int64_t b, Vec v, Vec hidden) {
        if (b == begin && from % kLanes) v = select(after, v, hidden);
        return b == whole ? select(before, v, hidden) : v;
    };
    for (int64_t b : {begin, whole})
        if (b < end) store(s + b * kLanes, hide(b, load(s + b * kLanes), splat(-3.0e38f)));
    const float maximum = max_of(s + begin * kLanes, end - begin) * log2_scale;
    Vec total = {};
    auto weigh = [&](int64_t b, auto&& seen) {
        const Vec e = seen(exp2(load(s + b * kLanes) * log2_scale - maximum));
        total += e;
        store_bf16(p + b * kLanes, e);
    };
    auto partly = [&](int64_t b) { weigh(b, [&](Vec e) { return hide(b, e, Vec{}); }); };
    for (int64_t b = 0; b < begin; b++) store_bf16(p + b * kLanes, Vec{});
    partly(begin);
    for (int64_t b = begin + 1; b < whole; b++) weigh(b, [](Vec e) { return e; });
    if (whole > begin && whole < end) partly(whole);
    for (int64_t b = end; b < blocks; b++) store_bf16(p + b * kLanes, Vec{});
    return {maximum, sum(total)};
}

// Folds a chunk's partial into the running one. Not inlined, so that it is the same code, with the
// same roundings, wherever partials are merged.
__attribute__((noinline)) inline void merge_partial(bool first, Partial& into, float* o,
                                                    const Partial& chunk, const float* values,
                                                    int64_t head_dim) {
    if (first) {
        into = chunk;
        memcpy(o, values, head_dim * sizeof(float));
        return;
    }
    const float top = into.maximum > chunk.maximum ? into.maximum : chunk.maximum;
    const Vec factors = exp2(Vec{into.maximum - top, chunk.maximum - top});
    const float keep = factors[0], add = factors[1];
    into = {top, into.sum * keep + chunk.sum * add};
    for (int64_t d = 0; d < head_dim; d += kLanes)
        store(o + d, load(o + d) * keep + load(values + d) * add);
}

__attribute__((noinline)) inline void finish_row(const Partial& partial, const float* o,
                                                 uint16_t* out, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += kLanes) store_bf16(out + d, load(o + d) / partial.sum);
}

}  // namespace paceline
