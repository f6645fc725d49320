// Each piece of memory that a request asks for fails once, in whichever library: the request is
// answered, and what it had comes back.
#include "tests/support/failing_malloc.h"

#include <functional>

#include "server/core/heap_reserve.h"
#include "tests/integration/pending_solve.h"
#include "tests/integration/solve_stream_fixture.h"

namespace blockd::test {
namespace {

using server::HeapReserve;

// Of small pieces the reserve has one in their place; a large one may be refused to who asks for
// it.
class FailingMallocTest : public SolveStreamTest, public testing::WithParamInterface<Pieces> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(HeapReserve::Process().Replenish());
    Open(Options());
    ASSERT_TRUE(IsOk(Close()));  // each call of a stream opens its own
    rhs_ = problems::RandomColumns(problem_.rows(), kColumns, 1);
    held_ = server().core().memory().factorizations;
    free_ = server().core().memory().free_bytes;
  }
  void TearDown() override {
    ExpectServesSoon();
    ExpectServes();
    EXPECT_TRUE(Eventually([this] { return HostBytes() == 0; }));  // the last answer is not its end
    EXPECT_EQ(Metric("blockd_queue_requests"), 0);
    EXPECT_TRUE(server().Drain());
    IntegrationTest::TearDown();
  }
  // Lets the first piece fail, then the second, until the call asks for fewer.
  void FailEach(const std::function<grpc::Status()>& call) {
    int refused = 0;
    for (int64_t nth = 1;; ++nth) {
      SCOPED_TRACE(nth);
      ASSERT_LT(nth, 100'000);
      bool failed = false;
      {
        const FailingMalloc heap(GetParam(), nth);
        const grpc::Status status = call();
        failed = heap.failed();
        EXPECT_TRUE(status.ok() || IsShort(status)) << status.error_message();
        if (!status.ok()) ++refused;
      }
      EXPECT_FALSE(HeapReserve::Process().Replenish());
      Forget();
      ASSERT_TRUE(Eventually([this] { return IsAllBack(); }));
      if (!failed) break;
    }
    EXPECT_GT(refused, 0);  // some failed before the server looked whether memory is short
    ExpectServesSoon();
    EXPECT_TRUE(IsOk(call()));
    Forget();
  }
  static bool IsShort(const grpc::Status& status) {
    return IsRetryLater(status) || (GetParam() == Pieces::kLarge &&
                                    status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  // A thread that was told to fail may take its piece from the reserve later.
  void ExpectServesSoon() {
    const v1::SolveRequest request = SolveRequestOf(handle_, rhs_, kColumns);
    EXPECT_TRUE(Eventually(
        [&] { return !HeapReserve::Process().Replenish() && SolveStatus(request).ok(); }));
  }
  bool IsAllBack() {
    const server::SolverCore::MemoryStats memory = server().core().memory();
    return server().core().host().reserved() == 0 && memory.factorizations == held_ &&
           memory.free_bytes == free_;
  }
  // Releases what a call has made.
  void Forget() {
    for (const v1::FactoredSystem& system : made_.system()) {
      EXPECT_TRUE(IsOk(ReleaseStatus({system.handle()})));
    }
    made_.Clear();
  }
  grpc::Status FactorOnce(const std::string& key = "") {
    v1::FactorRequest request = FactorRequestOf(matrix_);
    request.mutable_options()->set_idempotency_key(key);
    return FactorStatus(request, &made_);
  }
  grpc::Status UploadOnce() {
    const auto context = NewContext();
    const auto stream = stub().FactorStream(context.get(), &made_);
    v1::FactorStreamRequest header, chunk;
    *header.mutable_header()->mutable_spec() = SpecOf(matrix_);
    header.mutable_header()->set_num_systems(1);
    const v1::SystemData data = DataOf(matrix_);
    chunk.set_chunk(data.diagonal() + data.coupling());
    if (stream->Write(header) && stream->Write(chunk)) stream->WritesDone();
    return stream->Finish();
  }
  grpc::Status StreamOnce() {
    OpenStream();
    answers_.clear();
    v1::SolveStreamReply reply;
    const bool answered = stream_->Write(Whole(1, rhs_)) && stream_->Read(&reply);
    stream_->WritesDone();
    const grpc::Status end = stream_->Finish();
    if (!end.ok() || !answered || !reply.has_status()) return end;
    return grpc::Status(static_cast<grpc::StatusCode>(reply.status().code()),
                        reply.status().message(), reply.status().SerializeAsString());
  }

  // A random walk, observed: y has 160 KB.
  grpc::Status SmoothOnce() {
    constexpr int64_t kSteps = 20'000;
    v1::SmoothRequest header, chunk;
    v1::SmoothHeader& model = *header.mutable_header();
    model.set_num_steps(kSteps);
    model.set_state_size(1);
    model.set_observation_size(1);
    model.set_transition(v1::CONSTANT);
    model.set_transition_covariance(v1::CONSTANT);
    model.set_observation(v1::CONSTANT);
    model.set_observation_covariance(v1::CONSTANT);
    model.set_diffuse(true);
    chunk.set_chunk(BytesOf(std::vector<double>(4 + kSteps, 1)));
    const auto context = NewContext();
    const auto stream = stub().Smooth(context.get());
    if (stream->Write(header) && stream->Write(chunk)) stream->WritesDone();
    for (v1::SmoothReply reply; stream->Read(&reply);) {
    }
    return stream->Finish();
  }

  static constexpr int64_t kColumns = 20;  // 102 KB
  std::vector<double> rhs_;
  v1::FactorReply made_;
  int64_t held_ = 0, free_ = 0;
};

TEST_P(FailingMallocTest, OfAFactor) {
  FailEach([this] { return FactorOnce(); });
}

TEST_P(FailingMallocTest, OfAFactorWithAKey) {
  FailEach([this] { return FactorOnce("a key"); });
}

TEST_P(FailingMallocTest, OfAnUpload) {
  FailEach([this] { return UploadOnce(); });
}

TEST_P(FailingMallocTest, OfASolve) {
  const v1::SolveRequest request = SolveRequestOf(handle_, rhs_, kColumns);
  FailEach([&] { return SolveStatus(request); });
}

TEST_P(FailingMallocTest, OfAStreamOfSolves) {
  FailEach([this] { return StreamOnce(); });
}

TEST_P(FailingMallocTest, OfASmooth) {
  FailEach([this] { return SmoothOnce(); });
}

// Asks for no work: it is never refused.
TEST_P(FailingMallocTest, OfARelease) {
  for (int64_t nth = 1;; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_TRUE(
        Eventually([this] { return !HeapReserve::Process().Replenish() && FactorOnce().ok(); }));
    const std::string handle = made_.system(0).handle();
    made_.Clear();
    bool failed = false;
    {
      const FailingMalloc heap(GetParam(), nth);
      EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
      failed = heap.failed();
    }
    ASSERT_TRUE(Eventually([this] { return IsAllBack(); }));
    if (!failed) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Pieces, FailingMallocTest, testing::Values(Pieces::kSmall, Pieces::kLarge),
                         [](const auto& info) {
                           return info.param == Pieces::kSmall ? "small" : "large";
                         });

}  // namespace
}  // namespace blockd::test
