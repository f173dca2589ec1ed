// What followed each context in a text: the native twin of drafters/context_trie.py, which is the
// specification and explains the structure. Drafts and estimates are equal to the bit.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace paceline {
namespace {

constexpr int32_t kBoundary = -1;
constexpr double kDoubt = 3.0;    // of drafters/continuations.py
constexpr int64_t kCompared = 8;  // most recent occurrences on which a match is measured

// Bytes by glibc's malloc, with what a hash table's buckets take on average.
constexpr int64_t kEmptyBytes = 240, kTokenBytes = 6, kLeafBytes = 108, kPointerBytes = 12;
constexpr int64_t kForkBytes = 440, kFollowerBytes = 44;

struct Fork;

// A context: the positions of tokens that followed it while they are all the same token, or a fork.
struct Entry {
    std::vector<int64_t> positions;
    std::unique_ptr<Fork> fork;
};

using Branches = std::unordered_map<int32_t, Entry>;

struct Fork {
    int32_t best;
    int64_t total;
    std::unordered_map<int32_t, int64_t> counts;
    Branches longer;

    Fork(int32_t token, int64_t count) : best(token), total(count), counts{{token, count}} {}

    // Returns how many followers there are more than before.
    int64_t add(int32_t token) {
        int64_t& count = counts[token];
        int64_t more = count == 0;
        count++, total++;
        if (count >= counts[best]) best = token;
        return more;
    }

    // Returns how many followers there are fewer than before.
    int64_t discount(int32_t token) {
        total--;
        auto found = counts.find(token);
        int64_t count = --found->second, fewer = count == 0;
        if (fewer) counts.erase(found);
        if (token != best || counts.empty()) return fewer;
        // Of equals the smallest, but the best so far while no other is better.
        auto better = [](const auto& a, const auto& b) {
            return a.second != b.second ? a.second < b.second : a.first > b.first;
        };
        auto most = std::max_element(counts.begin(), counts.end(), better);
        if (most->second > count) best = most->first;
        return fewer;
    }
};

struct Continuation {
    int32_t token;
    int64_t times, total, match, source;
};

class Trie {
  public:
    explicit Trie(int64_t max_context) : max_context_(max_context) {}

    int64_t size() const { return (int64_t)text_.size(); }

    int64_t bytes() const { return kEmptyBytes + entry_bytes_ + kTokenBytes * size(); }

    void begin_text(const int32_t* context, int64_t count) {
        text_.push_back(kBoundary);
        text_.insert(text_.end(), context, context + count);
    }

    void append(int32_t token) {
        Branches* branches = &root_;
        int64_t end = size();
        text_.push_back(token);
        for (int64_t i = end - 1; i >= 0 && i >= end - max_context_; i--) {
            if (text_[i] == kBoundary) return;
            Entry& entry = (*branches)[text_[i]];
            if (!entry.fork) {
                if (entry.positions.empty() || at(entry.positions[0]) == token) {
                    add(entry, base_ + end);
                    return;
                }
                split(entry, end - i);
            }
            entry_bytes_ += kFollowerBytes * entry.fork->add(token);
            branches = &entry.fork->longer;
        }
    }

    // Takes out the oldest text, which began with `context` tokens and grew by `counted`.
    void forget(int64_t context, int64_t counted) {
        int64_t first = base_ + 1 + context;
        for (int64_t position = first; position < first + counted; position++) remove(position);
        text_.erase(text_.begin(), text_.begin() + 1 + context + counted);
        base_ = first + counted;
        if (text_.capacity() > 4 * text_.size()) text_.shrink_to_fit();
    }

    int64_t draft(const int32_t* context, int64_t count, int64_t length, double floor,
                  int32_t* tokens, double* estimates) const {
        std::vector<int32_t> window(context + std::max<int64_t>(0, count - max_context_),
                                    context + count);
        double survival = 1.0;
        int64_t match = 0, source = -1, drafted = 0;
        while (drafted < length) {
            Continuation found;
            if (!continuation(window, match, source, found)) break;
            match = found.match, source = found.source;
            double doubt = kDoubt / (double)(match * match);
            double estimate = (double)found.times / ((double)found.total + doubt);
            survival *= estimate;
            if (survival < floor) break;
            tokens[drafted] = found.token, estimates[drafted] = estimate, drafted++;
            window.push_back(found.token);
        }
        return drafted;
    }

  private:
    int64_t max_context_;
    int64_t entry_bytes_ = 0;
    Branches root_;
    std::vector<int32_t> text_;
    int64_t base_ = 0;  // position of text_[0]: the text before it was forgotten

    int32_t at(int64_t position) const {
        return position < base_ ? kBoundary : text_[position - base_];
    }

    void add(Entry& entry, int64_t position) {
        entry_bytes_ += entry.positions.empty() ? kLeafBytes : kPointerBytes;
        entry.positions.push_back(position);
    }

