// A core that answers when, and as, a fuzz target says: fake_core.cc stands for solver_core.cc.
// One at a time, one thread.
#ifndef BLOCKD_TESTS_FUZZ_FAKE_CORE_H_
#define BLOCKD_TESTS_FUZZ_FAKE_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/core/solver_core.h"

namespace blockd::server {

struct FakeCore {
  struct PendingSolve {
    ContextPtr context;
    SolveParams params;
    SolveDone done;
    SolveManyParams many = {};  // of a frame: this instead
    SolveManyDone many_done = {};
  };
  struct PendingFactor {
    ContextPtr context;
    std::string bytes;  // that came
    FactorDone done;
  };
  // What the next question to the core is answered with; then OK again.
  enum class Next { kAsksOn, kNotFound, kUnavailable, kOutOfMemory, kAtOnce };

  // Handle `number`, of which ShapeOf knows 0 to 2.
  static Handle HandleOf(uint8_t number);
  static Shape ShapeOfNumber(uint8_t number);

  // Answers the one at `index`: OK makes the solution the complement of the right-hand sides.
  void AnswerSolve(size_t index, const absl::Status& status);
  void AnswerFactor(size_t index, const absl::Status& status);

  // Of what requests under way may have on the host.
  void SetHost(int64_t bytes) {
    host.emplace(Budget::Options{
        .resource = Resource::kHostBytes, .total = bytes, .limit = "max_inflight_request_bytes"});
  }

  std::optional<Budget> host;
  Next next = Next::kAsksOn;
  bool fail_next_chunk = false;
  std::deque<PendingSolve> solves;
  std::deque<PendingFactor> factors;
  int64_t uploads = 0;  // that exist
};
FakeCore& TheFakeCore();

}  // namespace blockd::server

#endif  // BLOCKD_TESTS_FUZZ_FAKE_CORE_H_
