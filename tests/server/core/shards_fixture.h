// A core of two devices, each with a gate of its own.
#ifndef BLOCKD_TESTS_SERVER_CORE_SHARDS_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_SHARDS_FIXTURE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {

class TwoDevicesTest : public CoreTest {
 protected:
  void StartTwo(Setup setup = {}) {
    setup.devices = 2;
    Start(setup);
  }
  int64_t HeldOn(size_t device) { return core_->shards()[device].state().factorizations; }
  // Factors once nothing is predicted to run: who was just answered may stand in a lane still.
  server::Handle HeldWhereIdle(server::FactorParams params = {}) {
    RepeatUntil(
        [this] {
          return core_->shards()[0].Backlog() + core_->shards()[1].Backlog() ==
                 absl::ZeroDuration();
        },
        [] {});
    return Held(system_, std::move(params));
  }
  // One on this device. Where the other one takes it, something else there makes it worse.
  server::Handle HeldOnDevice(size_t device, const server::FactorParams& params = {}) {
    std::vector<server::Handle> fillers;
    server::Handle found = HeldWhereIdle(params);
    while (core_->shards().IndexOf(found) != device && fillers.size() < 16) {
      EXPECT_TRUE(core_->Release("alice", {&found, 1}).ok());
      do {
        fillers.push_back(HeldWhereIdle());
      } while (core_->shards().IndexOf(fillers.back()) == device && fillers.size() < 16);
      found = HeldWhereIdle(params);
    }
    EXPECT_EQ(core_->shards().IndexOf(found), device);
    if (!fillers.empty()) {
      EXPECT_TRUE(core_->Release("alice", fillers).ok());
    }
    return found;
  }
  // Its Solves fail from now on, and one of them says so. The handles that are there.
  std::vector<server::Handle> HoldOnBothAndFail(size_t device) {
    const std::vector<server::Handle> handles = {HeldOnDevice(0), HeldOnDevice(1)};
    GateOf(device).FailAfter(0);
    EXPECT_TRUE(absl::IsInternal(SolveStatus(handles[device], shape_)));
    return handles;
  }
  Gate& GateOf(size_t device) { return device == 0 ? *gate_ : *other_gates_[device - 1]; }

  const TestSystem system_{16, 4};
  const Shape shape_ = system_.form.shape;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_CORE_SHARDS_FIXTURE_H_
