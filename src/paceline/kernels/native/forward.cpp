// The calls that run in one parallel region each: a forward, and a DFlash drafter's injection.
#include <omp.h>

#include "inject.h"

namespace paceline {
namespace {

// Runs work(worker) on every thread of a team. Returns 0, or 1 when memory ran out.
template <class Prepare, class Work>
int in_team(Workspace& space, int64_t threads, Prepare&& prepare, Work&& work) {
    try {
        prepare();
#ifdef PACELINE_AMX
        amx_prepare();
#endif
#pragma omp parallel num_threads((int)threads)
        {
#pragma omp single
            space.team.size = omp_get_num_threads();
            Worker worker{space.team, omp_get_thread_num()};
#ifdef PACELINE_AMX
            const TileMode tiles;
#endif
            work(worker);
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace paceline

extern "C" {

void* pl_workspace_create() { return new (std::nothrow) paceline::Workspace(); }
void pl_workspace_destroy(void* space) { delete (paceline::Workspace*)space; }

int pl_forward(const PlModel* model, const PlBatch* batch, void* workspace) {
    using namespace paceline;
    Workspace& space = *(Workspace*)workspace;
    Forward forward{*model, *batch, space};
    auto prepare = [&] {
        space.make_plans(*model, *batch);
        forward.reserve(batch->threads);
    };
    return in_team(space, batch->threads, prepare, [&](Worker& worker) {
        // Behind a barrier one thread's time is that of all, so one is enough to take it.
        if (worker.id == 0) worker.tick = batch->ticks;
        forward.run(worker);
    });
}

int pl_inject(const PlModel* model, const PlContext* context, void* workspace) {
    using namespace paceline;
    Workspace& space = *(Workspace*)workspace;
    Injection injection{*model, *context, space};
    auto prepare = [&] { injection.reserve(); };
    return in_team(space, context->threads, prepare,
                   [&](Worker& worker) { injection.run(worker); });
}

// Copies the keys and values of `count` blocks of all layers; no target is a source.
void pl_copy_blocks(const PlModel* model, const int64_t* sources, const int64_t* targets,
                    int64_t count, int64_t threads) {
    const int64_t words = 2 * model->kv_heads * paceline::key_words(model->head_dim);
#pragma omp parallel for num_threads((int)threads)
    for (int64_t layer = 0; layer < model->layers; layer++)
        for (int64_t i = 0; i < count; i++) {
            uint32_t* kv = model->layer[layer].kv;
            memcpy(kv + targets[i] * words, kv + sources[i] * words, words * sizeof(uint32_t));
        }
}

// Rows of weights x[n, k] bf16 -> q[n, k] and their scales, as a product with rotated rows wants
// them.
int pl_quantize(const uint16_t* x, int64_t n, int64_t k, int64_t threads, int8_t* q,
                float* scales) {
    using namespace paceline;
    const int64_t padded = ceil_div(k, 64) * 64, block = k & -k;
    const float factor = block < kLanes ? 1.0f : 1.0f / (float)block;  // of the rotations
    Buffer wide, whole;
    try {
        wide.reserve<float>(threads * padded);
        whole.reserve<int8_t>(threads * padded);
    } catch (const std::bad_alloc&) {
        return 1;
    }
#pragma omp parallel for num_threads((int)threads)
    for (int64_t row = 0; row < n; row++) {
        const int64_t thread = omp_get_thread_num();
        int8_t* to = whole.get<int8_t>() + thread * padded;
        float* room = wide.get<float>() + thread * padded;
        scales[row] = quantize_row(x + row * k, k, padded, room, to).scale * factor;
        memcpy(q + row * k, to, k);
    }
    return 0;
}

}  // extern "C"
