// What the calls of one network share: buffers, and who attends to what in the batch at hand.
#pragma once

#include "plan.h"

namespace paceline {

constexpr int64_t kRowRun = 16;         // rows whose heads are placed by one work item
constexpr int64_t kRowSlack = 32;       // AMX tiles read whole tiles of rows

// Buffers of one forward, kept for the next. A row's stride is padded to whole pairs of 32 k.
struct Workspace {
    Team team;
    Buffer residual, normed, qkv, queries, attention, activated, partials, scratch, best, weights;
    Buffer kernels, sublayer, convolved;
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

// Floats that one thread needs for itself.
inline int64_t thread_scratch(int64_t group, int64_t head_dim) {
    const int64_t floats = std::max<int64_t>((kBlockRows + kRowSlack) * kWidth,
                                             attention_scratch(group, head_dim));
    return ceil_div(floats, 1024) * 1024;
}

}  // namespace paceline
