// Sixteen-lane vectors in the compiler's own vector extension: one source for every machine.
// Only dot2(), dot4(), round(), exp2() and store_bf16() have hand-picked instructions;
// PACELINE_PORTABLE leaves them out.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && !defined(PACELINE_PORTABLE)
#define PACELINE_AVX512BF16 1
#include <immintrin.h>
#ifdef __AVX512VNNI__
#define PACELINE_AVX512VNNI 1
#endif
#endif
#if (defined(__AMX_BF16__) || defined(PACELINE_AMX_EMULATED)) && !defined(PACELINE_PORTABLE) && \
    !defined(PACELINE_NO_AMX)
#define PACELINE_AMX 1
#endif

namespace paceline {

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(64)));
typedef uint32_t UVec __attribute__((vector_size(64)));
typedef int32_t IVec __attribute__((vector_size(64)));
typedef uint16_t HVec __attribute__((vector_size(32)));  // sixteen bf16
typedef int8_t BVec __attribute__((vector_size(16)));

#define PL_INLINE static inline __attribute__((always_inline))

PL_INLINE Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
PL_INLINE UVec splat_u(uint32_t x) { return UVec{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

PL_INLINE Vec load(const float* p) {
    Vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
PL_INLINE UVec load_u(const uint32_t* p) {
    UVec v;
    memcpy(&v, p, sizeof v);
    return v;
}
PL_INLINE void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

// Copies c[n] to memory that is not read again soon: whole cache lines go past the caches.
PL_INLINE void store_far(float* p, const float* c, int64_t n) {
#ifdef PACELINE_AVX512BF16
    if (((uintptr_t)p & 63) == 0 && n % kLanes == 0) {
        for (int64_t i = 0; i < n; i += kLanes) _mm512_stream_ps(p + i, (__m512)load(c + i));
        return;
    }
#endif
    memcpy(p, c, n * sizeof(float));
}
PL_INLINE void store_fence() {
#ifdef PACELINE_AVX512BF16
    _mm_sfence();
#endif
}

PL_INLINE float bf16_to_float(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
// Rounds to nearest even.
PL_INLINE uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
PL_INLINE Vec load_bf16(const uint16_t* p) {
    HVec h;
    memcpy(&h, p, sizeof h);
    return (Vec)(__builtin_convertvector(h, UVec) << 16);
}
PL_INLINE void store_bf16(uint16_t* p, Vec v) {
#ifdef PACELINE_AVX512BF16
    __m256bh h = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &h, sizeof h);
#else
    UVec u = (UVec)v;
    u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    HVec h = __builtin_convertvector(u, HVec);
    memcpy(p, &h, sizeof h);
#endif
}

// The first of each pair of bf16 as float, and the second.
PL_INLINE Vec low_half(UVec pairs) { return (Vec)(pairs << 16); }
PL_INLINE Vec high_half(UVec pairs) { return (Vec)(pairs & 0xffff0000u); }

// acc[lane] += a.low * b[lane].low + a.high * b[lane].high for pairs of bf16
PL_INLINE Vec dot2(Vec acc, UVec a, UVec b) {
#ifdef PACELINE_AVX512BF16
    return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    acc += low_half(a) * low_half(b);
    acc += high_half(a) * high_half(b);
    return acc;
#endif
}

// acc[lane] += the four signed bytes of x[lane] times the four unsigned ones of w[lane]
PL_INLINE IVec dot4(IVec acc, UVec x, UVec w) {
#ifdef PACELINE_AVX512VNNI
    return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#else
    acc += ((IVec)(x << 24) >> 24) * (IVec)(w & 0xff);
    acc += ((IVec)(x << 16) >> 24) * (IVec)(w >> 8 & 0xff);
    acc += ((IVec)(x << 8) >> 24) * (IVec)(w >> 16 & 0xff);
    acc += ((IVec)x >> 24) * (IVec)(w >> 24);
    return acc;
#endif
}

// The widest vectors that the machine has registers for, where that is known: the compiler keeps
// wider ones in memory, which costs an inner loop most of its time.
#ifdef __AVX512F__
constexpr int kPartLanes = 16;
typedef Vec Part;
typedef UVec UPart;
typedef IVec IPart;
#else
constexpr int kPartLanes = 8;
typedef float Part __attribute__((vector_size(32)));
typedef uint32_t UPart __attribute__((vector_size(32)));
typedef int32_t IPart __attribute__((vector_size(32)));

PL_INLINE Part dot2(Part acc, UPart a, UPart b) {
    acc += (Part)(a << 16) * (Part)(b << 16);
    acc += (Part)(a & 0xffff0000u) * (Part)(b & 0xffff0000u);
    return acc;
}
PL_INLINE IPart dot4(IPart acc, UPart x, UPart w) {
    acc += ((IPart)(x << 24) >> 24) * (IPart)(w & 0xff);
    acc += ((IPart)(x << 16) >> 24) * (IPart)(w >> 8 & 0xff);
    acc += ((IPart)(x << 8) >> 24) * (IPart)(w >> 16 & 0xff);
    acc += ((IPart)x >> 24) * (IPart)(w >> 24);
    return acc;
}
#endif
constexpr int kParts = kLanes / kPartLanes;

template <class V, class T>
PL_INLINE V load_part_of(const T* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class V, class T>
PL_INLINE void store_part_of(T* p, V v) {
    memcpy(p, &v, sizeof v);
}

// The nearest whole numbers, ties to even, of products that are rounded on their own before.
PL_INLINE IVec round(Vec v) {
#ifdef PACELINE_AVX512BF16
    return (IVec)_mm512_cvtps_epi32((__m512)v);
#else
    asm("" : "+m"(v));  // else the addition below would be fused with the product
    return (IVec)(v + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23: for up to 2^22
#endif
}

PL_INLINE Vec select(IVec mask, Vec yes, Vec no) { return mask ? yes : no; }
PL_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
PL_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

#ifdef __clang__
template <class V>
PL_INLINE V shuffle(V a, V b, UVec lanes) {
    V out;
    for (int i = 0; i < kLanes; i++)
        out[i] = lanes[i] < kLanes ? a[lanes[i]] : b[lanes[i] - kLanes];
    return out;
}
#else
template <class V>
PL_INLINE V shuffle(V a, V b, UVec lanes) {
    return __builtin_shuffle(a, b, lanes);
}
#endif
PL_INLINE Vec swap_lanes(Vec v, uint32_t distance) {
    const UVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return shuffle(v, v, lane ^ distance);
}

// Over all lanes, halving each time: a fixed order, whatever the compiler would like.
PL_INLINE float sum(Vec v) {
    v += swap_lanes(v, 8), v += swap_lanes(v, 4), v += swap_lanes(v, 2);
    return v[0] + v[1];
}
PL_INLINE float max_lane(Vec v) {
    v = max(v, swap_lanes(v, 8)), v = max(v, swap_lanes(v, 4)), v = max(v, swap_lanes(v, 2));
    return v[0] > v[1] ? v[0] : v[1];
}

// 2^x for x up to 126, relative error below 2.3e-7; below -126 it is at most 2^-126. NaN of NaN.
PL_INLINE Vec exp2(Vec x) {
#ifdef PACELINE_AVX512BF16
    const Vec f = (Vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec y = f * 1.8671298e-3f + 9.0170307e-3f;  // 2^f for f = x - floor(x)
    y = y * f + 5.5799913e-2f;
    y = y * f + 2.4016444e-1f;
    y = y * f + 6.9315130e-1f;
    y = y * f + 1.0f;
    return (Vec)_mm512_scalef_ps((__m512)y, (__m512)x);  // y * 2^floor(x)
#else
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    x = max(splat(-126.0f), x);       // in this order NaN stays NaN
    Vec shifted = x + magic;
    Vec f = x - (shifted - magic);
    Vec y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    return (Vec)((IVec)y + ((IVec)shifted << 23));  // the bits of 1.5 * 2^23 leave to the left
#endif
}

PL_INLINE Vec silu(Vec x) { return x / (1.0f + exp2(min(x * -1.44269504f, splat(126.0f)))); }

PL_INLINE void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace paceline
