// Features of committed rows -> keys and values of all layers of a DFlash drafter.
//
// norm(fc . features) is the same for every layer, so all projections run on it behind each other,
// without waiting: one call, three barriers.
#pragma once

#include "forward.h"

namespace paceline {

struct Injection {
    const PlModel& model;
    const PlContext& context;
    Workspace& space;

    int64_t kv_size = model.kv_heads * model.head_dim;
    int64_t width = padded(model.context.k), hidden_stride = padded(model.hidden);
    int64_t kv_width = model.layers * 2 * kv_size;
    int64_t scratch_floats = thread_scratch(model.heads / model.kv_heads, model.head_dim);
    uint16_t *features = nullptr, *normed = nullptr;
    float *projected = nullptr, *kv = nullptr;
    QuantizedRoom quantized{};

    void reserve() {
        const int64_t rows = context.rows, tall = rows + kRowSlack;
        features = space.activated.reserve<uint16_t>(tall * width);
        normed = space.normed.reserve<uint16_t>(tall * hidden_stride);
        projected = space.residual.reserve<float>(rows * model.hidden);
        kv = space.qkv.reserve<float>(rows * kv_width);
        quantized.reserve(space, tall, std::max(width, hidden_stride), context.threads);
        space.scratch.reserve<float>(context.threads * scratch_floats);
        space.team.begin(model.layers + 10, context.threads);
    }

    float* scratch(Worker& worker) {
        return space.scratch.get<float>() + worker.id * scratch_floats;
    }

    // to[row * stride + column] = a . w (+ bias)
    void project(Worker& worker, const Activations& a, const PlMatrix& w, float* to,
                 int64_t stride) {
        gemm(worker, a, context.rows, w, scratch(worker),
             [&](int64_t row, int64_t column, int64_t count, const float* c) {
                 float* x = to + row * stride + column;
                 for (int64_t i = 0; i < count; i++)
                     x[i] = w.bias ? c[i] + w.bias[column + i] : c[i];
             });
    }

    // The k and v rows of a layer's joint projection: its last panels.
    PlMatrix keys_and_values(const PlLayer& layer) const {
        const int64_t first = model.heads * model.head_dim;
        return {layer.qkv.panels + first / kPanel * panel_words(layer.qkv),
                layer.qkv.bias ? layer.qkv.bias + first : nullptr,
                layer.qkv.scales ? layer.qkv.scales + first : nullptr, 2 * kv_size, layer.qkv.k};
    }

    void place(int64_t row, int64_t head, int64_t l) {
        const PlLayer& layer = model.layer[l];
        const int64_t dim = model.head_dim, position = context.positions[row];
        float* k = kv + row * kv_width + l * 2 * kv_size + head * dim;
        head_norm(k, layer.k_norm, dim, model.epsilon);
        rotate(k, model.cos + position * model.rotary_half,
               model.sin + position * model.rotary_half, model.rotary_half);
        const int64_t slot = context.slots[row];
        const int64_t block = slot / kBlockTokens * model.kv_heads + head;
        write_kv(k, k + kv_size, dim, (int)(slot % kBlockTokens),
                 layer.kv + block * 2 * key_words(dim));
    }

    void run(Worker& worker) {
        worker.share(context.rows, [&](int64_t row) {
            uint16_t* to = features + row * width;
            memcpy(to, context.features + row * context.stride, model.context.k * sizeof(uint16_t));
            memset(to + model.context.k, 0, (width - model.context.k) * sizeof(uint16_t));
        });
        worker.barrier(first_panels(worker, model.context));
        const Activations taken{(const uint32_t*)features, width / 2};
        project(worker, quantized.operand(worker, taken, context.rows, model.context),
                model.context, projected, model.hidden);
        worker.barrier();
        worker.share(context.rows, [&](int64_t row) {
            rms_norm(projected + row * model.hidden, model.context_norm, model.hidden,
                     hidden_stride, model.epsilon, normed + row * hidden_stride);
        });
        worker.barrier();
        const Activations rows{(const uint32_t*)normed, hidden_stride / 2};
        const PlMatrix first = keys_and_values(model.layer[0]);  // the others have its format
        const Activations a = quantized.operand(worker, rows, context.rows, first);
        for (int64_t l = 0; l < model.layers; l++)
            project(worker, a, keys_and_values(model.layer[l]), kv + l * 2 * kv_size, kv_width);
        worker.barrier();
        const int64_t runs = ceil_div(context.rows, kRowRun), heads = model.kv_heads;
        worker.share(model.layers * runs * heads, [&](int64_t item) {
            const int64_t row0 = item / heads % runs * kRowRun;
            for (int64_t row = row0; row < std::min(row0 + kRowRun, context.rows); row++)
                place(row, item % heads, item / heads / runs);
        });
    }
};

}  // namespace paceline
