// One matrix over several connections: who brings what, and what becomes of the rest when one of
// them fails.
#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "blockd/client/solver_client.h"
#include "client/upload/upload.h"
#include "tests/client/fake_solver.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

// 80 MiB, more than what may be on its way on three connections before a server reads: however late
// a fourth one joins, something is left for it.
constexpr int64_t kNumbers = 5 << 20;
constexpr int64_t kTotal = (2 * kNumbers - 1) * 8;

class UploadConnectionsTest : public ::testing::Test {
 public:
  // gRPC is left running: to shut down after so much it may wait 10 s for a poller of its own.
  static void SetUpTestSuite() { grpc_init(); }

 protected:
  UploadConnectionsTest() {
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = static_cast<double>(i);
    fake_.opens_uploads = true;
    fake_.on_factor_stream = [this](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
      v1::FactorStreamRequest first;
      if (!reader->Read(&first)) return grpc::Status::CANCELLED;
      return first.has_join() ? OnJoin(first.join(), reader) : OnHeader(first, reader, reply);
    };
    fake_.on_call = [this](const std::string&, const grpc::ServerContext& context) {
      absl::MutexLock lock(&mutex_);
      peers_.insert(context.peer());
    };
    fake_.on_release = [](const v1::ReleaseRequest&, v1::ReleaseReply*) {
      return grpc::Status::OK;
    };
  }

  absl::StatusOr<FactorResult> Factor(int connections, const FactorOptions& options = {}) {
    const auto client = SolverClient::Connect(
        fake_.target(),
        {.retry = {.initial_delay = absl::Milliseconds(1)}, .upload_connections = connections});
    return client->Factor(
        MakeSystemView<double>(kNumbers, 1, numbers_.data(), numbers_.data() + kNumbers), options);
  }
  std::string Sent() const {
    return {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(double)};
  }

  // Opens the upload, and reads on, ever more slowly, until so many have joined: the client splits
  // the rest between two of its writes.
  grpc::Status OnHeader(const v1::FactorStreamRequest& first, FakeSolver::FactorReader* reader,
                        v1::FactorReply* reply) {
    v1::FactorStreamRequest request;
    std::string bytes;
    {
      absl::MutexLock lock(&mutex_);
      ids_.insert(first.header().upload_id());
      ++headers_;
    }
    if (answer_early_) {
      reply->set_found(true);
      return AnswerWith("known", reply);
    }
    absl::Duration wait = absl::Milliseconds(10);
    while (reader->Read(&request)) {
      if (bytes.empty() && fake_.opens_uploads.Get()) reader->SendInitialMetadata();
      bytes += request.chunk();
      if (AwaitJoins(wait) && !refusal_.ok()) return refusal_;
      wait = std::min(2 * wait, absl::Seconds(5));
    }
    absl::MutexLock lock(&mutex_);
    // Not what a client gave up.
    if (join_refusal_.ok() || first.header().upload_id().empty()) parts_[0] = bytes;
    return AnswerWith("h", reply);
  }
  bool AwaitJoins(absl::Duration limit) {
    const auto have_joined = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return joins_ >= awaited_joins_;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&have_joined), limit);
  }

  grpc::Status OnJoin(const v1::UploadJoin& join, FakeSolver::FactorReader* reader) {
    {
      absl::MutexLock lock(&mutex_);
      ++joins_;
      ids_.insert(join.upload_id());
    }
    AwaitJoins(absl::Seconds(60));
    if (hold_joins_) ended_.WaitForNotification();
    if (!join_refusal_.ok()) return join_refusal_;
    v1::FactorStreamRequest request;
    v1::UploadJoin part = join;
    std::string bytes;
    const auto keep = [&] {
      absl::MutexLock lock(&mutex_);
      parts_[part.first_byte()] = std::exchange(bytes, "");
    };
    while (reader->Read(&request)) {
      if (request.has_join()) {
        EXPECT_EQ(std::ssize(bytes), part.num_bytes());
        keep();
        part = request.join();
      } else {
        bytes += request.chunk();
      }
    }
    keep();
    return grpc::Status::OK;
  }
  std::string Received() {
    absl::MutexLock lock(&mutex_);
    std::string all;
    for (const auto& [first, bytes] : parts_) {
      EXPECT_EQ(first, std::ssize(all));
      all += bytes;
    }
    return all;
  }

  // The streams that join are refused; then all comes over one connection.
  void ExpectSentAgain(grpc::StatusCode code) {
    awaited_joins_ = 1;
    join_refusal_ = grpc::Status(code, "not here");
    const auto result = Factor(3);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(Received() == Sent());
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(parts_.size(), 1);
    EXPECT_EQ(headers_, 2);
    EXPECT_TRUE(ids_.contains(""));
  }

  std::vector<double> numbers_ = std::vector<double>(2 * kNumbers - 1);
  int awaited_joins_ = 0;
  bool answer_early_ = false, hold_joins_ = false;
  grpc::Status refusal_, join_refusal_;
  absl::Notification ended_;  // the test has
  absl::Mutex mutex_;
  int headers_ = 0, joins_ = 0;
  std::set<std::string> ids_, peers_;
  std::map<int64_t, std::string> parts_;  // by their first byte
  FakeSolver fake_;                       // after what its calls use
};

