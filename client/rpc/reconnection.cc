#include "client/rpc/reconnection.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "client/rpc/answer_queue.h"

namespace blockd::client {
namespace {

// One channel is watched so long before the next, or before the end is seen.
constexpr std::chrono::milliseconds kWatch(50);

}  // namespace

Reconnection::~Reconnection() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Reconnection::Add(const std::shared_ptr<grpc::Channel>& channel) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(channels_, [](const auto& one) { return one.expired(); });
  channels_.push_back(channel);
}

void Reconnection::GoOn() {
  absl::MutexLock lock(&mutex_);
  if (watching_ || Unconnected() == nullptr) return;
  if (thread_.joinable()) thread_.join();  // it has said that it ends, and takes no lock any more
  try {
    thread_ = std::thread([this] { Watch(); });
    watching_ = true;
  } catch (const std::system_error&) {
    // The system has no thread: gRPC looks by itself, late.
  }
}

void Reconnection::Watch() {
  const WaitsInGrpc waits;
  while (const std::shared_ptr<grpc::Channel> channel = Next()) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/false);
    channel->WaitForStateChange(state, std::chrono::system_clock::now() + kWatch);
  }
}

std::shared_ptr<grpc::Channel> Reconnection::Next() {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<grpc::Channel> channel = Unconnected();
  watching_ = channel != nullptr;
  return channel;
}

std::shared_ptr<grpc::Channel> Reconnection::Unconnected() {
  for (size_t i = 0; i < channels_.size() && !ended_; ++i) {
    std::shared_ptr<grpc::Channel> channel = channels_[++next_ % channels_.size()].lock();
    if (channel == nullptr) continue;
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/false);
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_CONNECTING) {
      return channel;
    }
  }
  return nullptr;
}

}  // namespace blockd::client
