// A whole transformer forward (Llama, Qwen2, Qwen3 dense) in one parallel region.
#include <omp.h>

#include <algorithm>
#include <limits>

#include "plan.h"
#include "rows.h"

namespace paceline {

// Buffers of one forward, kept for the next. A row's stride is padded to whole pairs of 32 k.
struct Workspace {
    Team team;
    Buffer residual, normed, qkv, queries, attention, activated, partials, scratch, best;
    Plan plan;
};

namespace {

constexpr int64_t kReplicatedRows = 2;  // up to here every thread norms all rows: saves a barrier
constexpr int64_t kRowRun = 16;         // rows whose heads are placed by one work item
constexpr int64_t kRowSlack = 32;       // AMX tiles read whole tiles of rows

int64_t padded(int64_t k) { return ceil_div(k, 32) * 32; }

struct Forward {
    const PlModel& model;
    const PlBatch& batch;
    Workspace& space;

    int64_t group = model.heads / model.kv_heads;
    int64_t hidden_stride = padded(model.hidden);
    int64_t attention_stride = padded(model.heads * model.head_dim);
    int64_t inter_stride = padded(model.intermediate);
    int64_t qkv_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
    int64_t kv_block = model.kv_heads * model.head_dim * kBlockTokens / 2;  // in uint32
    int64_t scratch_floats = 0;


    float *residual = nullptr, *qkv = nullptr;
    uint16_t *normed = nullptr, *replicated = nullptr;  // for all threads; one piece per thread
    uint16_t *queries = nullptr, *attention = nullptr, *activated = nullptr;
    AttentionShape shape{};

    void reserve(int64_t threads) {
        const int64_t rows = batch.rows, tall = std::max(rows, batch.outputs) + kRowSlack;
        residual = space.residual.reserve<float>(rows * model.hidden);
        normed = space.normed.reserve<uint16_t>(
            (tall + threads * (kReplicatedRows + kRowSlack)) * hidden_stride);
        replicated = normed + tall * hidden_stride;
        qkv = space.qkv.reserve<float>(rows * qkv_width);
        queries = space.queries.reserve<uint16_t>(rows * model.heads * model.head_dim);
        attention = space.attention.reserve<uint16_t>(tall * attention_stride);
        activated = space.activated.reserve<uint16_t>(tall * inter_stride);
        scratch_floats = std::max<int64_t>((kBlockRows + kRowSlack) * kWidth,
                                           attention_scratch(group, model.head_dim));
        scratch_floats = ceil_div(scratch_floats, 1024) * 1024;
        space.scratch.reserve<float>(threads * scratch_floats);
        space.partials.reserve<float>(space.plan.slots * (model.head_dim + 2));
        space.best.reserve<Best>(threads * (batch.outputs + 8));
        space.team.begin(model.layers * 10 + 8);
        shape = {model.kv_heads, group, model.head_dim, rows, model.scale, queries, batch.positions,
                 attention, attention_stride, space.partials.get<float>()};
    }

    // The norm of rows pick(0…count-1) of the residual stream, ready for every thread to read.
    template <class Pick>
    Activations norm(Worker& worker, const float* weight, int64_t count, Pick&& pick) {
        const bool everywhere = count <= kReplicatedRows;
        uint16_t* to = normed;
        if (everywhere) to = replicated + worker.id * (kReplicatedRows + kRowSlack) * hidden_stride;
        auto one = [&](int64_t i) {
            rms_norm(residual + pick(i) * model.hidden, weight, model.hidden, hidden_stride,
                     model.epsilon, to + i * hidden_stride);
        };
        if (everywhere) {
            for (int64_t i = 0; i < count; i++) one(i);
        } else {
            worker.share(count, [&](int64_t i, int64_t) { one(i); });
            worker.barrier();
        }
        return {(const uint32_t*)to, hidden_stride / 2};
    }

    float* scratch(Worker& worker) {
        return space.scratch.get<float>() + worker.id * scratch_floats;
    }

