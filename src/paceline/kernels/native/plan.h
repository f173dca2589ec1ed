// Who attends to what: the work items of one batch, the same for every layer of one sight.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "attention.h"

namespace paceline {

constexpr int64_t kMostPieces = 4;     // that an item is cut into to go round evenly
constexpr int64_t kLeastQueries = 12;  // rows x heads of such a piece: two tiles

struct Plan {
    Sight sight{};
    std::vector<AttentionItem> items;
    std::vector<int64_t> before;          // work before each item, and in all
    std::vector<AttentionItem> combines;  // rows whose chunks were shared among items
    int64_t slots = 0;                    // partials that the shared chunks need room for

    void make(const PlBatch& batch, int64_t kv_heads, int64_t group) {
        items.clear();
        before.assign(1, 0);
        combines.clear();
        slots = 0;
        const int64_t most = most_rows(batch, kv_heads, group);
        const int64_t tiles = count_tiles(batch, kv_heads, most);
        if (!tiles) return;
        const int64_t parts = divides(tiles, batch) ? 1 : ceil_div(4 * batch.threads, tiles);
        for (int64_t s = 0; s < batch.sequences; s++) {
            const int64_t start = batch.seq_starts[s], end = batch.seq_starts[s + 1];
            if (start == end) continue;
            const int32_t first = batch.first ? batch.first[s] : 0;
            const int32_t last = batch.positions[end - 1];
            const int64_t even = ceil_div(end - start, ceil_div(end - start, most));
            for (int64_t q = start; q < end; q += even) {
                const int64_t q1 = std::min(q + even, end);
                const auto c0 = (int32_t)(sight.low(batch.positions[q], first) / kChunkTokens);
                const auto c1 =
                    (int32_t)(sight.high(batch.positions[q1 - 1], last) / kChunkTokens + 1);
                for (int64_t h = 0; h < kv_heads; h++)
                    add({(int32_t)s, (int32_t)h, (int32_t)q, (int32_t)q1, c0, c1, -1, first, last},
                        group, std::min<int64_t>(parts, c1 - c0));
            }
        }
        // Long items first, so that the last ones to be taken are short.
        auto work = [](const AttentionItem& item) {
            return (int64_t)(item.c1 - item.c0) * (item.q1 - item.q0);
        };
        std::stable_sort(items.begin(), items.end(),
                         [&](auto& a, auto& b) { return work(a) > work(b); });
        for (const AttentionItem& item : items) before.push_back(before.back() + work(item));
    }

    // Begin and end of a thread's items: an equal share of the work. They are adjacent, since the
    // heads of a sequence lie side by side in memory, which is read faster where one thread goes
    // from one to the next.
    std::pair<const AttentionItem*, const AttentionItem*> items_of(int run, int team) const {
        auto first = [&](int64_t run) {
            const int64_t least = ceil_div(before.back() * run, team);
            return std::lower_bound(before.begin(), before.end(), least) - before.begin();
        };
        return {items.data() + first(run), items.data() + first(run + 1)};
    }

  private:
    static int64_t count_tiles(const PlBatch& batch, int64_t kv_heads, int64_t most) {
        int64_t tiles = 0;
        for (int64_t s = 0; s < batch.sequences; s++)
            tiles += ceil_div(batch.seq_starts[s + 1] - batch.seq_starts[s], most) * kv_heads;
        return tiles;
    }
    static bool divides(int64_t tiles, const PlBatch& batch) {
        return tiles % batch.threads == 0 && tiles >= 2 * batch.threads;
    }
    // Most rows of an item: fewer than fit where the items then go evenly round the threads.
    static int64_t most_rows(const PlBatch& batch, int64_t kv_heads, int64_t group) {
        int64_t longest = 1;
        for (int64_t s = 0; s < batch.sequences; s++)
            longest = std::max<int64_t>(longest, batch.seq_starts[s + 1] - batch.seq_starts[s]);
        const int64_t fit = std::min(item_queries(group), longest);
        for (int64_t pieces = 1; pieces <= kMostPieces; pieces++) {
            const int64_t most = ceil_div(fit, pieces);
            if (pieces > 1 && most * group < kLeastQueries) break;
            if (divides(count_tiles(batch, kv_heads, most), batch)) return most;
        }
        return fit;
    }

    // `item` spans all chunks of its rows; it is shared among `parts` items.
    void add(AttentionItem item, int64_t group, int64_t parts) {
        if (parts < 2) {
            items.push_back(item);
            return;
        }
        const int64_t rows = (item.q1 - item.q0) * group, chunks = item.c1 - item.c0;
        const int32_t begin = item.c0;
        item.slot = slots;
        combines.push_back(item);
        for (int64_t part = 0; part < parts; part++) {
            item.c0 = begin + (int32_t)(chunks * part / parts);
            item.c1 = begin + (int32_t)(chunks * (part + 1) / parts);
            item.slot = slots + (item.c0 - begin) * rows;
            items.push_back(item);
        }
        slots += chunks * rows;
    }
};

}  // namespace paceline
