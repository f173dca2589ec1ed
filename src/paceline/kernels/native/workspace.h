// What the calls of one network share: buffers, and who attends to what in the batch at hand.
#pragma once

#include "plan.h"

namespace paceline {

constexpr int64_t kRowRun = 16;  // rows whose heads are placed by one work item
constexpr int64_t kRowSlack =
    32;  // behind the last row: tiles read and write 16 or 32, vectors 2 or 3

// Buffers of one forward, kept for the next. A row's stride is padded as weights are.
struct Workspace {
    Team team;
    Buffer residual, normed, qkv, queries, attention, activated, partials, scratch, best, weights;
    Buffer kernels, sublayer, convolved;
    Buffer quantized, row_scales, wide;
    std::vector<Plan> plans;           // one for each sight that some layer has
    std::vector<int32_t> sequence_of;  // by row

    void make_plans(const PlModel& model, const PlBatch& batch) {
        sequence_of.resize(batch.rows);
        for (int64_t s = 0; s < batch.sequences; s++)
            std::fill(sequence_of.begin() + batch.seq_starts[s],
                      sequence_of.begin() + batch.seq_starts[s + 1], (int32_t)s);
        size_t count = 0;
        for (int64_t l = 0; l < model.layers; l++) {
            const Sight sight{model.layer[l].window, model.layer[l].bidirectional};
            if (find(sight, count)) continue;
            if (plans.size() == count) plans.emplace_back();
            plans[count].sight = sight;
            plans[count++].make(batch, model.kv_heads, model.heads / model.kv_heads);
        }
        plans.resize(count);
    }
    const Plan& plan_of(const PlLayer& layer) {
        return *find({layer.window, layer.bidirectional}, plans.size());
    }

  private:
    const Plan* find(const Sight& sight, size_t count) const {
        for (size_t i = 0; i < count; i++)
            if (plans[i].sight.window == sight.window &&
                plans[i].sight.bidirectional == sight.bidirectional)
                return &plans[i];
        return nullptr;
    }
};

inline int64_t padded(int64_t k) { return ceil_div(k, 32) * 32; }

// Rows up to here are prepared by every thread for itself: saves a barrier.
constexpr int64_t kReplicatedRows = 2;

// The rows of one product as int8.
struct QuantizedRows {
    int8_t* rows;
    RowScale* scales;
    float* wide;     // the thread's own: one row while it is worked on
    int64_t stride;  // bytes

    // Row i from x[k] bf16.
    void put(int64_t i, const uint16_t* x, int64_t k) const {
        scales[i] = quantize_row(x, k, stride, wide, rows + i * stride);
    }
    Activations read() const { return {(const uint32_t*)rows, stride / 4, scales}; }
};

// Room for such rows: for all threads, and a piece for each. The rows of the next product may come
// when every thread is through with this one's.
struct QuantizedRoom {
    int8_t* rows = nullptr;
    RowScale* scales = nullptr;
    float* wide = nullptr;
    int64_t width = 0, shared = 0;

    void reserve(Workspace& space, int64_t tall, int64_t widest, int64_t threads) {
        const int64_t all = tall + threads * (kReplicatedRows + kRowSlack);
        width = ceil_div(widest, 64) * 64, shared = tall;
        rows = space.quantized.reserve<int8_t>(all * width);
        scales = space.row_scales.reserve<RowScale>(all);
        wide = space.wide.reserve<float>(threads * width);
    }
    QuantizedRows of(const Worker& worker, const PlMatrix& w, int64_t count) const {
        const int64_t piece = shared + worker.id * (kReplicatedRows + kRowSlack);
        const int64_t first = count <= kReplicatedRows ? piece : 0;
        return {rows + first * width, scales + first, wide + worker.id * width,
                ceil_div(w.k, 64) * 64};
    }
    // bf16 rows as a product with w wants them: themselves, or here as int8.
    Activations operand(Worker& worker, const Activations& a, int64_t count,
                        const PlMatrix& w) const {
        if (!w.scales) return a;
        const QuantizedRows to = of(worker, w, count);
        auto one = [&](int64_t i) { to.put(i, (const uint16_t*)(a.words + i * a.stride), w.k); };
        if (count <= kReplicatedRows) {
            for (int64_t i = 0; i < count; i++) one(i);
        } else {
            worker.share_rows(count, one);
            worker.barrier(first_panels(worker, w));
        }
        return to.read();
    }
};

// Floats that one thread needs for itself.
inline int64_t thread_scratch(int64_t group, int64_t head_dim) {
    const int64_t floats =
        std::max<int64_t>((kBlockRows + kRowSlack) * kWidth, attention_scratch(group, head_dim));
    return ceil_div(floats, 1024) * 1024;
}

}  // namespace paceline
