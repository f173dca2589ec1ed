// A whole transformer forward (Llama, Qwen2, Qwen3 dense; DFlash drafters) in one parallel region.
#pragma once

#include <algorithm>
#include <limits>

#include "rows.h"
#include "workspace.h"

namespace paceline {

struct Forward {
    const PlModel& model;
    const PlBatch& batch;
    Workspace& space;

    int64_t group = model.heads / model.kv_heads;
    int64_t hidden_stride = padded(model.hidden);
    int64_t attention_stride = padded(model.heads * model.head_dim);
    int64_t inter_stride = padded(model.intermediate);
    int64_t qkv_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
    int64_t head_words = 2 * key_words(model.head_dim);  // of a block's keys and values
    int64_t kernel_width = 2 * model.taps * model.groups;
    int64_t scratch_floats = 0;

    float *residual = nullptr, *qkv = nullptr;
    uint16_t *normed = nullptr, *replicated = nullptr;  // for all threads; one piece per thread
    uint16_t *queries = nullptr, *attention = nullptr, *activated = nullptr;
    float *kernels = nullptr, *sublayer = nullptr;  // of convolutions: by row
    uint16_t* convolved = nullptr;
    QuantizedRoom quantized{};
    AttentionShape shape{};

    void reserve(int64_t threads) {
        const int64_t rows = batch.rows, tall = std::max(rows, batch.outputs) + kRowSlack;
        residual = space.residual.reserve<float>(rows * model.hidden);
        normed = space.normed.reserve<uint16_t>((tall + threads * (kReplicatedRows + kRowSlack)) *
                                                hidden_stride);
        replicated = normed + tall * hidden_stride;
        qkv = space.qkv.reserve<float>(rows * qkv_width);
        queries =
            space.queries.reserve<uint16_t>((rows * model.heads + kRowSlack) * model.head_dim);
        attention = space.attention.reserve<uint16_t>(tall * attention_stride);
        activated = space.activated.reserve<uint16_t>(tall * inter_stride);
        if (model.taps) {
            kernels = space.kernels.reserve<float>(rows * kernel_width);
            sublayer = space.sublayer.reserve<float>(rows * model.hidden);
            convolved = space.convolved.reserve<uint16_t>(tall * hidden_stride);
        }
        quantized.reserve(space, tall, std::max({hidden_stride, attention_stride, inter_stride}),
                          threads);
        scratch_floats = thread_scratch(group, model.head_dim);
        space.scratch.reserve<float>(threads * scratch_floats);
        int64_t slots = 0;
        for (const Plan& plan : space.plans) slots = std::max(slots, plan.slots);
        space.partials.reserve<float>(slots * (model.head_dim + 2));
        space.best.reserve<Best>(threads * (batch.outputs + 8));
        if (batch.confidence)
            space.weights.reserve<Partial>(batch.outputs * panel_count(model.head));
        space.team.begin(model.layers * 24 + 8, threads);
        shape = {model.kv_heads,
                 group,
                 model.head_dim,
                 rows,
                 model.scale,
                 {},
                 queries,
                 batch.positions,
                 attention,
                 attention_stride,
                 space.partials.get<float>()};
    }

    // Where `count` normed rows go: to all threads, or to each its own.
    uint16_t* normed_rows(const Worker& worker, int64_t count) const {
        if (count > kReplicatedRows) return normed;
        return replicated + worker.id * (kReplicatedRows + kRowSlack) * hidden_stride;
    }

    // The norm of rows pick(0…count-1) of the residual stream, ready for every thread to multiply
    // with w.
    template <class Pick>
    Activations norm(Worker& worker, const float* weight, const PlMatrix& w, int64_t count,
                     Pick&& pick) {
        uint16_t* to = normed_rows(worker, count);
        const QuantizedRows whole = quantized.of(worker, w, count);
        auto one = [&](int64_t i) {
            uint16_t* row = to + i * hidden_stride;
            rms_norm(residual + pick(i) * model.hidden, weight, model.hidden, hidden_stride,
                     model.epsilon, row);
            if (w.scales) whole.put(i, row, model.hidden);
        };
        if (count <= kReplicatedRows) {
            for (int64_t i = 0; i < count; i++) one(i);
        } else {
            worker.share_rows(count, one);
            worker.barrier();
        }
        return w.scales ? whole.read() : Activations{(const uint32_t*)to, hidden_stride / 2};
    }

