#include "server/core/cache/eviction_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace blockd::server {
namespace {

constexpr size_t kFree = std::numeric_limits<size_t>::max();

// A part of the pool that is free, or would be without its owner.
struct Stretch {
  FreePiece piece;
  size_t owner = kFree;  // of the idle objects
};

bool LiesBefore(const Stretch& a, const Stretch& b) { return a.piece.data < b.piece.data; }

double CostOf(const IdleObject& idle) {
  int64_t bytes = 0;
  for (const FreePiece& piece : idle.pieces) bytes += piece.bytes;
  return static_cast<double>(bytes) / static_cast<double>(idle.age);
}

// Stretches side by side.
struct Window {
  size_t first = 0, last = 0;
  // The number and the cost of objects, first of tenants within their share, then of the others.
  std::array<int64_t, 2> owners = {0, 0};
  std::array<double, 2> cost = {0, 0};
  int64_t bytes = 0;

  // Among windows that cost nothing the smallest wins, as in the pool.
  bool BetterThan(const Window& other) const {
    return std::tie(cost, bytes) < std::tie(other.cost, other.bytes);
  }
};

class Layout {
 public:
  Layout(std::span<const FreePiece> free, std::span<const IdleObject> idle)
      : idle_(idle), goes_(idle.size()), in_window_(idle.size()) {
    for (const FreePiece& piece : free) stretches_.push_back({piece, kFree});
    for (size_t i = 0; i < idle.size(); ++i) {
      for (const FreePiece& piece : idle[i].pieces) stretches_.push_back({piece, i});
    }
    std::sort(stretches_.begin(), stretches_.end(), LiesBefore);
  }

  // Takes the cheapest place for a piece of so many bytes; false if there is none.
  bool Place(int64_t bytes) {
    JoinFree();
    const std::optional<Window> window = Cheapest(bytes);
    if (!window) return false;
    const Stretch begin = stretches_[window->first];
    for (size_t i = window->first; i <= window->last; ++i) {
      if (stretches_[i].owner != kFree) goes_[stretches_[i].owner] = true;
    }
    JoinFree();
    // The free stretch that the window now lies in.
    FreePiece& free =
        std::prev(std::upper_bound(stretches_.begin(), stretches_.end(), begin, LiesBefore))->piece;
    free = {free.data + bytes, free.bytes - bytes};
    return true;
  }

  std::vector<IdleObject> Going() const {
    std::vector<IdleObject> going;
    for (size_t i = 0; i < idle_.size(); ++i) {
      if (goes_[i]) going.push_back(idle_[i]);
    }
    return going;
  }

 private:
  // Joins neighbouring pieces that are free, or will be, into one stretch. A piece that changed
  // hands while the lists were made may be in both of them: the first counts.
  void JoinFree() {
    size_t kept = 0;
    for (Stretch stretch : stretches_) {
      const FreePiece& piece = stretch.piece;
      if (stretch.owner != kFree && goes_[stretch.owner]) stretch.owner = kFree;
      Stretch* const before = kept > 0 ? &stretches_[kept - 1] : nullptr;
      if (piece.bytes == 0 || (before != nullptr && piece.data < before->piece.end())) continue;
      if (before != nullptr && before->owner == kFree && stretch.owner == kFree &&
          before->piece.end() == piece.data) {
        before->piece.bytes += piece.bytes;
      } else {
        stretches_[kept++] = stretch;
      }
    }
    stretches_.resize(kept);
  }

  void Add(size_t i, Window& window) {
    window.last = i;
    window.bytes += stretches_[i].piece.bytes;
    const size_t owner = stretches_[i].owner;
    if (owner == kFree || in_window_[owner]++ > 0) return;
    const size_t rank = idle_[owner].within_part ? 0 : 1;
    ++window.owners[rank];
    window.cost[rank] += CostOf(idle_[owner]);
  }
  void RemoveFirst(Window& window) {
    const size_t i = window.first++;
    window.bytes -= stretches_[i].piece.bytes;
    const size_t owner = stretches_[i].owner;
    if (owner == kFree || --in_window_[owner] > 0) return;
    const size_t rank = idle_[owner].within_part ? 0 : 1;
    window.cost[rank] -= CostOf(idle_[owner]);
    // Sums of fractions do not come back to 0 by themselves.
    if (--window.owners[rank] == 0) window.cost[rank] = 0;
  }

  // The cheapest of the shortest windows that end with each stretch.
  std::optional<Window> Cheapest(int64_t bytes) {
    std::optional<Window> best;
    Window window;
    for (size_t i = 0; i < stretches_.size(); ++i) {
      const bool beside = i > 0 && stretches_[i - 1].piece.end() == stretches_[i].piece.data;
      while (!beside && window.first < i) RemoveFirst(window);
      Add(i, window);
      while (window.bytes - stretches_[window.first].piece.bytes >= bytes) RemoveFirst(window);
      if (window.bytes >= bytes && (!best || window.BetterThan(*best))) best = window;
    }
    while (window.first < stretches_.size()) RemoveFirst(window);
    return best;
  }

  const std::span<const IdleObject> idle_;
  std::vector<Stretch> stretches_;  // by address
  std::vector<bool> goes_;          // of the idle
  std::vector<int> in_window_;      // of the idle: how many of its pieces
};

}  // namespace

std::optional<std::vector<IdleObject>> PlanEviction(std::span<const FreePiece> free,
                                                    std::span<const IdleObject> idle,
                                                    std::span<const int64_t> needed) {
  Layout layout(free, idle);
  for (const int64_t bytes : needed) {
    if (bytes > 0 && !layout.Place(MemoryPool::Rounded(bytes))) return std::nullopt;
  }
  return layout.Going();
}

}  // namespace blockd::server
