#include "server/transport/rpc/serving_threads.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/transport/rpc/server_call.h"
#include "tests/support/eventually.h"

namespace blockd::server {
namespace {

using test::Eventually;

// Something that comes on the queue.
class Event final : public Tag {
 public:
  Event(grpc::CompletionQueue* queue, std::function<void()> on_come)
      : queue_(queue), on_come_(std::move(on_come)) {}
  void Ask() { alarm_.Set(queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), this); }
  void Complete(bool /*ok*/) noexcept override { on_come_(); }

 private:
  grpc::CompletionQueue* const queue_;
  const std::function<void()> on_come_;
  grpc::Alarm alarm_;
};

void Take(void* tag, bool ok) { static_cast<Tag*>(tag)->Complete(ok); }

TEST(ServingThreadsTest, OneThatIsHeldHoldsNobodyUp) {
  grpc::CompletionQueue queue;
  std::atomic<bool> came = false, over = false;
  Event held(&queue, [&] { over = Eventually([&] { return came.load(); }); });
  Event other(&queue, [&] { came = true; });
  {
    ServingThreads threads(2, absl::ZeroDuration(), &queue, Take);
    held.Ask();
    other.Ask();
    EXPECT_TRUE(Eventually([&] { return over.load(); }));
    queue.Shutdown();
  }
}

TEST(ServingThreadsTest, TheyServeTogetherWhileThereIsACrowd) {
  grpc::CompletionQueue queue;
  std::atomic<bool> crowd = true;
  std::atomic<int> under_way = 32;
  std::vector<std::unique_ptr<Event>> events(32);
  for (std::unique_ptr<Event>& event : events) {
    event = std::make_unique<Event>(&queue, [&] { crowd ? event->Ask() : void(--under_way); });
  }
  {
    ServingThreads threads(3, absl::ZeroDuration(), &queue, Take);
    // On a busy machine the one that is alone may have missed kHeld already.
    EXPECT_TRUE(Eventually([&] { return !threads.together(); }));
    for (const std::unique_ptr<Event>& event : events) event->Ask();
    EXPECT_TRUE(Eventually([&] { return threads.together(); }));
    crowd = false;
    EXPECT_TRUE(Eventually([&] { return under_way == 0; }));
    EXPECT_TRUE(Eventually([&] { return !threads.together(); }));
    queue.Shutdown();
  }
}

// A thread that waits, as for a device, uses no processor; the queue grows all the same.
TEST(ServingThreadsTest, TheyServeTogetherWhereTheOneWaitsForSomethingElse) {
  constexpr int kEvents = 2000;
  grpc::CompletionQueue queue;
  std::atomic<int> taken = 0;
  std::atomic<bool> together = false;
  std::atomic<ServingThreads*> serving = nullptr;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < kEvents; ++i) {
    events.push_back(std::make_unique<Event>(&queue, [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      if (serving != nullptr && serving.load()->together()) together = true;
      ++taken;
    }));
    events.back()->Ask();
  }
  {
    ServingThreads threads(3, absl::ZeroDuration(), &queue, Take);
    serving = &threads;
    EXPECT_TRUE(Eventually([&] { return taken == kEvents; }));
    EXPECT_TRUE(together);
    queue.Shutdown();
  }
}

TEST(ServingThreadsTest, WhatHasComeIsTakenBeforeTheEnd) {
  grpc::CompletionQueue queue;
  std::atomic<int> taken = 0;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 100; ++i) {
    events.push_back(std::make_unique<Event>(&queue, [&] { ++taken; }));
    events.back()->Ask();
  }
  {
    ServingThreads threads(3, absl::ZeroDuration(), &queue, Take);
    queue.Shutdown();
  }
  EXPECT_EQ(taken, 100);
}

}  // namespace
}  // namespace blockd::server