    float* scratch(Worker& worker) {
        return space.scratch.get<float>() + worker.id * scratch_floats;
    }

    // residual += rows . w (+ bias), through the convolution of a sublayer's output where there is
    // one; `next` is the product that follows.
    void add_product(Worker& worker, const Activations& rows, const PlMatrix& w,
                     const PlConvolution& convolution, const PlMatrix& next) {
        const Activations a = quantized.operand(worker, rows, batch.rows, w);
        const bool convolves = convolution.kernels.panels != nullptr;
        if (convolves) {
            worker.share(batch.rows, [&](int64_t row) {
                memset(sublayer + row * model.hidden, 0, model.hidden * sizeof(float));
            });
            worker.barrier();
        }
        float* to = convolves ? sublayer : residual;
        gemm(
            worker, a, batch.rows, w, scratch(worker),
            [&](int64_t row, int64_t column, int64_t count, const float* c) {
                float* x = to + row * w.n + column;
                for (int64_t i = 0; i < count; i++) x[i] += c[i];
                if (w.bias)
                    for (int64_t i = 0; i < count; i++) x[i] += w.bias[column + i];
            },
            [&](int64_t row, int64_t column, int64_t count) {
                return floats(to + row * w.n + column, count);
            });
        worker.barrier(first_panels(worker, next));
        if (convolves) finish_convolution(worker, convolution);
    }

    // The rows of a normed sublayer input after its convolution, ready to multiply with `first`;
    // their kernels are kept for its output.
    Activations start_convolution(Worker& worker, const float* norm_weight,
                                  const PlConvolution& convolution, const PlMatrix& first) {
        worker.share(batch.rows, [&](int64_t row) {
            rms_norm(residual + row * model.hidden, norm_weight, model.hidden, hidden_stride,
                     model.epsilon, normed + row * hidden_stride);
        });
        worker.barrier();
        const PlMatrix& w = convolution.kernels;
        gemm(worker, {(const uint32_t*)normed, hidden_stride / 2}, batch.rows, w, scratch(worker),
             [&](int64_t row, int64_t column, int64_t count, const float* c) {
                 memcpy(kernels + row * kernel_width + column, c, count * sizeof(float));
             });
        worker.barrier();
        worker.share(batch.rows, [&](int64_t row) {
            uint16_t* to = convolved + row * hidden_stride;
            convolve_row(
                convolution.base, kernels + row * kernel_width, model.taps, model.groups,
                model.hidden, slot(row),
                [&](int64_t tap, int64_t c) {
                    return bf16_to_float(normed[(row - tap) * hidden_stride + c]);
                },
                [&](int64_t c, float value) { to[c] = float_to_bf16(value); });
            memset(to + model.hidden, 0, (hidden_stride - model.hidden) * sizeof(uint16_t));
        });
        worker.barrier();
        const Activations rows{(const uint32_t*)convolved, hidden_stride / 2};
        return quantized.operand(worker, rows, batch.rows, first);
    }

    void finish_convolution(Worker& worker, const PlConvolution& convolution) {
        worker.share(batch.rows, [&](int64_t row) {
            float* to = residual + row * model.hidden;
            convolve_row(
                convolution.base + model.taps * model.hidden,
                kernels + row * kernel_width + model.taps * model.groups, model.taps, model.groups,
                model.hidden, slot(row),
                [&](int64_t tap, int64_t c) { return sublayer[(row - tap) * model.hidden + c]; },
                [&](int64_t c, float value) { to[c] += value; });
        });
        worker.barrier();
    }

    // Place of a row in its block.
    int64_t slot(int64_t row) const { return row - batch.seq_starts[space.sequence_of[row]]; }

    void project_qkv(Worker& worker, const Activations& a, const PlMatrix& w) {
        gemm(
            worker, a, batch.rows, w, scratch(worker),
            [&](int64_t row, int64_t column, int64_t count, const float* c) {
                float* to = qkv + row * qkv_width + column;
                for (int64_t i = 0; i < count; i += kLanes) {
                    Vec v = load(c + i);
                    store(to + i, w.bias ? v + load(w.bias + column + i) : v);
                }
            },
            [&](int64_t row, int64_t column, int64_t count) {
                return floats(qkv + row * qkv_width + column, count);
            });
        worker.barrier();
    }

