// A core on the CPU with a fake clock and a gate before the device, and calls that a test can wait
// for.
#ifndef BLOCKD_TESTS_SERVER_CORE_CORE_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_CORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "server/core/solver_core.h"
#include "tests/server/base/fake_clock.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {

// A well conditioned system and its numbers; `seed` makes another one of the same shape. No two of
// its blocks are alike and none of its couplings is symmetric, so that a block in another's place
// or a transposed one changes every answer. The strict upper triangles hold NaN.
struct TestSystem {
  TestSystem(int64_t num_blocks, int64_t block_size, int seed = 0, int64_t arrow_size = 0);

  BlockTridiagonalView view() const;
  // Its parts one after another: what a stream sends.
  std::vector<std::byte> bytes() const;
  // Not positive definite from this block on; N: in the border.
  TestSystem Spoiled(int64_t block) const;
  // The largest |b - A x|, of num_rhs columns.
  double Residual(std::span<const double> x, std::span<const double> b) const;
  double LogDeterminant() const;  // by dense LAPACK

  MatrixForm form;
  std::vector<double> diagonal, coupling, border, corner;
};

// No two columns, and no two seeds, are alike.
std::vector<double> TestRhs(const Shape& shape, int64_t num_rhs, int seed);

// A call under way, and its answer once that has come. The destructor waits for the answer.
template <typename Reply>
class Pending {
 public:
  ~Pending() {
    if (asked_) Wait();
  }
  // Waits for the answer; a minute without one fails the test instead of hanging it.
  const absl::StatusOr<Reply>& Wait() {
    if (!done_.WaitForNotificationWithTimeout(absl::Minutes(1))) {
      static const absl::StatusOr<Reply> kNone(absl::UnknownError("no answer"));
      ADD_FAILURE() << "no answer within a minute";
      return kNone;
    }
    return answer_;
  }
  bool answered() const { return done_.HasBeenNotified(); }
  auto Callback() {
    asked_ = true;
    return [this](absl::StatusOr<Reply> reply) {
      EXPECT_FALSE(done_.HasBeenNotified()) << "answered twice";
      answer_ = std::move(reply);
      thread = std::this_thread::get_id();
      if (at_answer) at_answer();
      done_.Notify();
    };
  }

  server::ContextPtr context = std::make_shared<server::RequestContext>();
  std::vector<double> rhs, solution;
  std::function<void()> at_answer;  // within the callback
  std::thread::id thread;           // that answered

 private:
  bool asked_ = false;
  absl::StatusOr<Reply> answer_ = absl::UnknownError("no answer yet");
  absl::Notification done_;
};
using PendingFactor = std::unique_ptr<Pending<server::FactorReply>>;

// The answer to a Solve, or to a FactorSolve of one system.
struct Solved : server::SolveReply {
  Solved() = default;
  Solved(server::SolveReply reply) : server::SolveReply(std::move(reply)) {}  // NOLINT: any of them

  double growth = 1;  // these three of a FactorSolve
  bool matrix_kept = false;
  std::optional<double> log_determinant;
};
using PendingSolve = std::unique_ptr<Pending<Solved>>;

// A FactorSolve of one system, with or without a handle.
struct OneFactorSolve : server::FactorSolveOptions {
  std::optional<server::Handle> handle;
  BlockTridiagonalView matrix;
  int64_t num_rhs = 0;
  std::span<const std::byte> rhs;
  std::span<std::byte> solution;
};
void AskOne(server::SolverCore& core, server::ContextPtr context, const OneFactorSolve& one,
            absl::AnyInvocable<void(absl::StatusOr<Solved>)> done);

struct CallOptions {
  std::string caller = "alice";
  absl::Time deadline = absl::InfiniteFuture();
  int rhs_seed = -1;  // negative: another one for each call
  bool may_run_here = false;
};

// The value of a metric by its name with labels, as in the text; -1 if there is none.
double MetricIn(const server::Metrics& metrics, const std::string& name);

