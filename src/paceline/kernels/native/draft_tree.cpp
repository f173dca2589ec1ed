// The best tree beside a draft whose slots do not depend on one another, from their logits:
// drafters/trees.py says what it is, and drafters/block_draws.py has the twin.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "vec.h"

namespace paceline {
namespace {

constexpr int64_t kRun = 8 * kLanes;  // logits of which only the largest is looked at first
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Candidate {
    int32_t token;
    double chance;
};

// A place for a node: the child of `rank` of a parent. It is reached with `reach`, and its parent
// with `chance`.
struct Open {
    double reach, chance;
    int64_t turn;  // of equal chances the one that was found first is taken
    int32_t depth, parent, rank;

    bool operator<(const Open& other) const {
        return reach < other.reach || (reach == other.reach && turn > other.turn);
    }
};

Vec load_part(const float* p, int64_t count) {
    if (count >= kLanes) return load(p);
    Vec v = splat(kLowest);
    for (int64_t i = 0; i < count; i++) v[i] = p[i];
    return v;
}

// The likeliest tokens of slots.
class Likeliest {
  public:
    // Sets `places` to those of the `width` largest of `count` logits, the largest first and of
    // equal ones the first, and the rest so that chance() has their probabilities.
    void read(const float* logits, int64_t count, int64_t width) {
        tops_.clear();
        for (int64_t start = 0; start < count; start += kRun) {
            Vec top = splat(kLowest);
            for (int64_t i = start; i < std::min(start + kRun, count); i += kLanes)
                top = max(top, load_part(logits + i, count - i));
            tops_.push_back(max_lane(top));
        }
        top_ = *std::max_element(tops_.begin(), tops_.end());
        Vec total = {};
        for (int64_t i = 0; i < count; i += kLanes)
            total += exp2((load_part(logits + i, count - i) - top_) * kLog2E);
        sum_ = sum(total);
        // As many runs reach this, so as many tokens do.
        float least = kLowest;
        if (width < (int64_t)tops_.size()) {
            sorted_ = tops_;
            std::nth_element(sorted_.begin(), sorted_.begin() + width - 1, sorted_.end(),
                             std::greater<float>());
            least = sorted_[width - 1];
        }
        places.clear();
        for (size_t run = 0; run < tops_.size(); run++) {
            if (tops_[run] < least) continue;
            const int64_t start = (int64_t)run * kRun;
            for (int64_t i = start; i < std::min(start + kRun, count); i++)
                if (logits[i] >= least) places.push_back((int32_t)i);
        }
        const int64_t kept = std::min<int64_t>(width, (int64_t)places.size());
        std::partial_sort(places.begin(), places.begin() + kept, places.end(),
                          [&](int32_t a, int32_t b) {
                              return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                          });
        places.resize(kept);
    }

    double chance(float logit) const { return std::exp(logit - top_) / (float)sum_; }

    std::vector<int32_t> places;

  private:
    std::vector<float> tops_, sorted_;
    float top_ = 0.0f;
    double sum_ = 1.0;
};

}  // namespace
}  // namespace paceline

using namespace paceline;

extern "C" {

// Writes the tree of up to `nodes` nodes, the likeliest first, and returns their number. Slot i has
// `count` logits at logits + i * stride, of the tokens `ids` or, without them, of 0, 1, …; its
// first candidate is drafted[i], with the probability confidences[i], and others of the `width`
// likeliest follow.
int64_t pl_draft_tree(const float* logits, int64_t stride, int64_t slots, int64_t count,
                      const int64_t* ids, const int32_t* drafted, const double* confidences,
                      int64_t width, int64_t nodes, int32_t* tokens, int32_t* parents,
                      double* chances) {
    std::vector<std::vector<Candidate>> families;
    Likeliest likeliest;
    auto family = [&](int64_t slot) -> const std::vector<Candidate>& {
        for (int64_t i = (int64_t)families.size(); i <= slot; i++) {
            const float* row = logits + i * stride;
            likeliest.read(row, count, width);
            std::vector<Candidate> found = {{drafted[i], confidences[i]}};
            for (int32_t place : likeliest.places) {
                const int32_t token = ids ? (int32_t)ids[place] : place;
                if (token != drafted[i]) found.push_back({token, likeliest.chance(row[place])});
            }
            families.push_back(std::move(found));
        }
        return families[slot];
    };
    std::priority_queue<Open> open;
    int64_t turn = 0, made = 0;
    auto push = [&](double chance, int32_t depth, int32_t parent, int32_t rank) {
        const std::vector<Candidate>& among = family(depth);
        if (rank >= (int32_t)among.size()) return;
        const double reach = chance * among[rank].chance;
        if (reach > 0.0) open.push({reach, chance, turn++, depth, parent, rank});
    };
    push(1.0, 0, -1, 0);
    while (!open.empty() && made < nodes) {
        const Open place = open.top();
        open.pop();
        const Candidate node = family(place.depth)[place.rank];
        tokens[made] = node.token;
        parents[made] = place.parent;
        chances[made] = node.chance;
        push(place.chance, place.depth, place.parent, place.rank + 1);
        if (place.depth + 1 < slots) push(place.reach, place.depth + 1, (int32_t)made, 0);
        made++;
    }
    return made;
}

}  // extern "C"
