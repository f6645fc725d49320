// A server of two devices, both on the CPU: calls on both, what it says of each, and what is left
// when one fails.
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "blockd/engine/backend_registry.h"
#include "server/log/logging.h"
#include "tests/integration/fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

constexpr int kServing = 1, kNotServing = 2;

size_t DeviceOf(const std::string& handle) { return static_cast<unsigned char>(handle[15]); }

class ShardsTest : public IntegrationTest {
 protected:
  static server::ServerOptions TwoCpus() {
    server::ServerOptions options = Options();
    options.backend = "cpu";
    options.devices = "cpu,cpu";
    options.device.cpu_lanes = 2;
    return options;
  }
  v1::ServerInfo Info() {
    v1::ServerInfo info;
    EXPECT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
    return info;
  }
  // So many handles of this system.
  std::vector<std::string> FactorMany(int count) {
    std::vector<std::string> handles;
    for (int i = 0; i < count; ++i) handles.push_back(Factor(matrix_));
    return handles;
  }
  std::string FactorOn(size_t device) {
    // Each on the other device makes that one worse.
    for (int attempt = 0; attempt < 16; ++attempt) {
      std::string handle = Factor(matrix_);
      if (DeviceOf(handle) == device) return handle;
    }
    ADD_FAILURE() << "never placed on device " << device;
    return "";
  }
  v1::SolveRequest SolveOf(const std::string& handle) {
    v1::SolveRequest request;
    request.set_handle(handle);
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem_.rhs));
    return request;
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 10);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
};

TEST_F(ShardsTest, HandlesAreOnBothAndInfoShowsEach) {
  Start(TwoCpus());
  const v1::ServerInfo before = Info();
  ASSERT_EQ(before.device_size(), 2);
  EXPECT_EQ(before.health(), v1::ServerInfo::SERVING);
  int64_t memory = 0;
  for (const v1::Device& device : before.device()) {
    EXPECT_EQ(device.backend(), "cpu");
    EXPECT_FALSE(device.name().empty());
    EXPECT_EQ(device.parallelism(), 1);  // of two threads
    EXPECT_EQ(device.memory_bytes(), 64 << 20);
    EXPECT_EQ(device.memory_free_bytes(), device.memory_bytes());
    EXPECT_EQ(device.factorizations(), 0);
    EXPECT_EQ(device.state(), v1::Device::IN_SERVICE);
    EXPECT_TRUE(device.failure().empty());
    memory += device.memory_bytes();
  }
  EXPECT_EQ(before.memory_bytes(), memory);
  const std::vector<std::string> handles = FactorMany(6);
  const v1::ServerInfo after = Info();
  EXPECT_EQ(after.factorizations(), 6);
  for (const v1::Device& device : after.device()) {
    EXPECT_GT(device.factorizations(), 0);
    EXPECT_EQ(device.memory_evictable_bytes(), device.memory_bytes() - device.memory_free_bytes());
  }
  for (const std::string& handle : handles) {
    ExpectSolves(matrix_, Solve(handle, problem_.rhs), problem_.rhs);
    v1::GetFactorizationRequest request;
    request.set_handle(handle);
    v1::FactorizationInfo info;
    ASSERT_TRUE(IsOk(stub().GetFactorization(NewContext().get(), request, &info)));
    EXPECT_EQ(info.device(), static_cast<int>(DeviceOf(handle)));
    EXPECT_EQ(info.times_solved(), 1);
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Metric("blockd_shard_factorizations", absl::StrCat("device=\"", i, "\"")),
              static_cast<double>(after.device(i).factorizations()));
  }
  EXPECT_TRUE(IsOk(ReleaseStatus(handles)));
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(ShardsTest, AListOfBothIsPagedInTheOrderOfTheHandles) {
  Start(TwoCpus());
  const std::vector<std::string> made = FactorMany(7);
  std::vector<std::string> listed;
  v1::ListFactorizationsRequest request;
  request.set_page_size(2);
  do {
    v1::ListFactorizationsReply reply;
    ASSERT_TRUE(IsOk(stub().ListFactorizations(NewContext().get(), request, &reply)));
    for (const auto& one : reply.factorization()) listed.push_back(one.handle());
    request.set_page_token(reply.next_page_token());
  } while (!request.page_token().empty());
  std::vector<std::string> sorted = made;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(listed, sorted);
}