    // q and k norm, rotary, KV write, and the queries of a KV head's group laid side by side. Keys
    // and values of a run of rows are one item, since they share cache lines; queries are another.
    void place_heads(Worker& worker, const PlLayer& layer) {
        const int64_t runs = ceil_div(batch.rows, kRowRun), halves = 2 * model.kv_heads;
        worker.share(runs * halves, [&](int64_t item) {
            const int64_t h = item % halves / 2, row0 = item / halves * kRowRun;
            for (int64_t row = row0; row < std::min(row0 + kRowRun, batch.rows); row++)
                item % 2 ? place_queries(layer, row, h) : place_kv(layer, row, h);
        });
        worker.barrier(first_panels(worker, layer.o));
    }

    // The rotated part of a head, as the row's position says.
    void turn(float* x, int64_t row, const float* norm) const {
        const int64_t at = batch.positions[row] * model.rotary_half;
        if (norm) head_norm(x, norm, model.head_dim, model.epsilon);
        rotate(x, model.cos + at, model.sin + at, model.rotary_half);
    }

    void place_queries(const PlLayer& layer, int64_t row, int64_t h) const {
        const int64_t dim = model.head_dim;
        for (int64_t j = 0; j < group; j++) {
            float* x = qkv + row * qkv_width + (h * group + j) * dim;
            turn(x, row, layer.q_norm);
            uint16_t* to = queries + ((h * batch.rows + row) * group + j) * dim;
            for (int64_t d = 0; d < dim; d += kLanes) store_bf16(to + d, load(x + d));
        }
    }

    void place_kv(const PlLayer& layer, int64_t row, int64_t h) const {
        const int64_t dim = model.head_dim, position = batch.positions[row];
        float* k = qkv + row * qkv_width + (model.heads + h) * dim;
        turn(k, row, layer.k_norm);
        auto write_for = [&](int64_t sequence) {
            const int32_t* table = batch.block_tables + sequence * batch.table_stride;
            const int64_t block = table[position / kBlockTokens] * model.kv_heads + h;
            write_kv(k, k + model.kv_heads * dim, dim, (int)(position % kBlockTokens),
                     layer.kv + block * head_words);
        };
        write_for(space.sequence_of[row]);
        if (batch.share_starts)
            for (int32_t i = batch.share_starts[row]; i < batch.share_starts[row + 1]; i++)
                write_for(batch.sharers[i]);
    }

    KVBlocks blocks_of(const AttentionItem& item, const PlLayer& layer) const {
        return {layer.kv + item.kv_head * head_words,
                batch.block_tables + item.sequence * batch.table_stride,
                model.kv_heads * head_words, head_words / 2};
    }

    void attend(Worker& worker, const PlLayer& layer) {
        const Plan& plan = space.plan_of(layer);
        AttentionShape seen = shape;
        seen.sight = plan.sight;
        {
            const AttentionTiles tiles;
            auto items = [&](int run) { return plan.items_of(run, worker.team.size); };
            auto count = [&](int run) { return items(run).second - items(run).first; };
            worker.share_runs(count, [&](int run, int64_t place) {
                const auto [begin, end] = items(run);
                const AttentionItem *item = begin + place, *after = item + 1;
                NextItem next{};
                if (after < end) next = {after, blocks_of(*after, layer)};
                attention_item(seen, *item, blocks_of(*item, layer), next, scratch(worker));
            });
        }
        worker.barrier(first_panels(worker, layer.o));
        if (plan.combines.empty()) return;
        worker.share((int64_t)plan.combines.size(),
                     [&](int64_t i) { combine_item(seen, plan.combines[i], scratch(worker)); });
        worker.barrier(first_panels(worker, layer.o));
    }

    void gate_up(Worker& worker, const Activations& a, const PlLayer& layer) {
        const PlMatrix& w = layer.gate_up;
        auto to_row = [&](int64_t row, int64_t column) {
            return activated + row * inter_stride + column / 2;
        };
        gemm(
            worker, a, batch.rows, w, scratch(worker),
            [&](int64_t row, int64_t column, int64_t count, const float* c) {
                uint16_t* to = to_row(row, column);
                const float* bias = w.bias ? w.bias + column : nullptr;
                for (int64_t i = 0; i < count; i += kPanel, to += kLanes) {
                    Vec gate = load(c + i), up = load(c + i + kLanes);
                    if (bias) gate += load(bias + i), up += load(bias + i + kLanes);
                    store_bf16(to, silu(gate) * up);
                }
            },
            [&](int64_t row, int64_t column, int64_t count) {
                return Place{to_row(row, column), count};
            });
        worker.barrier(first_panels(worker, layer.down));
    }

