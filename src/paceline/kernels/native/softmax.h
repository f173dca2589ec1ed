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

// The tokens from…to-1 of a chunk, which a row sees: vectors `begin`…`end` - 1, of which the first
// and the one at `whole` may be seen in part.
struct SeenTokens {
    int64_t begin, whole, end;
    int32_t from, to;  // within the first vector, and the one at `whole`

    SeenTokens(int64_t first, int64_t behind)
        : begin(first / kLanes),
          whole(behind / kLanes),
          end(ceil_div(behind, kLanes)),
          from((int32_t)(first % kLanes)),
          to((int32_t)(behind % kLanes)) {}

    Vec hide(int64_t b, Vec v, Vec hidden) const {
        const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        if (b == begin && from) v = select(lane >= from, v, hidden);
        return b == whole ? select(lane < to, v, hidden) : v;
    }
};

// The largest score that a row sees; the others of its vectors become very small.
inline float largest_seen(float* s, const SeenTokens& seen) {
    for (int64_t b : {seen.begin, seen.whole})
        if (b < seen.end)
            store(s + b * kLanes, seen.hide(b, load(s + b * kLanes), splat(-3.0e38f)));
    return max_of(s + seen.begin * kLanes, seen.end - seen.begin);
}

// Scores of one row in a chunk -> bf16 probabilities relative to `maximum`, that of the chunk, and
// their sum. What the row does not see of the chunk's `blocks` gets probability 0.
inline float weigh_row(const float* s, const SeenTokens& seen, int64_t blocks, float log2_scale,
                       float maximum, uint16_t* p) {
    Vec total = {};
    auto weigh = [&](int64_t b, auto&& shown) {
        const Vec e = shown(exp2(load(s + b * kLanes) * log2_scale - maximum));
        total += e;
        store_bf16(p + b * kLanes, e);
    };
    auto partly = [&](int64_t b) { weigh(b, [&](Vec e) { return seen.hide(b, e, Vec{}); }); };
    for (int64_t b = 0; b < seen.begin; b++) store_bf16(p + b * kLanes, Vec{});
    partly(seen.begin);
    for (int64_t b = seen.begin + 1; b < seen.whole; b++) weigh(b, [](Vec e) { return e; });
    if (seen.whole > seen.begin && seen.whole < seen.end) partly(seen.whole);
    for (int64_t b = seen.end; b < blocks; b++) store_bf16(p + b * kLanes, Vec{});
    return sum(total);
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