TEST_F(ShardsTest, ManySolvesOfBothHaveTheBitsOfSingleOnes) {
  Start(TwoCpus());
  const std::vector<std::string> handles = FactorMany(4);
  v1::SolveManyRequest request;
  for (const std::string& handle : handles) {
    *request.mutable_handles() += handle;
    request.mutable_rhs()->append(BytesOf(problem_.rhs));
  }
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(stub().SolveMany(NewContext().get(), request, &reply)));
  std::string singles;
  for (const std::string& handle : handles) {
    v1::SolveReply single;
    ASSERT_TRUE(IsOk(SolveStatus(SolveOf(handle), &single)));
    singles += single.solution();
  }
  EXPECT_EQ(reply.solution(), singles);
}

TEST_F(ShardsTest, AStreamSolvesOnBoth) {
  Start(TwoCpus());
  const std::vector<std::string> handles = FactorMany(4);
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  for (size_t i = 0; i < handles.size(); ++i) {
    v1::SolveStreamRequest request;
    request.set_id(i + 1);
    *request.mutable_request() = SolveOf(handles[i]);
    ASSERT_TRUE(stream->Write(request));
  }
  std::set<uint64_t> ids;
  for (size_t i = 0; i < handles.size(); ++i) {
    v1::SolveStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    ids.insert(reply.id());
    ExpectSolves(matrix_, ValuesOf(reply.reply().solution()), problem_.rhs);
  }
  EXPECT_EQ(ids.size(), handles.size());
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
}

TEST_F(ShardsTest, ARepeatedKeyFindsItsHandleOnEither) {
  Start(TwoCpus());
  std::set<size_t> devices;
  for (int i = 0; i < 4; ++i) {
    v1::FactorRequest request = FactorRequestOf(matrix_);
    request.mutable_options()->set_idempotency_key(absl::StrCat("key ", i));
    const v1::FactorReply first = Factor(request), again = Factor(request);
    EXPECT_FALSE(first.found());
    EXPECT_TRUE(again.found());
    EXPECT_EQ(again.system(0).handle(), first.system(0).handle());
    devices.insert(DeviceOf(first.system(0).handle()));
  }
  EXPECT_EQ(devices.size(), 2u);
}

// From many threads, on both, with what another thread releases meanwhile.
TEST_F(ShardsTest, CallersOfBothDoNotMeetEachOther) {
  Start(TwoCpus());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this] {
      for (int i = 0; i < 10; ++i) {
        const std::string handle = Factor(matrix_);
        ExpectSolves(matrix_, Solve(handle, problem_.rhs), problem_.rhs);
        EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(Metric("blockd_factorizations"), 0);
  EXPECT_EQ(ReservedBytes(), 0);
}

// ---------------------------------------------------------------- failures

class ShardFailureTest : public ShardsTest {
 protected:
  void SetUp() override {
    server::SetUpLogging({.level = "error", .format = "logfmt"});
    testing::internal::CaptureStderr();
    std::vector<std::unique_ptr<Backend>> devices;
    for (const auto& gate : gates_) {
      absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", Options().device);
      ASSERT_TRUE(cpu.ok()) << cpu.status();
      const CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
      devices.push_back(std::make_unique<HookedBackend>(*std::move(cpu), costs, gate));
    }
    Start(Options(), std::move(devices));
  }
  void TearDown() override {
    IntegrationTest::TearDown();
    server::SetUpLogging({.level = "off", .format = "logfmt"});
    if (!log_taken_) testing::internal::GetCapturedStderr();
  }
  std::string Log() {
    log_taken_ = true;
    EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));
    return testing::internal::GetCapturedStderr();
  }
  void Fail(size_t device, const std::string& handle) {
    gates_[device]->FailAfter(0);
    EXPECT_EQ(SolveStatus(SolveOf(handle)).error_code(), grpc::StatusCode::INTERNAL);
  }

  const std::vector<std::shared_ptr<Gate>> gates_ = {std::make_shared<Gate>(),
                                                     std::make_shared<Gate>()};
  bool log_taken_ = false;
};

