// A core whose device fails, or has no memory, at whichever step of a call a test chooses.
#ifndef BLOCKD_TESTS_SERVER_CORE_FAILURE_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_FAILURE_FIXTURE_H_

#include <functional>
#include <limits>
#include <set>
#include <string>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {

// The same numbers each time: the steps of a refinement depend on them.
inline const CallOptions kAlike = {.rhs_seed = 1};

class FailingCoreTest : public CoreTest {
 protected:
  // The step that a status of INTERNAL names.
  static std::string StepOf(const absl::Status& status) {
    return std::string(status.message().substr(status.message().rfind(' ') + 1));
  }

  // Lets each step of `call` in turn be the one that fails, each time on a device that was whole.
  // `prepare` is what comes before it. The names of the steps that did fail.
  std::set<std::string> FailEveryStep(const std::function<void()>& prepare,
                                      const std::function<absl::Status()>& call) {
    std::set<std::string> steps;
    bool failed = true;
    for (int64_t step = 0; failed; ++step) {
      SCOPED_TRACE(step);
      Start();
      absl::Status failure;
      core_->OnDeviceFailure(
          [&failure](const server::DeviceFailure& failed) { failure = failed.status; });
      prepare();
      gate_->FailAfter(step);
      const absl::Status status = call();
      failed = gate_->failed();
      gate_->FailAfter(std::numeric_limits<int64_t>::max());
      EXPECT_EQ(absl::IsInternal(status), failed) << status;
      EXPECT_EQ(core_->healthy(), !failed) << status;
      EXPECT_EQ(failure, failed ? status : absl::OkStatus());
      if (failed) steps.insert(StepOf(status));
      healthy_ = !failed;
      Stop();  // what is reserved is what is held
      if (step == 1000) ADD_FAILURE() << "no end";
      if (step == 1000) break;
    }
    return steps;
  }
  // Lets the pool be empty for each in turn who asks for it, and the `empty - 1` who ask next. That
  // is no failure of the device; how often the call was refused.
  int EmptyPoolAtEach(int64_t empty, const std::function<void()>& prepare,
                      const std::function<absl::Status()>& call) {
    int refused = 0;
    for (int64_t time = 0;; ++time) {
      SCOPED_TRACE(time);
      Start();
      prepare();
      gate_->EmptyPoolAfter(time, empty);
      const absl::Status status = call();
      const bool was_empty = gate_->was_empty();
      gate_->EmptyPoolAfter(std::numeric_limits<int64_t>::max());
      EXPECT_TRUE(status.ok() || (was_empty && absl::IsResourceExhausted(status))) << status;
      EXPECT_TRUE(core_->healthy());
      refused += !status.ok();
      const server::Handle held = Held(system_);  // and there is room for others
      EXPECT_TRUE(SolveStatus(held, shape_).ok());
      Stop();  // what is reserved is what is held
      if (!was_empty) return refused;
      if (time == 1000) ADD_FAILURE() << "no end";
      if (time == 1000) return refused;
    }
  }
  static void ExpectAmong(const std::set<std::string>& steps, const std::set<std::string>& least) {
    for (const std::string& step : least) {
      EXPECT_TRUE(steps.contains(step)) << step << " never failed";
    }
  }

  const TestSystem system_{64, 8};
  const Shape shape_ = system_.form.shape;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_CORE_FAILURE_FIXTURE_H_