    // `next` is the product that follows: the next layer's first, or the head.
    void layer_forward(Worker& worker, const PlLayer& layer, const PlMatrix& next) {
        project_qkv(worker,
                    enter(worker, layer.attention_norm, layer.attention_convolution, layer.qkv),
                    layer.qkv);
        worker.mark();
        place_heads(worker, layer);
        worker.mark();
        attend(worker, layer);
        worker.mark();
        const Activations attended{(const uint32_t*)attention, attention_stride / 2};
        add_product(worker, attended, layer.o, layer.attention_convolution, layer.gate_up);
        worker.mark();
        gate_up(worker, enter(worker, layer.mlp_norm, layer.mlp_convolution, layer.gate_up), layer);
        worker.mark();
        const Activations gated{(const uint32_t*)activated, inter_stride / 2};
        add_product(worker, gated, layer.down, layer.mlp_convolution, next);
        worker.mark();
    }

    // What a sublayer's first product multiplies with.
    Activations enter(Worker& worker, const float* weight, const PlConvolution& convolution,
                      const PlMatrix& first) {
        if (convolution.kernels.panels)
            return start_convolution(worker, weight, convolution, first);
        return norm(worker, weight, first, batch.rows, [](int64_t i) { return i; });
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
        const Activations a = norm(worker, model.final_norm, model.head, batch.outputs, pick);
        Best* best = space.best.get<Best>() + worker.id * (batch.outputs + 8);
        const float least = -std::numeric_limits<float>::infinity();
        std::fill(best, best + batch.outputs, Best{least, 0, INT64_MAX});
        Partial* weights = batch.confidence ? space.weights.get<Partial>() : nullptr;
        gemm(worker, a, batch.outputs, model.head, scratch(worker),
             [&](int64_t row, int64_t column, int64_t count, const float* c) {
                 if (batch.logits) store_far(batch.logits + row * model.vocab + column, c, count);
                 for (int64_t i = 0; weights && i < count; i += kPanel)
                     weights[row * panel_count(model.head) + (column + i) / kPanel] =
                         weigh(c + i, std::min<int64_t>(kPanel, count - i));
                 offer_all(best[row], c, count, column);
             });
        store_fence();
        worker.barrier();
        for (int64_t row = worker.id; row < batch.outputs; row += worker.team.size) {
            Best top = space.best.get<Best>()[row];
            for (int t = 1; t < worker.team.size; t++) {
                Best other = space.best.get<Best>()[t * (batch.outputs + 8) + row];
                top.offer(other.value, other.id);
                top.excess += other.excess;
            }
            if (batch.finite) batch.finite[row] = top.finite();
            batch.argmax[row] = top.id == INT64_MAX ? 0 : top.id;
            if (weights) batch.confidence[row] = confidence(weights, row, top.value);
        }
        if (batch.hidden && worker.id == 0)
            for (int64_t row = 0; row < batch.outputs; row++)
                memcpy(batch.hidden + row * model.hidden,
                       normed_rows(worker, batch.outputs) + row * hidden_stride,
                       model.hidden * sizeof(uint16_t));
    }

    // Probability of a row's largest logit: the panels' weights are summed in their order.
    float confidence(const Partial* weights, int64_t row, float top) const {
        const int64_t panels = panel_count(model.head);
        float total = 0;
        for (int64_t p = 0; p < panels; p++) {
            const Partial& weight = weights[row * panels + p];
            total += weight.sum * exp2(splat((weight.maximum - top) * 1.44269504f))[0];
        }
        return 1.0f / total;
    }

    void run(Worker& worker) {
        worker.mark();
        worker.share_rows(batch.rows, [&](int64_t row) {
            embed(model, batch.ids[row], residual + row * model.hidden);
        });
        worker.barrier();
        worker.mark();
        for (int64_t l = 0; l < model.layers; l++) {
            const bool last = l + 1 == model.layers;
            layer_forward(worker, model.layer[l], last ? model.head : model.layer[l + 1].qkv);
            tap(worker, l);
            worker.mark();
        }
        if (batch.outputs) head(worker);
        worker.mark();
    }
};

}  // namespace paceline
