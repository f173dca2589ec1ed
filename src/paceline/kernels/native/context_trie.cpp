// What followed each context in a text: the native twin of drafters/context_trie.py, which is the
// specification and explains the structure. Drafts and estimates are equal to the bit.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

namespace paceline {
namespace {

constexpr int32_t kBoundary = -1;
constexpr double kDoubt = 3.0;    // of drafters/continuations.py
constexpr int64_t kCompared = 8;  // most recent occurrences on which a match is measured

// Bytes by glibc's malloc, with what a hash table's buckets take on average.
// An empty trie is counted with the object in Python that holds it.
constexpr int64_t kEmptyBytes = 700, kTokenBytes = 9, kLeafBytes = 108, kPointerBytes = 14;
constexpr int64_t kForkBytes = 440, kFollowerBytes = 44;

// Drawn anew in each process, so that nobody can choose tokens that collide. No result depends on
// the order in a table.
struct TokenHash {
    size_t operator()(int32_t token) const {
        static const uint64_t odd = ((uint64_t)std::random_device{}() << 32) | 0x9E3779B9u | 1;
        return (size_t)(((uint64_t)(uint32_t)token * odd) >> 32);
    }
};

template <class Value>
using ByToken = std::unordered_map<int32_t, Value, TokenHash>;

// Positions in ascending order, of which the first can be dropped: what was dropped is freed when
// it is the larger part.
class Positions {
  public:
    int64_t size() const { return (int64_t)all_.size() - dropped_; }
    bool empty() const { return size() == 0; }
    int64_t first() const { return all_[dropped_]; }
    int64_t last(int64_t back = 0) const { return all_[all_.size() - 1 - back]; }
    auto begin() const { return all_.begin() + dropped_; }
    auto end() const { return all_.end(); }

    void push(int64_t position) { all_.push_back(position); }

    void drop_first() {
        dropped_++;
        if (2 * dropped_ <= (int64_t)all_.size()) return;
        all_ = std::vector<int64_t>(begin(), end());
        dropped_ = 0;
    }

  private:
    std::vector<int64_t> all_;
    int64_t dropped_ = 0;
};

struct Fork;

// A context: the positions of tokens that followed it while they are all the same token, or a fork.
struct Entry {
    Positions positions;
    std::unique_ptr<Fork> fork;
};

using Branches = ByToken<Entry>;

struct Fork {
    int32_t best;
    int64_t total;
    ByToken<int64_t> counts;
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
        auto found = counts.find(token);
        if (found == counts.end()) return 0;
        total--;
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

    int64_t size() const { return (int64_t)text_.size() - forgotten_; }

    int64_t bytes() const { return kEmptyBytes + entry_bytes_ + kTokenBytes * size(); }

    void begin_text(const int32_t* context, int64_t count) {
        text_.push_back(kBoundary);
        text_.insert(text_.end(), context, context + count);
    }

    void append(int32_t token) {
        Branches* branches = &root_;
        int64_t end = (int64_t)text_.size();
        text_.push_back(token);
        for (int64_t i = end - 1; i >= 0 && i >= end - max_context_; i--) {
            if (text_[i] == kBoundary) return;
            Entry& entry = (*branches)[text_[i]];
            if (!entry.fork) {
                if (entry.positions.empty() || at(entry.positions.first()) == token) {
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
        int64_t first = base_ + forgotten_ + 1 + context;
        for (int64_t position = first; position < first + counted; position++) remove(position);
        forgotten_ += 1 + context + counted;
        if (2 * forgotten_ <= (int64_t)text_.size()) return;
        text_ = std::vector<int32_t>(text_.begin() + forgotten_, text_.end());
        base_ += forgotten_, forgotten_ = 0;
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
    int64_t base_ = 0;       // position of text_[0]: what was before it is freed
    int64_t forgotten_ = 0;  // tokens at the start of text_ that are in no context any more

    int32_t at(int64_t position) const {
        return position < base_ ? kBoundary : text_[position - base_];
    }

    void add(Entry& entry, int64_t position) {
        entry_bytes_ += entry.positions.empty() ? kLeafBytes : kPointerBytes;
        entry.positions.push(position);
    }

    // Makes a context of `depth` tokens a fork; the contexts one token longer get its occurrences.
    void split(Entry& entry, int64_t depth) {
        Positions positions = std::exchange(entry.positions, {});
        entry_bytes_ += kForkBytes + kFollowerBytes;
        entry_bytes_ -= kPointerBytes * (positions.size() - 1);
        entry.fork = std::make_unique<Fork>(at(positions.first()), positions.size());
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
            if (found == branches->end()) return;
            Entry& entry = found->second;
            Fork* fork = entry.fork.get();
            if (!fork) {
                entry.positions.drop_first();  // the oldest
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
    int64_t agreeing(const std::vector<int32_t>& window, const Positions& from) const {
        int64_t end = (int64_t)window.size(), enough = std::min(end, max_context_), best = 0;
        int64_t compared = std::min(kCompared, from.size());
        for (int64_t back = 0; back < compared && best < enough; back++) {
            int64_t position = from.last(back), length = 0;
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
        const Positions& positions = entry->positions;
        int64_t last = positions.last(), count = positions.size();
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