TEST_F(ShardFailureTest, OneFailsTheOtherGoesOnAndHealthSaysDegraded) {
  const std::vector<std::string> handles = {FactorOn(0), FactorOn(1)};
  EXPECT_EQ(Health("devices"), kServing);
  Fail(1, handles[1]);
  EXPECT_EQ(Health(), kServing);
  EXPECT_EQ(Health("blockd.v1.Solver"), kServing);
  EXPECT_EQ(Health("devices"), kNotServing);
  EXPECT_EQ(Metric("blockd_healthy"), 1);
  EXPECT_EQ(Metric("blockd_shard_healthy", "device=\"0\""), 1);
  EXPECT_EQ(Metric("blockd_shard_healthy", "device=\"1\""), 0);
  const v1::ServerInfo info = Info();
  EXPECT_EQ(info.health(), v1::ServerInfo::DEGRADED);
  EXPECT_EQ(info.device(0).state(), v1::Device::IN_SERVICE);
  EXPECT_EQ(info.device(1).state(), v1::Device::FAILED);
  EXPECT_TRUE(absl::StartsWith(info.device(1).failure(), "the device fell off at "));
  EXPECT_EQ(info.device(1).factorizations(), 0);
  EXPECT_EQ(info.memory_bytes(), info.device(0).memory_bytes());
  EXPECT_TRUE(IsNotFound(SolveStatus(SolveOf(handles[1])), v1::HandleNotFound::DEVICE_FAILED));
  EXPECT_TRUE(IsNotFound(ReleaseStatus({handles[1]}), v1::HandleNotFound::DEVICE_FAILED));
  // To another caller a handle never existed, as before the failure.
  EXPECT_TRUE(IsNotFound(SolveStatus(SolveOf(handles[0]), nullptr, "bob"),
                         v1::HandleNotFound::NEVER_EXISTED));
  ExpectSolves(matrix_, Solve(handles[0], problem_.rhs), problem_.rhs);
  for (const std::string& handle : FactorMany(3)) EXPECT_EQ(DeviceOf(handle), 0u);
  ExpectServes();
  const std::string log = Log();
  EXPECT_TRUE(absl::StrContains(log, "event=device_failed backend=cpu")) << log;
  EXPECT_TRUE(absl::StrContains(log, "index=1 health=DEGRADED")) << log;
}

TEST_F(ShardFailureTest, WhereNoneIsLeftHealthSaysNotServing) {
  const std::vector<std::string> handles = {FactorOn(0), FactorOn(1)};
  Fail(0, handles[0]);
  EXPECT_EQ(Health(), kServing);
  Fail(1, handles[1]);
  EXPECT_EQ(Health(), kNotServing);
  EXPECT_EQ(Health("blockd.v1.Solver"), kNotServing);
  EXPECT_EQ(Metric("blockd_healthy"), 0);
  EXPECT_EQ(Info().health(), v1::ServerInfo::NOT_SERVING);
  EXPECT_EQ(FactorStatus(FactorRequestOf(matrix_)).error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(IsNotFound(SolveStatus(SolveOf(handles[0])), v1::HandleNotFound::DEVICE_FAILED));
  const std::string log = Log();
  EXPECT_TRUE(absl::StrContains(log, "index=0 health=DEGRADED")) << log;
  EXPECT_TRUE(absl::StrContains(log, "index=1 health=NOT_SERVING")) << log;
}

// An upload that had begun is answered, and the caller's next one goes elsewhere.
TEST_F(ShardFailureTest, UploadsBesideAFailureEndAndLaterOnesSucceed) {
  const auto send = [this]() {
    const auto context = NewContext();
    v1::FactorReply reply;
    const auto upload = stub().FactorStream(context.get(), &reply);
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
    message.mutable_header()->set_num_systems(1);
    upload->Write(message);
    const v1::SystemData data = DataOf(matrix_);
    message.set_chunk(data.diagonal() + data.coupling());
    upload->Write(message);
    upload->WritesDone();
    return upload->Finish();
  };
  gates_[0]->FailAfter(0);
  int failed = 0;
  for (int i = 0; i < 4; ++i) failed += send().error_code() == grpc::StatusCode::INTERNAL;
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(Health(), kServing);
  EXPECT_TRUE(IsOk(send()));
}

}  // namespace
}  // namespace blockd::test