    // residual += a . w (+ bias); `next` is the product that follows.
    void add_product(Worker& worker, const Activations& a, const PlMatrix& w,
                     const PlMatrix& next) {
        gemm(worker, a, batch.rows, w, scratch(worker),
             [&](int64_t row, int64_t panel, int count, const float* c) {
                 const int64_t column = panel * kLanes;
                 const int64_t n = std::min<int64_t>(count * kLanes, w.n - column);
                 float* x = residual + row * w.n + column;
                 for (int64_t i = 0; i < n; i++) x[i] += c[i];
                 if (w.bias)
                     for (int64_t i = 0; i < n; i++) x[i] += w.bias[column + i];
             });
        worker.barrier(first_panels(worker, next));
    }

    void project_qkv(Worker& worker, const Activations& a, const PlMatrix& w) {
        gemm(worker, a, batch.rows, w, scratch(worker),
             [&](int64_t row, int64_t panel, int count, const float* c) {
                 const int64_t column = panel * kLanes;
                 float* to = qkv + row * qkv_width + column;
                 for (int i = 0; i < count * kLanes; i += kLanes) {
                     Vec v = load(c + i);
                     store(to + i, w.bias ? v + load(w.bias + column + i) : v);
                 }
             });
        worker.barrier();
    }

    // q and k norm, rotary, KV write, and the queries of a KV head's group laid side by side.
    void place_heads(Worker& worker, const PlLayer& layer) {
        const int64_t dim = model.head_dim, heads = model.heads;
        worker.share(ceil_div(batch.rows, kRowRun) * model.kv_heads, [&](int64_t item, int64_t) {
            const int64_t h = item % model.kv_heads, row0 = item / model.kv_heads * kRowRun;
            for (int64_t row = row0; row < std::min(row0 + kRowRun, batch.rows); row++) {
                const int32_t* table =
                    batch.block_tables + space.plan.sequence_of[row] * batch.table_stride;
                const int64_t position = batch.positions[row];
                const float* cos = model.cos + position * model.rotary_half;
                const float* sin = model.sin + position * model.rotary_half;
                float* q = qkv + row * qkv_width + h * group * dim;
                float* k = qkv + row * qkv_width + (heads + h) * dim;
                const float* v = qkv + row * qkv_width + (heads + model.kv_heads + h) * dim;
                for (int64_t j = 0; j < group; j++) {
                    float* x = q + j * dim;
                    if (layer.q_norm) head_norm(x, layer.q_norm, dim, model.epsilon);
                    rotate(x, cos, sin, model.rotary_half);
                    uint16_t* to = queries + ((h * batch.rows + row) * group + j) * dim;
                    for (int64_t d = 0; d < dim; d += kLanes) store_bf16(to + d, load(x + d));
                }
                if (layer.k_norm) head_norm(k, layer.k_norm, dim, model.epsilon);
                rotate(k, cos, sin, model.rotary_half);
                const int64_t at = table[position / kBlockTokens] * kv_block +
                                   h * dim * kBlockTokens / 2;
                write_kv(k, v, dim, (int)(position % kBlockTokens), layer.k_cache + at,
                         layer.v_cache + at);
            }
        });
        worker.barrier(first_panels(worker, layer.o));
    }

    void attend(Worker& worker, const PlLayer& layer) {
        worker.share((int64_t)space.plan.items.size(), [&](int64_t i, int64_t) {
            const AttentionItem& item = space.plan.items[i];
            KVBlocks kv{layer.k_cache, layer.v_cache,
                        batch.block_tables + item.sequence * batch.table_stride, kv_block,
                        item.kv_head * model.head_dim * kBlockTokens / 2};
            attention_item(shape, item, kv, scratch(worker));
        });
        worker.barrier(first_panels(worker, layer.o));
        if (space.plan.combines.empty()) return;
        worker.share((int64_t)space.plan.combines.size(), [&](int64_t i, int64_t) {
            combine_item(shape, space.plan.combines[i], scratch(worker));
        });
        worker.barrier(first_panels(worker, layer.o));
    }

    void gate_up(Worker& worker, const Activations& a, const PlLayer& layer) {
        const PlMatrix& w = layer.gate_up;
        gemm(worker, a, batch.rows, w, scratch(worker),
             [&](int64_t row, int64_t panel, int count, const float* c) {
                 uint16_t* to = activated + row * inter_stride + panel / 2 * kLanes;
                 const float* bias = w.bias ? w.bias + panel * kLanes : nullptr;
                 for (int i = 0; i < count * kLanes; i += 2 * kLanes, to += kLanes) {
                     Vec gate = load(c + i), up = load(c + i + kLanes);
                     if (bias) gate += load(bias + i), up += load(bias + i + kLanes);
                     store_bf16(to, silu(gate) * up);
                 }
             });
        worker.barrier(first_panels(worker, layer.down));
    }

