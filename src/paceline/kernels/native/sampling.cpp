// Native twins of kernels/reference.py, which is the specification: equal to the bit.
// Compiled with -ffp-contract=off: a fused multiply-add would change the noise.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vec.h"

namespace paceline {
namespace {

constexpr float kLog[] = {0.3333333134651184f,  -0.24999989569187164f, 0.20000708103179932f,
                          -0.1666848063468933f, 0.14249937236309052f,  -0.12411050498485565f,
                          0.11661510914564133f, -0.115712009370327f,   0.07149753719568253f};
constexpr float kExp[] = {0.5f,
                          0.1666666716337204f,
                          0.04166646674275398f,
                          0.0083332983776927f,
                          0.0013933650916442275f,
                          0.00019899285689461976f};
constexpr float kLn2High = 0.693359375f, kLn2Low = -0.00021219444170128554f;
constexpr float kLog2E = 1.4426950216293335f;
constexpr int kWeightBits = 40;
constexpr float kLargestGumbel = 22.9f;  // of x = 0, rounded up
constexpr int kRun = 4 * kLanes;         // tokens that one call of philox() serves

struct Key {
    uint32_t seed[2], position, round_start, choice_role;
};

struct Wide {
    UVec high, low;
};

inline Wide multiply(uint32_t m, UVec x) {
#ifdef PACELINE_AVX512BF16
    __m512i even = _mm512_mul_epu32((__m512i)x, _mm512_set1_epi32((int)m));
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), _mm512_set1_epi32((int)m));
    const __mmask16 odds = 0xaaaa;
    return {(UVec)_mm512_mask_blend_epi32(odds, _mm512_srli_epi64(even, 32), odd),
            (UVec)_mm512_mask_blend_epi32(odds, even, _mm512_slli_epi64(odd, 32))};
#else
    Wide wide;
    for (int i = 0; i < kLanes; i++) {
        uint64_t product = (uint64_t)m * x[i];
        wide.high[i] = (uint32_t)(product >> 32), wide.low[i] = (uint32_t)product;
    }
    return wide;
#endif
}

// Random bits of 64 tokens from token id 64 * run on, in order of token id.
inline void philox(const Key& key, uint32_t run, UVec out[4]) {
    const UVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UVec a = lane + run * kLanes, b = splat_u(key.position), c = splat_u(key.round_start);
    UVec d = splat_u(key.choice_role);
    uint32_t k0 = key.seed[0], k1 = key.seed[1];
    for (int round = 0; round < 10; round++) {
        Wide first = multiply(0xD2511F53u, a), second = multiply(0xCD9E8D57u, c);
        a = second.high ^ b ^ k0, b = second.low;
        c = first.high ^ d ^ k1, d = first.low;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const UVec low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = low + 8;
    UVec ac = shuffle(a, c, low), ac2 = shuffle(a, c, high);
    UVec bd = shuffle(b, d, low), bd2 = shuffle(b, d, high);
    out[0] = shuffle(ac, bd, low), out[1] = shuffle(ac, bd, high);
    out[2] = shuffle(ac2, bd2, low), out[3] = shuffle(ac2, bd2, high);
}

inline Vec log(Vec x) {
    IVec bits = (IVec)x, exponent = (bits - 0x3f3504f3) >> 23;
    Vec f = (Vec)(bits - (exponent << 23)) - 1.0f, e = __builtin_convertvector(exponent, Vec);
    Vec z = f * f, p = splat(kLog[8]);
    for (int i = 7; i >= 0; i--) p = p * f + kLog[i];
    Vec y = (f * z) * p;
    y = y + e * kLn2Low;
    y = y - z * 0.5f;
    return (f + y) + e * kLn2High;
}

inline Vec gumbel(UVec x) {
    Vec v = (__builtin_convertvector(x, Vec) + 0.5f) * 0x1p-32f;
    v = min(v, splat(1.0f - 0x1p-24f));
    Vec u = 1.0f - v;
    Vec negative = log(u) + ((1.0f - u) - v) * (2.0f - u);
    return -log(-negative);
}

// exp(x) * 2^40 before rounding down; 0 < result <= 2^40
inline Vec weight(Vec x) {
    x = max(x, splat(-64.0f));
    Vec n = (x * kLog2E + 12582912.0f) - 12582912.0f;
    Vec r = (x - n * kLn2High) - n * kLn2Low;
    Vec p = splat(kExp[5]);
    for (int i = 4; i >= 0; i--) p = p * r + kExp[i];
    Vec y = (p * (r * r) + r) + 1.0f;
    IVec scale = (__builtin_convertvector(n, IVec) + (127 + kWeightBits)) << 23;
    return y * (Vec)scale;
}

Vec load_part(const float* p, int64_t count) {
    if (count >= kLanes) return load(p);
    float all[kLanes];
    for (int i = 0; i < kLanes; i++)
        all[i] = i < count ? p[i] : -std::numeric_limits<float>::infinity();
    return load(all);
}

float largest(const float* logits, int64_t count) {
    Vec top = splat(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < count; i += kLanes) top = max(top, load_part(logits + i, count - i));
    return max_lane(top);
}

// A token in the order of sampling filters: larger logit first, then lower id.
struct Candidate {
    float logit;
    int32_t id;
    int64_t weight;
    bool operator<(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && id < other.id);
    }
};

