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

struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
};

// Weights that a thread will read first in the next phase: fetched while it waits for the others.
struct Ahead {
    const char* at = nullptr;
    const char* end = nullptr;
};

struct Team {
    int size = 1;
    std::vector<Counter> counters;
    Counter arrived, epoch;

    void begin(size_t phases) {
        if (counters.size() < phases) counters = std::vector<Counter>(phases);
        for (Counter& counter : counters) counter.value.store(0, std::memory_order_relaxed);
        arrived.value.store(0);
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
        int64_t epoch = team.epoch.value.load(std::memory_order_relaxed);
        if (team.arrived.value.fetch_add(1, std::memory_order_acq_rel) == team.size - 1) {
            team.arrived.value.store(0, std::memory_order_relaxed);
            team.epoch.value.store(epoch + 1, std::memory_order_release);
            return;
        }
        // Yield after ~50 us: then some other process holds the core that we are waiting for.
        for (int spins = 0; team.epoch.value.load(std::memory_order_acquire) == epoch; spins++) {
            if (ahead.at < ahead.end) {
                for (int i = 0; i < 4; i++, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
                continue;
            }
            spin_pause();
            if (spins > 4000) sched_yield();
        }
    }

    // Calls work(item, next) for items 0…count-1, each once in the team; `next` is the item that
    // this thread will take after it, or >= count. The first items are dealt out, the rest taken
    // as threads become free, so that a disturbed core does not hold up the others.
    template <class Work>
    void share(int64_t count, Work&& work) {
        std::atomic<int64_t>& taken = team.counters[phase++].value;
        for (int64_t item = id; item < count;) {
            int64_t next = team.size + taken.fetch_add(1, std::memory_order_relaxed);
            work(item, next);
            item = next;
        }
    }
};

}  // namespace paceline
