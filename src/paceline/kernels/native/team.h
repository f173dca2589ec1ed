// One parallel region per forward: threads meet at spin barriers and take work from counters.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "vec.h"

namespace paceline {

// Memory that only grows, aligned to huge pages once it is large enough to gain from them.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data_); }

    template <class T>
    T* reserve(size_t count) {
        size_t bytes = count * sizeof(T);
        if (bytes > size_) {
            const size_t huge = 2u << 20;
            size_t alignment = bytes >= huge ? huge : 64;
            bytes = (bytes + alignment - 1) / alignment * alignment;
            free(data_);
            size_ = 0;
            if (posix_memalign(&data_, alignment, bytes)) {
                data_ = nullptr;
                throw std::bad_alloc();
            }
#ifdef MADV_HUGEPAGE
            if (alignment == huge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
            memset(data_, 0, bytes);
            size_ = bytes;
        }
        return (T*)data_;
    }
    template <class T>
    T* get() const {
        return (T*)data_;
    }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

constexpr size_t kPerLine = 8;  // counters in a cache line
struct alignas(64) Counter {
    std::atomic<int64_t> values[kPerLine]{};
};

// Weights that a thread will read first in the next phase: fetched while it waits for the others.
struct Ahead {
    const char* at = nullptr;
    const char* end = nullptr;
};

struct Team {
    int size = 1;
    size_t phases = 0, lines = 0;
    std::vector<Counter> counters;  // `lines` lines of eight for all threads, then for each its own
    Counter arrived, epoch;

    // Before a region of at most so many threads, which share items in at most so many phases.
    void begin(size_t most_phases, size_t threads) {
        phases = most_phases, lines = (phases + kPerLine - 1) / kPerLine;
        const size_t all = lines * (1 + threads);
        if (counters.size() < all) counters = std::vector<Counter>(all);
        for (size_t line = 0; line < all; line++)
            for (auto& value : counters[line].values) value.store(0, std::memory_order_relaxed);
        arrived.values[0].store(0);
    }

    // How many items are taken in a phase: of all, or of the run of one thread.
    std::atomic<int64_t>& taken(size_t phase) { return at(0, phase); }
    std::atomic<int64_t>& taken_of(int run, size_t phase) { return at(1 + run, phase); }

  private:
    std::atomic<int64_t>& at(size_t piece, size_t phase) {
        return counters[piece * lines + phase / kPerLine].values[phase % kPerLine];
    }
};

struct Worker {
    Team& team;
    int id;
    size_t phase = 0;
    int64_t* tick = nullptr;  // where the next tick goes; null: nobody wants to know

    void mark() {
        if (!tick) return;
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *tick++ = now.tv_sec * 1000000000 + now.tv_nsec;
    }

    void barrier(Ahead ahead = {}) {
        if (team.size == 1) return;
        int64_t epoch = team.epoch.values[0].load(std::memory_order_relaxed);
        if (team.arrived.values[0].fetch_add(1, std::memory_order_acq_rel) == team.size - 1) {
            team.arrived.values[0].store(0, std::memory_order_relaxed);
            team.epoch.values[0].store(epoch + 1, std::memory_order_release);
            return;
        }
        // Yield after ~50 us: then some other process holds the core that we are waiting for.
        for (int spins = 0; team.epoch.values[0].load(std::memory_order_acquire) == epoch;
             spins++) {
            if (ahead.at < ahead.end) {
                for (int i = 0; i < 4; i++, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
                continue;
            }
            spin_pause();
            if (spins > 4000) sched_yield();
        }
    }

    // Calls work(item) for items 0…count-1, each once in the team. The first items are dealt out,
    // the rest taken as threads become free, so that a disturbed core does not hold up the others.
    template <class Work>
    void share(int64_t count, Work&& work) {
        std::atomic<int64_t>& taken = team.taken(phase++);
        for (int64_t item = id; item < count;) {
            work(item);
            item = team.size + taken.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // The same for rows: of many, a few adjacent ones are one item.
    template <class Work>
    void share_rows(int64_t rows, Work&& work) {
        const int64_t run = rows >= 64 * team.size ? 8 : 1;
        share((rows + run - 1) / run, [&](int64_t item) {
            for (int64_t row = item * run; row < rows && row < (item + 1) * run; row++) work(row);
        });
    }

    // Calls work(run, item) for the items 0…items(run)-1 of every thread's run, each once in the
    // team. A thread takes its own in their order, and then what is left of the others' runs.
    template <class Items, class Work>
    void share_runs(Items&& items, Work&& work) {
        for (int i = 0; i < team.size; i++) {
            const int run = (id + i) % team.size;
            std::atomic<int64_t>& taken = team.taken_of(run, phase);
            const int64_t count = items(run);
            if (i && taken.load(std::memory_order_relaxed) >= count) continue;
            for (int64_t item; (item = taken.fetch_add(1, std::memory_order_relaxed)) < count;)
                work(run, item);
        }
        phase++;
    }
};

}  // namespace paceline
