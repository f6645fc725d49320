// The look for NaN and infinity ends with the request that asks for it.
#include <algorithm>
#include <limits>
#include <vector>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorReply;

class CoreScanTest : public CoreTest {
 protected:
  // Checks that `ask` ends with its deadline while the time passes, and with INVALID_ARGUMENT while
  // it stands still.
  template <typename Reply>
  void ExpectEndsWithItsDeadline(absl::FunctionRef<void(Pending<Reply>&)> ask) {
    for (const bool passes : {false, true}) {
      Pending<Reply> pending;
      pending.context->caller = CallOptions().caller;
      pending.context->deadline = clock_.Now() + absl::Hours(1);
      clock_.JumpAtLook(passes ? 8 : 0, absl::Hours(2));  // some looks at it are before the scan's
      ask(pending);
      EXPECT_EQ(pending.Wait().status().code(),
                passes ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kInvalidArgument);
    }
  }
  // `call` solves with columns of which the last number is NaN.
  template <typename Params, typename Call>
  void ExpectSolveEndsWithItsDeadline(Params params, Call call) {
    params.num_rhs = 65536;
    std::vector<double> rhs(static_cast<size_t>(system_.form.shape.rows() * params.num_rhs), 1);
    rhs.back() = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> solution(rhs.size());
    params.rhs = std::as_bytes(std::span(rhs));
    params.solution = std::as_writable_bytes(std::span(solution));
    ExpectEndsWithItsDeadline<Solved>([&](Pending<Solved>& pending) { call(params, pending); });
  }
  // Large enough that each test's scan has at least ten pieces.
  const TestSystem system_{10, 8};
};

TEST_F(CoreScanTest, OfASolveEndsWithIt) {
  Start();
  server::SolveParams params;
  params.handle = Held(system_);
  params.check_finite = true;
  ExpectSolveEndsWithItsDeadline(params, [&](const auto& given, auto& pending) {
    core_->Solve(pending.context, given, pending.Callback());
  });
}

TEST_F(CoreScanTest, OfAFactorSolveEndsWithIt) {
  Start();
  OneFactorSolve params;
  params.matrix = system_.view();
  params.check_finite_rhs = true;
  ExpectSolveEndsWithItsDeadline(params, [&](const auto& given, auto& pending) {
    AskOne(*core_, pending.context, given, pending.Callback());
  });
}

TEST_F(CoreScanTest, OfAFactorEndsWithIt) {
  Start();
  TestSystem bad = system_;
  bad.coupling.back() = std::numeric_limits<double>::quiet_NaN();
  std::vector<BlockTridiagonalView> views(16, system_.view());
  views.back() = bad.view();
  server::FactorParams params;
  params.form = system_.form;
  params.check_finite = true;
  ExpectEndsWithItsDeadline<FactorReply>(
      [&](auto& pending) { core_->Factor(pending.context, params, views, pending.Callback()); });
}

}  // namespace
}  // namespace blockd::test
