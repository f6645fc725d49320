#include "server/transport/rpc/waiting_calls.h"

#include "server/base/steady_time.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

void WaitingCalls::StartReading(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  call->place().reads = true;
  Update(call);
}

bool WaitingCalls::StopReading(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  call->place().reads = false;
  Update(call);
  return !call->place().ended;
}

void WaitingCalls::StartWriting(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  call->place().writes = true;
  Update(call);
}

void WaitingCalls::StopWriting(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  call->place().writes = false;
  Update(call);
}

void WaitingCalls::SetAsks(ServerCall* call, bool asks) {
  absl::MutexLock lock(&mutex_);
  call->place().asks = asks;
  Update(call);
}

void WaitingCalls::Remove(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  Leave(call->place(), call->host());
}

bool WaitingCalls::Take(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  Place& place = call->place();
  if (!place.reads || place.ended) return false;
  place.ended = true;
  Update(call);
  return true;
}

WaitingCalls::Taken WaitingCalls::TakeOneTooMany(const ServerCall& call) {
  absl::MutexLock lock(&mutex_);
  const auto found = lists_.find(call.host());
  return found == lists_.end() ? Taken() : TakeOldest(*found->second);
}

std::vector<WaitingCalls::Taken> WaitingCalls::TakeTooMany() {
  absl::MutexLock lock(&mutex_);
  std::vector<Taken> all;
  for (const auto& [host, list] : lists_) {
    for (Taken taken = TakeOldest(*list); taken.call != nullptr; taken = TakeOldest(*list)) {
      all.push_back(std::move(taken));
    }
  }
  return all;
}

// The list stays: it has more than it needs to be kept.
WaitingCalls::Taken WaitingCalls::TakeOldest(const List& list) {
  while (list.size() > kMost) {
    ServerCall* const oldest = list.front();
    Place& place = oldest->place();
    if (list.size() <= kMostNew && SteadyNow() - place.since < kNew) return {};
    place.identified = is_identified_(*oldest);
    place.ended = !place.identified;
    Update(oldest);
    if (place.ended) return {oldest->shared_from_this(), place.reads};
  }
  return {};
}

void WaitingCalls::Update(ServerCall* call) {
  Place& place = call->place();
  const bool waits = (place.reads || place.writes) && !place.asks && !place.identified;
  if (!waits || place.ended) return Leave(place, call->host());
  if (place.list != nullptr) return;
  std::unique_ptr<std::list<ServerCall*>>& list = lists_[call->host()];
  if (list == nullptr) list = std::make_unique<std::list<ServerCall*>>();
  place.list = list.get();
  place.at = list->insert(list->end(), call);
  place.since = SteadyNow();
}

void WaitingCalls::Leave(Place& place, const std::string& host) {
  if (place.list == nullptr) return;
  place.list->erase(place.at);
  if (place.list->empty()) lists_.erase(host);
  place.list = nullptr;
}

}  // namespace blockd::server
