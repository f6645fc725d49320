// A core that answers when, and as, a fuzz target says: fake_core.cc stands for solver_core.cc.
// One, and one thread.
#ifndef BLOCKD_TESTS_FUZZ_FAKE_CORE_H_
#define BLOCKD_TESTS_FUZZ_FAKE_CORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/core/common/metrics.h"
#include "server/core/solver_core.h"
#include "server/identity/identities.h"

namespace blockd::server {

struct FakeCore {
  struct PendingSolve {
    ContextPtr context;
    SolveParams params;
    SolveDone done;
    SolveManyParams many = {};  // of a frame: this instead
    SolveManyDone many_done = {};
    FactorSolveParams refactor = {};  // of a frame of refactors: this
    FactorSolveDone refactor_done = {};
  };
  struct PendingFactor {
    ContextPtr context;
    std::string bytes;  // that came
    FactorDone done;
  };
  // A request with a matrix, or a Release: where its bytes lie, and how it is answered.
  struct PendingWork {
    ContextPtr context;
    std::vector<std::span<const std::byte>> reads;
    std::vector<std::span<std::byte>> writes;
    absl::AnyInvocable<void(const absl::Status&)> answer;
  };
  // The core's answer to the next question; then OK again.
  enum class Next { kAsksOn, kNotFound, kUnavailable, kOutOfMemory, kAtOnce };

  // The byte that fills all matrices of frames of refactors.
  static constexpr char kMatrixByte = 'm';
  // Handle `number`, of which ShapeOf knows 0 to 2: 1 has a border.
  static Handle HandleOf(uint8_t number);
  static BorderedShape ShapeOfNumber(uint8_t number);

  // Answers the one at `index`: OK makes the solution the complement of the right-hand sides.
  void AnswerSolve(size_t index, const absl::Status& status);
  void AnswerFactor(size_t index, const absl::Status& status);
  // Reads all that the work may read, and writes all that it may write, in any case.
  void AnswerWork(size_t index, const absl::Status& status);

  // Sets how many bytes requests under way may have on the host.
  void SetHost(int64_t bytes) {
    host.emplace(Budget::Options{
        .resource = Resource::kHostBytes, .total = bytes, .limit = "max_inflight_request_bytes"});
  }

  Tenants tenants;
  std::optional<Budget> host;
  Next next = Next::kAsksOn;
  bool takes_work = false;  // refactors are `works` too, of any bytes, and not `solves`
  bool fail_next_chunk = false;
  std::deque<PendingSolve> solves;
  std::deque<PendingFactor> factors;
  std::deque<PendingWork> works;
  int64_t uploads = 0;  // that exist
};
FakeCore& TheFakeCore();

// The other objects that calls need, for as long as the process runs.
struct World {
  Metrics metrics{{"fuzz", "fake", "fake", "fuzz"}};
  std::unique_ptr<Identities> identities = *Identities::Load("", {.trust_caller_metadata = true});
  // Nothing is constructed here: the methods of fake_core.cc use TheFakeCore() alone.
  alignas(SolverCore) std::byte memory[sizeof(SolverCore)];
  SolverCore& core = reinterpret_cast<SolverCore&>(memory);
};

}  // namespace blockd::server

#endif  // BLOCKD_TESTS_FUZZ_FAKE_CORE_H_