struct Search {
    float best = -std::numeric_limits<float>::infinity();
    int64_t id = 0;
};

// Scores of 64 tokens whose logits (filtered ones -inf) are s, unless none of them can win.
inline void search_run(const Key& key, const Vec masked[4], float inv_temperature, uint32_t run,
                       Search& found) {
    const float infinity = std::numeric_limits<float>::infinity();
    float top = max_lane(max(max(masked[0], masked[1]), max(masked[2], masked[3])));
    if (top == -infinity) return;
    const float top_score = top * inv_temperature;
    if (top_score + kLargestGumbel < found.best) return;
    UVec bits[4];
    philox(key, run, bits);
    // gumbel <= -log(v), so only small bits can lift the run's best score past the best so far.
    const float gap = found.best - top_score;
    if (gap > 2.0f && gap < 100.0f) {
        const float reach = std::exp(-gap) * 1.01f * 0x1p32f + 2.0f;
        UVec limit = splat_u((uint32_t)reach);
        IVec any = (IVec)(bits[0] < limit) | (IVec)(bits[1] < limit) | (IVec)(bits[2] < limit) |
                   (IVec)(bits[3] < limit);
        int32_t set = 0;
        for (int i = 0; i < kLanes; i++) set |= any[i];
        if (!set) return;
    }
    for (int part = 0; part < 4; part++) {
        Vec score = masked[part] * inv_temperature + gumbel(bits[part]);
        float high = max_lane(score);
        if (!(high > found.best)) continue;
        for (int i = 0; i < kLanes; i++)
            if (score[i] == high) {
                found = {high, (int64_t)run * kRun + part * kLanes + i};
                break;
            }
    }
}

// All tokens with logits of at least `least`.
void gather(const float* logits, int64_t count, float least, float top, float inv_temperature,
            std::vector<Candidate>& out) {
    out.clear();
    for (int64_t i = 0; i < count; i += kLanes) {
        Vec v = load_part(logits + i, count - i);
        if (!(max_lane(v) >= least)) continue;
        Vec w = weight((v - top) * inv_temperature);
        for (int64_t j = 0; j < std::min<int64_t>(kLanes, count - i); j++)
            if (v[j] >= least) out.push_back({v[j], (int32_t)(i + j), (int64_t)w[j]});
    }
}

int64_t total_weight(const std::vector<Candidate>& tokens) {
    int64_t sum = 0;
    for (const Candidate& token : tokens) sum += token.weight;
    return sum;
}

// Keeps the shortest prefix, in order, whose weight reaches `target`: halves what is undecided.
void keep_mass(std::vector<Candidate>& tokens, double target) {
    size_t low = 0, high = tokens.size();  // low are kept for sure, those from high on are not
    int64_t before = 0;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        std::nth_element(tokens.begin() + low, tokens.begin() + middle, tokens.begin() + high);
        int64_t sum = before;
        for (size_t i = low; i < middle; i++) sum += tokens[i].weight;
        if ((double)sum < target)  // then tokens[middle] is kept
            before = sum + tokens[middle].weight, low = middle + 1;
        else
            high = middle;
    }
    tokens.resize(low);
}

}  // namespace
}  // namespace paceline

using namespace paceline;