class CoreTest : public testing::Test {
 protected:
  ~CoreTest() override;
  static inline const server::ServerIdentity kServer{"this", server::Epoch::Start("this")};

  struct Setup {
    int64_t memory_bytes = int64_t{16} << 20;
    // Without a reserve and shares unless a test says otherwise, so that it can count bytes.
    server::CoreLimits limits = {};
    int64_t solve_reserve_bytes = -1;
    double tenant_share = 1;
    bool solve_gate = false;  // solves have a gate of their own, which is open
    bool flies = false;       // what the device was given is in flight until landing_ is open
    int devices = 1;          // each with so much memory
    // Whenever the device works, what its memory holds has to be reserved. Not where another thread
    // stages uploads meanwhile.
    bool audit = true;
  };
  void Start(const Setup& setup);
  void Start() { Start(Setup()); }
  void Stop();  // checks that nothing is left behind

  PendingFactor Factor(const std::vector<TestSystem>& systems, server::FactorParams params = {},
                       const CallOptions& call = {});
  PendingSolve Solve(const server::Handle& handle, const Shape& shape, int64_t num_rhs = 1,
                     const CallOptions& call = {}, bool residual = false, int32_t refinements = 0);
  PendingSolve FactorSolve(const TestSystem& system, int64_t num_rhs = 1,
                           const CallOptions& call = {}, bool residual = false);

  // Factors one system and expects success.
  server::Handle Held(const TestSystem& system, server::FactorParams params = {});
  absl::Status SolveStatus(const server::Handle& handle, const Shape& shape);
  // Checks the solution of a Solve that was answered.
  void ExpectSolves(const TestSystem& system, Pending<Solved>& solve);
  // Queues something for each lane that then holds it before the closed gate.
  PendingFactor HoldDevice();

  // How often HoldDevice was called since the start; each time it factors one system more.
  size_t holds() const { return holders_.size(); }
  double Metric(const std::string& name) const { return MetricIn(*metrics_, name); }
  // The bytes that one held system of this shape is charged.
  int64_t Charge(const Shape& shape);
  // Zeros for the first part of an upload, after which it takes memory of the device.
  static std::vector<std::byte> FirstPart(const server::FactorUpload& upload) {
    return std::vector<std::byte>(
        static_cast<size_t>(std::min(upload.expected_bytes(), int64_t{64} << 10)));
  }
  int64_t Reserved() const { return core_->memory().total_bytes - core_->memory().free_bytes; }
  // SetQuotas sets the quotas of every tenant; Used is the amount that "alice" uses.
  void SetQuotas(const server::TenantQuotas& quotas) {
    server::TenantsConfig config;
    config.default_tenant.quotas = quotas;
    core_->tenants().Configure(config);
  }
  int64_t Used(server::Resource resource) {
    return core_->tenants().Get("alice").value()->used(resource);
  }

  FakeClock clock_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();  // of the first device
  std::vector<std::shared_ptr<Gate>> other_gates_;         // one of each of the others
  std::shared_ptr<Gate> solve_gate_;                       // null: gate_ is that of solves too
  std::shared_ptr<Gate> landing_ = std::make_shared<Gate>();
  std::unique_ptr<server::Metrics> metrics_;
  std::unique_ptr<server::SolverCore> core_;
  std::vector<std::unique_ptr<TestSystem>> kept_;  // matrices of calls under way
  bool healthy_ = true;                            // what the core is expected to be at its end

 private:
  std::vector<double> NextRhs(const Shape& shape, int64_t num_rhs, const CallOptions& call);

  std::atomic<int> calls_{0};
  std::vector<PendingSolve> holders_;  // solves that hold, or held, the device
};

// Repeats `step` until `reached` is true; a minute without success fails the test. For what another
// thread does in its own time.
void RepeatUntil(absl::FunctionRef<bool()> reached, absl::FunctionRef<void()> step);

server::NotFoundReason ReasonOf(const absl::Status& status);
std::string FieldOf(const absl::Status& status);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_CORE_CORE_FIXTURE_H_