    // Makes a context of `depth` tokens a fork; the contexts one token longer get its occurrences.
    void split(Entry& entry, int64_t depth) {
        std::vector<int64_t> positions = std::move(entry.positions);
        entry.positions = {};
        entry_bytes_ += kForkBytes + kFollowerBytes;
        entry_bytes_ -= kPointerBytes * ((int64_t)positions.size() - 1);
        entry.fork = std::make_unique<Fork>(at(positions[0]), (int64_t)positions.size());
        if (depth >= max_context_) return;
        for (int64_t position : positions) {
            int32_t nearest = at(position - depth - 1);
            if (nearest != kBoundary) add(entry.fork->longer[nearest], position);
        }
    }

    void remove(int64_t position) {
        Branches* branches = &root_;
        int64_t end = position - base_;
        int32_t token = text_[end];
        std::vector<std::unique_ptr<Fork>> emptied;  // whose longer contexts are still to be left
        for (int64_t i = end - 1; i >= 0 && i >= end - max_context_; i--) {
            if (text_[i] == kBoundary) return;
            auto found = branches->find(text_[i]);
            Entry& entry = found->second;
            Fork* fork = entry.fork.get();
            if (!fork) {
                entry.positions.erase(entry.positions.begin());  // the oldest comes first
                entry_bytes_ -= entry.positions.empty() ? kLeafBytes : kPointerBytes;
                if (entry.positions.empty()) branches->erase(found);
                return;
            }
            entry_bytes_ -= kFollowerBytes * fork->discount(token);
            if (fork->total == 0) {
                emptied.push_back(std::move(entry.fork));
                branches->erase(found);
                entry_bytes_ -= kForkBytes + kLeafBytes;
            }
            branches = &fork->longer;
        }
    }

    // The entry of the longest context that ends the window, and how deep it lies.
    std::pair<const Entry*, int64_t> longest(const std::vector<int32_t>& window) const {
        const Branches* branches = &root_;
        const Entry* deepest = nullptr;
        int64_t depth = 0, end = (int64_t)window.size();
        for (int64_t i = end - 1; i >= 0 && i >= end - max_context_; i--) {
            auto found = branches->find(window[i]);
            if (found == branches->end()) break;
            deepest = &found->second, depth++;
            if (!deepest->fork) break;
            branches = &deepest->fork->longer;
        }
        return {deepest, depth};
    }

    // How many tokens before the best of the latest positions agree with the window: up to
    // max_context, since what agrees for longer is as good as certain.
    int64_t agreeing(const std::vector<int32_t>& window, const std::vector<int64_t>& from) const {
        int64_t end = (int64_t)window.size(), enough = std::min(end, max_context_), best = 0;
        int64_t compared = std::min<int64_t>(kCompared, from.size());
        for (int64_t back = 1; back <= compared && best < enough; back++) {
            int64_t position = from[from.size() - back], length = 0;
            while (length < enough && at(position - 1 - length) == window[end - 1 - length])
                length++;
            best = std::max(best, length);
        }
        return best;
    }

    bool continuation(const std::vector<int32_t>& window, int64_t match, int64_t source,
                      Continuation& found) const {
        auto [entry, depth] = longest(window);
        if (!entry) return false;
        if (const Fork* fork = entry->fork.get()) {
            found = {fork->best, fork->counts.at(fork->best), fork->total, depth, -1};
            return true;
        }
        const std::vector<int64_t>& positions = entry->positions;
        int64_t last = positions.back(), count = (int64_t)positions.size();
        bool follows = source >= 0 && last == source + 1;
        found = {at(last), count, count, follows ? match + 1 : agreeing(window, positions), last};
        return true;
    }
};

}  // namespace
}  // namespace paceline

using paceline::Trie;

extern "C" {

void* pl_trie_new(int64_t max_context) { return new Trie(max_context); }

void pl_trie_free(void* trie) { delete (Trie*)trie; }

void pl_trie_begin_text(void* trie, const int32_t* context, int64_t count) {
    ((Trie*)trie)->begin_text(context, count);
}

void pl_trie_extend(void* trie, const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) ((Trie*)trie)->append(tokens[i]);
}

void pl_trie_forget(void* trie, int64_t context, int64_t counted) {
    ((Trie*)trie)->forget(context, counted);
}

int64_t pl_trie_draft(void* trie, const int32_t* context, int64_t count, int64_t length,
                      double floor, int32_t* tokens, double* estimates) {
    return ((Trie*)trie)->draft(context, count, length, floor, tokens, estimates);
}

int64_t pl_trie_size(void* trie) { return ((Trie*)trie)->size(); }

int64_t pl_trie_bytes(void* trie) { return ((Trie*)trie)->bytes(); }

}  // extern "C"