extern "C" {

struct PlNoise {
    uint64_t seed;
    uint32_t position, round_start, choice_role;
};

static Key key_of(const PlNoise* n) {
    const uint32_t low = (uint32_t)n->seed, high = (uint32_t)(n->seed >> 32);
    return {{low, high}, n->position, n->round_start, n->choice_role};
}

int64_t pl_gumbel_argmax(const float* logits, int64_t count, const PlNoise* noise,
                         float inv_temperature, float threshold, int32_t tie_id) {
    const IVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Vec infinite = splat(-std::numeric_limits<float>::infinity());
    const Key key = key_of(noise);
    Search found;
    for (int64_t start = 0; start < count; start += kRun) {
        Vec masked[4];
        for (int part = 0; part < 4; part++) {
            const int64_t first = start + part * kLanes;
            Vec v = first < count ? load_part(logits + first, count - first) : infinite;
            IVec keep = (IVec)(v > threshold) |
                        ((IVec)(v == threshold) & (IVec)(lane + (int32_t)first <= tie_id));
            masked[part] = select(keep, v, infinite);
        }
        search_run(key, masked, inv_temperature, (uint32_t)(start / kRun), found);
    }
    return found.id;
}

// The same of `count` rows of logits, each with its own noise, shared out among the threads.
void pl_gumbel_argmax_rows(const float* logits, int64_t vocab, const int64_t* rows, int64_t count,
                           const PlNoise* noises, const float* inv_temperatures, int64_t threads,
                           int64_t* ids) {
    const float all = -std::numeric_limits<float>::infinity();
#pragma omp parallel for num_threads((int)threads)
    for (int64_t i = 0; i < count; i++)
        ids[i] = pl_gumbel_argmax(logits + rows[i] * vocab, vocab, noises + i, inv_temperatures[i],
                                  all, std::numeric_limits<int32_t>::max());
}

void pl_gumbel_noise(float* out, int64_t count, const PlNoise* noise) {
    for (int64_t start = 0; start < count; start += kRun) {
        UVec bits[4];
        philox(key_of(noise), (uint32_t)(start / kRun), bits);
        float values[kRun];
        for (int part = 0; part < 4; part++) store(values + part * kLanes, gumbel(bits[part]));
        memcpy(out + start, values, std::min<int64_t>(kRun, count - start) * sizeof(float));
    }
}

// Sum of weights in units of 2^-40 and, in *top, the largest logit.
int64_t pl_total_weight(const float* logits, int64_t count, float inv_temperature, float* top) {
    typedef int64_t LVec __attribute__((vector_size(128)));
    *top = largest(logits, count);
    LVec total = {};
    for (int64_t i = 0; i < count; i += kLanes) {
        Vec x = (load_part(logits + i, count - i) - *top) * inv_temperature;
        total += __builtin_convertvector(weight(x), LVec);
    }
    int64_t sum = 0;
    for (int i = 0; i < kLanes; i++) sum += total[i];
    // Lanes past the end count as exp(-64): less than one unit, so they added nothing.
    return sum;
}

// The same of every row of logits, shared out among the threads.
void pl_total_weight_rows(const float* logits, int64_t vocab, int64_t count, float inv_temperature,
                          int64_t threads, float* tops, int64_t* totals) {
#pragma omp parallel for num_threads((int)threads)
    for (int64_t i = 0; i < count; i++)
        totals[i] = pl_total_weight(logits + i * vocab, vocab, inv_temperature, tops + i);
}

// The smallest logit that min_p, then top_k, then top_p keep, and the largest id kept among its
// equals. Returns how many tokens are kept, 0 for logits that are not all finite. log_min_p: -inf
// for off; top_k 0, top_p 1: off.
int64_t pl_top_threshold(const float* logits, int64_t count, float inv_temperature, int64_t top_k,
                         double top_p, double log_min_p, float* threshold, int32_t* tie_id) {
    const float infinity = std::numeric_limits<float>::infinity();
    float top;
    // top_p's total is over what is left by the other two; without them, over everything.
    const int64_t everything = pl_total_weight(logits, count, inv_temperature, &top);
    const bool minimum = log_min_p > -infinity;
    auto above = [&](float l) {
        return !minimum || ((double)l - (double)top) * (double)inv_temperature >= log_min_p;
    };
    std::vector<Candidate> kept;
    // Widen the net until it surely holds every kept token; nearly always the first cast does.
    for (float width : {6.0f, 12.0f, 24.0f, infinity}) {
        gather(logits, count, top - width / inv_temperature, top, inv_temperature, kept);
        const bool all = (int64_t)kept.size() == count;
        bool ends = all;
        if (minimum && !all) ends = !above(top - width / inv_temperature);
        if (top_k > 0 && (int64_t)kept.size() >= top_k) ends = true;
        if (!ends && top_p < 1 && !minimum && top_k == 0)
            ends = (double)total_weight(kept) >= top_p * (double)everything;
        if (ends) break;
    }
    if (minimum)
        kept.erase(std::remove_if(kept.begin(), kept.end(),
                                  [&](const Candidate& c) { return !above(c.logit); }),
                   kept.end());
    if (top_k > 0 && (int64_t)kept.size() > top_k) {
        std::nth_element(kept.begin(), kept.begin() + (top_k - 1), kept.end());
        kept.resize(top_k);
    }
    if (top_p < 1)
        keep_mass(kept, top_p * (double)(minimum || top_k > 0 ? total_weight(kept) : everything));
    if (kept.empty()) return 0;  // NaN or infinity among the logits: nothing compares with them
    const Candidate last = *std::max_element(kept.begin(), kept.end());
    *threshold = last.logit, *tie_id = last.id;
    return (int64_t)kept.size();
}

}  // extern "C"
