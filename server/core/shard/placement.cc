#include "server/core/shard/placement.h"

#include <algorithm>
#include <tuple>

namespace blockd::server {
namespace {

constexpr double kNearly = 0.5;  // of what the work takes

// The best of `left`, which are in service and at least one.
size_t BestOf(std::span<const Offer> offers, std::span<const size_t> left, uint64_t turn) {
  const bool some_room =
      std::any_of(left.begin(), left.end(), [&](size_t i) { return offers[i].HasRoom(); });
  const Offer* earliest = nullptr;
  for (const size_t i : left) {
    if (offers[i].HasRoom() != some_room) continue;
    if (earliest == nullptr || offers[i].end_seconds() < earliest->end_seconds()) {
      earliest = &offers[i];
    }
  }
  const double latest = earliest->end_seconds() + kNearly * earliest->work_seconds;
  const auto rank = [&](size_t i) {
    const Offer& offer = offers[i];
    return std::tuple(offer.Evicts(), -(offer.free_bytes + offer.evictable_bytes),
                      -offer.free_bytes,
                      (i + offers.size() - turn % offers.size()) % offers.size());
  };
  size_t best = offers.size();
  for (const size_t i : left) {
    if (offers[i].HasRoom() != some_room || offers[i].end_seconds() > latest) continue;
    if (best == offers.size() || rank(i) < rank(best)) best = i;
  }
  return best;
}

}  // namespace

std::vector<size_t> PlacementOrder(std::span<const Offer> offers, uint64_t turn) {
  std::vector<size_t> left, order;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].in_service) left.push_back(i);
  }
  while (!left.empty()) {
    order.push_back(BestOf(offers, left, turn));
    std::erase(left, order.back());
  }
  return order;
}

}  // namespace blockd::server