    // `next` is the product that follows: the next layer's first, or the head.
    void layer_forward(Worker& worker, const PlLayer& layer, const PlMatrix& next) {
        auto every = [](int64_t i) { return i; };
        project_qkv(worker, norm(worker, layer.attention_norm, batch.rows, every), layer.qkv);
        place_heads(worker, layer);
        attend(worker, layer);
        const Activations attended{(const uint32_t*)attention, attention_stride / 2};
        add_product(worker, attended, layer.o, layer.gate_up);
        gate_up(worker, norm(worker, layer.mlp_norm, batch.rows, every), layer);
        const Activations gated{(const uint32_t*)activated, inter_stride / 2};
        add_product(worker, gated, layer.down, next);
    }

    // No barrier: the residual stream is not written again before the next two.
    void tap(Worker& worker, int64_t layer) {
        for (int64_t t = 0; t < batch.taps; t++) {
            if (batch.tap_layers[t] != layer) continue;
            for (int64_t row = worker.id; row < batch.rows; row += worker.team.size) {
                uint16_t* to = batch.features + (row * batch.taps + t) * model.hidden;
                const float* from = residual + row * model.hidden;
                for (int64_t i = 0; i < model.hidden; i++) to[i] = float_to_bf16(from[i]);
            }
        }
    }

    void head(Worker& worker) {
        auto pick = [&](int64_t i) { return (int64_t)batch.logit_rows[i]; };
        Activations a = norm(worker, model.final_norm, batch.outputs, pick);
        Best* best = space.best.get<Best>() + worker.id * (batch.outputs + 8);
        const float least = -std::numeric_limits<float>::infinity();
        std::fill(best, best + batch.outputs, Best{least, INT64_MAX});
        gemm(worker, a, batch.outputs, model.head, scratch(worker),
             [&](int64_t row, int64_t panel, int count, const float* c) {
                 const int64_t column = panel * kLanes;
                 const int64_t n = std::min<int64_t>(count * kLanes, model.vocab - column);
                 store_far(batch.logits + row * model.vocab + column, c, n);
                 offer_all(best[row], c, n, column);
             });
        store_fence();
        worker.barrier();
        for (int64_t row = worker.id; row < batch.outputs; row += worker.team.size) {
            Best top = space.best.get<Best>()[row];
            for (int t = 1; t < worker.team.size; t++) {
                Best other = space.best.get<Best>()[t * (batch.outputs + 8) + row];
                top.offer(other.value, other.id);
            }
            batch.argmax[row] = top.id == INT64_MAX ? 0 : top.id;
        }
    }

    void run(Worker& worker) {
        worker.share(batch.rows, [&](int64_t row, int64_t) {
            embed(model, batch.ids[row], residual + row * model.hidden);
        });
        worker.barrier();
        for (int64_t l = 0; l < model.layers; l++) {
            const bool last = l + 1 == model.layers;
            layer_forward(worker, model.layer[l], last ? model.head : model.layer[l + 1].qkv);
            tap(worker, l);
        }
        if (batch.outputs) head(worker);
    }
};

}  // namespace
}  // namespace paceline

extern "C" {

void* pl_workspace_create() { return new (std::nothrow) paceline::Workspace(); }
void pl_workspace_destroy(void* space) { delete (paceline::Workspace*)space; }

// Returns 0, or 1 when memory ran out.
int pl_forward(const PlModel* model, const PlBatch* batch, void* workspace) {
    using namespace paceline;
    Workspace& space = *(Workspace*)workspace;
    try {
        Forward forward{*model, *batch, space};
        space.plan.make(*batch, model->kv_heads, model->heads / model->kv_heads);
        forward.reserve(batch->threads);
#ifdef PACELINE_AMX
        amx_prepare();
#endif
#pragma omp parallel num_threads((int)batch->threads)
        {
#pragma omp single
            space.team.size = omp_get_num_threads();
            Worker worker{space.team, omp_get_thread_num()};
#ifdef PACELINE_AMX
            amx_configure();
#endif
            forward.run(worker);
#ifdef PACELINE_AMX
            amx_release();
#endif
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // extern "C"
