// Every fused operation alone, so that a test can hold it against its torch twin.
#include <omp.h>

#include "plan.h"
#include "rows.h"

using namespace paceline;

namespace {

// Runs work(worker) in a team of its own, as a forward does.
template <class Work>
void in_team(int64_t threads, Work&& work) {
    Team team;
    team.begin(4, threads);
#ifdef PACELINE_AMX
    amx_prepare();
#endif
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp single
        team.size = omp_get_num_threads();
        Worker worker{team, omp_get_thread_num()};
#ifdef PACELINE_AMX
        const TileMode tiles;
#endif
        work(worker);
    }
}

void multiply(const PlMatrix& w, const Activations& a, int64_t rows, int64_t threads, float* out) {
    constexpr int64_t kScratch = (kBlockRows + 32) * kWidth;
    std::vector<Buffer> scratch(threads);
    for (Buffer& buffer : scratch) buffer.reserve<float>(kScratch);
    in_team(threads, [&](Worker& worker) {
        gemm(worker, a, rows, w, scratch[worker.id].get<float>(),
             [&](int64_t row, int64_t column, int64_t count, const float* c) {
                 memcpy(out + row * w.n + column, c, count * sizeof(float));
             });
    });
}

}  // namespace

extern "C" {

void op_rms_norm(const float* x, const float* weight, int64_t rows, int64_t n, int64_t padded,
                 float epsilon, uint16_t* y) {
    for (int64_t r = 0; r < rows; r++)
        rms_norm(x + r * n, weight, n, padded, epsilon, y + r * padded);
}

void op_head_norm(float* x, const float* weight, int64_t rows, int64_t n, float epsilon) {
    for (int64_t r = 0; r < rows; r++) head_norm(x + r * n, weight, n, epsilon);
}

void op_rotate(float* x, const float* cos, const float* sin, int64_t rows, int64_t half) {
    for (int64_t r = 0; r < rows; r++)
        rotate(x + r * 2 * half, cos + r * half, sin + r * half, half);
}

void op_swiglu(const float* gate, const float* up, int64_t n, uint16_t* y) {
    for (int64_t i = 0; i < n; i += kLanes) store_bf16(y + i, silu(load(gate + i)) * load(up + i));
}

// out[rows, n] of x[rows, stride] bf16; x has room for 32 rows more.
void op_linear(const PlMatrix* w, const uint32_t* x, int64_t stride, int64_t rows, int64_t threads,
               float* out) {
    multiply(*w, {x, stride / 2}, rows, threads, out);
}

// q[rows, padded] int8 and their scales, of x[rows, n] bf16.
void op_quantize(const uint16_t* x, int64_t rows, int64_t n, int64_t padded, int8_t* q,
                 float* scales, int32_t* offsets) {
    std::vector<float> wide(padded);
    for (int64_t r = 0; r < rows; r++) {
        const RowScale scale = quantize_row(x + r * n, n, padded, wide.data(), q + r * padded);
        scales[r] = scale.scale, offsets[r] = scale.offset;
    }
}

// out[rows, n] of the same rows as int8; w has scales.
void op_int8_linear(const PlMatrix* w, const uint16_t* x, int64_t rows, int64_t threads,
                    float* out) {
    const int64_t width = ceil_div(w->k, 64) * 64;
    std::vector<int8_t> q((rows + 32) * width);
    std::vector<float> wide(width);
    std::vector<RowScale> scales(rows);
    for (int64_t r = 0; r < rows; r++)
        scales[r] = quantize_row(x + r * w->k, w->k, width, wide.data(), q.data() + r * width);
    multiply(*w, {(const uint32_t*)q.data(), width / 4, scales.data()}, rows, threads, out);
}

// Writes the first `room` work items of attention over a batch, each as its sequence, KV head, rows
// q0…q1-1 and chunks c0…c1-1; returns how many there are. The items of thread t in a team are those
// from ends[t - 1] (0 for the first) to ends[t].
int64_t op_plan(const PlBatch* batch, int64_t kv_heads, int64_t group, int32_t* items, int64_t room,
                int64_t team, int64_t* ends) {
    Plan plan;
    plan.make(*batch, kv_heads, group);
    const auto count = (int64_t)plan.items.size();
    for (int64_t i = 0; i < std::min(count, room); i++) {
        const AttentionItem& item = plan.items[i];
        for (int32_t value : {item.sequence, item.kv_head, item.q0, item.q1, item.c0, item.c1})
            *items++ = value;
    }
    const AttentionItem* done = plan.items.data();
    for (int64_t t = 0; t < team; t++) {
        const auto [begin, end] = plan.items_of((int)t, (int)team);
        if (begin != done) return -1;
        *ends++ = (done = end) - plan.items.data();
    }
    return count;
}

// Writes keys and values [rows][kv_heads][head_dim] of one sequence, then attends with queries
// [kv_heads][rows][group][head_dim] bf16, with kRowSlack heads behind them, into out
// [rows][heads * head_dim] bf16.
void op_attend(const PlModel* model, const PlBatch* batch, const PlLayer* cache, const float* keys,
               const float* values, const uint16_t* queries, uint16_t* out) {
    const int64_t dim = model->head_dim, kv_heads = model->kv_heads,
                  group = model->heads / kv_heads;
    const int64_t words = key_words(dim);
    Plan plan;
    plan.sight = {cache->window, cache->bidirectional};
    plan.make(*batch, kv_heads, group);
    for (int64_t row = 0, sequence = 0; row < batch->rows; row++) {
        while (row >= batch->seq_starts[sequence + 1]) sequence++;
        const int32_t* table = batch->block_tables + sequence * batch->table_stride;
        const int64_t position = batch->positions[row];
        for (int64_t h = 0; h < kv_heads; h++) {
            const int64_t from = (row * kv_heads + h) * dim;
            const int64_t block = table[position / kBlockTokens] * kv_heads + h;
            write_kv(keys + from, values + from, dim, (int)(position % kBlockTokens),
                     cache->kv + block * 2 * words);
        }
    }
    Buffer partials;
    AttentionShape shape{kv_heads,
                         group,
                         dim,
                         batch->rows,
                         model->scale,
                         plan.sight,
                         queries,
                         batch->positions,
                         out,
                         model->heads * dim,
                         partials.reserve<float>(plan.slots * (dim + 2) + 1)};
    std::vector<Buffer> scratch(batch->threads);
    for (Buffer& buffer : scratch) buffer.reserve<float>(attention_scratch(group, dim));
    in_team(batch->threads, [&](Worker& worker) {
        float* own = scratch[worker.id].get<float>();
        {
            const AttentionTiles tiles;
            auto blocks_of = [&](const AttentionItem& item) {
                return KVBlocks{cache->kv + item.kv_head * 2 * words,
                                batch->block_tables + item.sequence * batch->table_stride,
                                kv_heads * 2 * words, words};
            };
            const int64_t count = (int64_t)plan.items.size();
            worker.share(count, [&](int64_t i) {
                NextItem next{};
                if (i + 1 < count) next = {&plan.items[i + 1], blocks_of(plan.items[i + 1])};
                attention_item(shape, plan.items[i], blocks_of(plan.items[i]), next, own);
            });
        }
        worker.barrier();
        worker.share((int64_t)plan.combines.size(),
                     [&](int64_t i) { combine_item(shape, plan.combines[i], own); });
    });
}

}  // extern "C"
