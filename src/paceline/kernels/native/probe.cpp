// What the machine can do: reading and arithmetic, each by itself, to judge the kernels by.
#include <omp.h>

#include "gemm.h"

namespace paceline {

// Reads kStreams streams of `part` uint32 each, one behind the other in memory, and returns
// something of them, so that no load can be left out.
template <int kStreams>
UVec read_streams(const uint32_t* from, int64_t part) {
    UVec a = {}, b = {}, c = {}, d = {};
    for (int64_t i = 0; i < part; i += 64)
        for (int s = 0; s < kStreams; s++) {
            const uint32_t* at = from + s * part + i;
            a |= load_u(at), b |= load_u(at + 16);
            c |= load_u(at + 32), d |= load_u(at + 48);
        }
    return a | b | c | d;
}

// The same with some arithmetic and a fetch after each line. Products read like this beside few
// rows; without the arithmetic, fetches wait for each other.
template <int kStreams>
UVec read_streams_ahead(const uint32_t* from, int64_t part) {
    constexpr int64_t kAhead = kNearWords * kPanel;  // about 5 KiB
    UVec sums[4] = {};
    for (int64_t i = 0; i < part; i += 64)
        for (int s = 0; s < kStreams; s++)
            for (int line = 0; line < 4; line++) {
                const uint32_t* at = from + s * part + i + line * 16;
                const UVec x = load_u(at);
                for (int q = 0; q < 3; q++) sums[(line + q) % 4] += x ^ sums[(line + q + 1) % 4];
                fetch_here(at + kAhead);
            }
    return sums[0] | sums[1] | sums[2] | sums[3];
}

}  // namespace paceline

extern "C" {

// 0 when this library's path can run in this process.
int pl_usable() {
#ifdef PACELINE_AMX
    return paceline::amx_prepare() ? 0 : 1;
#else
    return 0;
#endif
}

// Reads `bytes` (a multiple of 1 KiB per thread; the rest is skipped) and returns something of it.
// Its duration is the bandwidth bound, so it reads as is fastest here: on Intel two streams of each
// thread, fetched ahead as products fetch, elsewhere four without.
uint32_t pl_read(const uint32_t* data, int64_t bytes, int threads) {
    using namespace paceline;
    uint32_t total = 0;
    const bool ahead = is_intel();
    const int streams = ahead ? 2 : 4;
    const int64_t part = bytes / threads / (streams * 256) * 64;  // of one stream, in uint32
#pragma omp parallel num_threads(threads) reduction(^ : total)
    {
        const uint32_t* from = data + omp_get_thread_num() * streams * part;
        const UVec bits = ahead ? read_streams_ahead<2>(from, part) : read_streams<4>(from, part);
        for (int i = 0; i < kLanes; i++) total ^= bits[i];
    }
    return total;
}

// `rounds` rounds of independent products of bf16 per thread, from registers alone: the arithmetic
// bound. Returns the flop of a round. (`sink` keeps the sums from being left out.)
int64_t pl_peak(int64_t rounds, int threads) {
    using namespace paceline;
    static volatile float sink;
#ifdef PACELINE_AMX
    amx_prepare();
#pragma omp parallel num_threads(threads)
    {
        using Format = Bf16;
        float result[256];
        const TileMode tiles;
        PL_TILE_ZERO(0);
        PL_TILE_ZERO(1);
        PL_TILE_ZERO(2);
        PL_TILE_ZERO(3);
        PL_TILE_ZERO(4);
        PL_TILE_ZERO(5);
        for (int64_t i = 0; i < rounds; i++) {
            PL_TILE_DOT(0, 4, 5);
            PL_TILE_DOT(1, 4, 5);
            PL_TILE_DOT(2, 4, 5);
            PL_TILE_DOT(3, 4, 5);
        }
        PL_TILE_STORE(0, result, 64);
        sink = result[0];
    }
    return 4 * 2 * 16 * 16 * 32;
#else
    constexpr int kChains = 24;
#pragma omp parallel num_threads(threads)
    {
        Vec acc[kChains];
        for (int j = 0; j < kChains; j++) acc[j] = splat((float)j);  // equal chains would be merged
        const UVec x = splat_u((uint32_t)rounds);
        for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 24
            for (int j = 0; j < kChains; j++) acc[j] = dot2(acc[j], x, x);
        }
        float total = 0;
        for (int j = 0; j < kChains; j++) total += sum(acc[j]);
        sink = total;
    }
    return kChains * 4 * kLanes;
#endif
}

}  // extern "C"