TEST_F(UploadConnectionsTest, EachBringsAPartOverAConnectionOfItsOwn) {
  awaited_joins_ = 3;
  std::vector<int64_t> progress;
  FactorOptions options;
  options.progress = [&](int64_t sent, int64_t total) {
    EXPECT_EQ(total, kTotal);
    progress.push_back(sent);
  };
  const auto result = Factor(4, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->handle.get().handle, "h");
  EXPECT_TRUE(Received() == Sent());
  EXPECT_EQ(joins_, 3);
  EXPECT_GE(parts_.size(), 4);
  ASSERT_EQ(ids_.size(), 1);
  EXPECT_EQ(ids_.begin()->size(), 16);
  EXPECT_EQ(peers_.size(), 4);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.back(), kTotal);
  for (const auto& [first, bytes] : parts_) EXPECT_GT(std::ssize(bytes), 0) << first;
}

TEST_F(UploadConnectionsTest, OneConnectionNamesNoUpload) {
  ASSERT_TRUE(Factor(1).ok());
  EXPECT_TRUE(Received() == Sent());
  EXPECT_EQ(ids_, std::set<std::string>({""}));
}

TEST_F(UploadConnectionsTest, AServerThatOpensNothingGetsAllOnTheFirst) {
  fake_.opens_uploads = false;
  ASSERT_TRUE(Factor(4).ok());
  EXPECT_TRUE(Received() == Sent());
  EXPECT_EQ(parts_.size(), 1);
  EXPECT_EQ(joins_, 0);
}

TEST_F(UploadConnectionsTest, AServerThatDoesNotHaveTheUploadGetsItAgainOverOne) {
  ExpectSentAgain(grpc::StatusCode::NOT_FOUND);
}

TEST_F(UploadConnectionsTest, AConnectionThatIsLostIsNotNeededTheNextTime) {
  ExpectSentAgain(grpc::StatusCode::UNAVAILABLE);
}

TEST_F(UploadConnectionsTest, AStreamThatSomebodyEndsIsNotNeededTheNextTime) {
  ExpectSentAgain(grpc::StatusCode::CANCELLED);
}

TEST_F(UploadConnectionsTest, ARefusalOfAJoinIsTold) {
  awaited_joins_ = 1;
  join_refusal_ = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "NaN");
  EXPECT_EQ(Factor(2).status(), absl::InvalidArgumentError("NaN"));
}

TEST_F(UploadConnectionsTest, AnEarlyAnswerIsTaken) {
  answer_early_ = true;
  fake_.opens_uploads = false;
  const auto result = Factor(4);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->found);
}

TEST_F(UploadConnectionsTest, TheFirstStreamsRefusalEndsThoseThatJoined) {
  awaited_joins_ = 2;
  hold_joins_ = true;
  refusal_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too large");
  EXPECT_EQ(Factor(3).status(), absl::ResourceExhaustedError("too large"));
  ended_.Notify();
}

TEST_F(UploadConnectionsTest, JoinedStreamsCannotHoldTheCallBeyondItsTimeout) {
  awaited_joins_ = 1;
  hold_joins_ = true;
  const auto result = Factor(2, {.timeout = absl::Milliseconds(500)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  ended_.Notify();
}

TEST(UploadConnectionsChoiceTest, IsAsAskedOrByTheBytes) {
  EXPECT_EQ(UploadConnections({.upload_connections = 7}, 1), 7);
  EXPECT_EQ(UploadConnections({}, 1), 1);
  EXPECT_EQ(UploadConnections({}, (int64_t{128} << 20) - 1), 1);
  EXPECT_LE(UploadConnections({}, int64_t{1} << 40), 4);
  EXPECT_GE(UploadConnections({}, int64_t{1} << 40), 1);
}

class UploadConnectionsServerTest : public ServerTest {};

TEST_F(UploadConnectionsServerTest, SeveralConnectionsGiveTheBitsOfOne) {
  StartServer();
  const problems::Problem problem = problems::Mpc(600, 64, 1);  // 39 MB
  std::vector<double> expected(problem.rhs.size()), x(problem.rhs.size());
  for (const int connections : {1, 2, 5, 16}) {
    const SolverClient client = Connect({.upload_connections = connections});
    const auto factored = client.Factor(View(problem), {.check_finite = true});
    ASSERT_TRUE(factored.ok()) << factored.status() << ", " << connections << " connections";
    ASSERT_TRUE(client.Solve(factored->handle, problem.rhs, x).ok());
    if (connections == 1) expected = x;
    EXPECT_EQ(x, expected) << connections;
  }
}

}  // namespace
}  // namespace blockd::client
