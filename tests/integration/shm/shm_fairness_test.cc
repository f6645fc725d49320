// The sessions of one tenant leave a part of each resource to the others: places, memory, the
// port's thread, the work threads.
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/shm/shm_fixture.h"

namespace blockd::test {
namespace {

class ShmFairnessTest : public ShmTest {
 protected:
  ShmFairnessTest() { options_.core.tenant_share = 0.75; }
  // Over the tenant's part, which is `limit`.
  static void ExpectOverShare(const v1::RpcStatus& status, const std::string& quota, double limit,
                              bool waiting_helps) {
    EXPECT_EQ(status.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const auto detail = DetailOf<v1::QuotaExceeded>(status);
    ASSERT_TRUE(detail.has_value()) << status.message();
    EXPECT_EQ(detail->quota(), quota);
    EXPECT_EQ(detail->limit(), limit);
    EXPECT_EQ(DetailOf<v1::RetryAfter>(status).has_value(), waiting_helps);
  }
};

// -----------------------------------------------------------------------------------------------------
// Places and memory

TEST_F(ShmFairnessTest, ATenantLeavesPlacesForOthers) {
  options_.shared_memory.max_sessions = 8;
  Start(options_);
  std::vector<std::unique_ptr<RawShm>> ada;
  const auto open = [&] {
    ada.push_back(std::make_unique<RawShm>(path_));
    return ada.back()->Open(RawShm::Hello(1 << 20, 16, "ada"));
  };
  for (int i = 0; i < 6; ++i) ASSERT_EQ(open().code(), 0);
  ExpectOverShare(open(), "shared_memory_sessions", 6, /*waiting_helps=*/true);
  RawShm ben(path_);
  EXPECT_EQ(ben.Open(RawShm::Hello(1 << 20, 16, "ben")).code(), 0);
  ada.clear();
  EXPECT_TRUE(Eventually([&] { return open().code() == 0; }));
}

TEST_F(ShmFairnessTest, AQuotaOfHostMemoryIsInPlaceOfTheShare) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants")
      << "tenant { name: \"eve\" identity { metadata: \"eve\" } quotas { host_bytes: \"8MiB\" } }";
  options_.shared_memory.max_bytes = 8 << 20;
  Start(options_);
  RawShm eve(path_);
  EXPECT_EQ(eve.Open(RawShm::Hello(7 << 20, 16, "eve")).code(), 0);
}

TEST_F(ShmFairnessTest, ATenantLeavesMemoryForOthers) {
  options_.shared_memory.max_bytes = 8 << 20;
  Start(options_);
  RawShm ada(path_), more(path_), much(path_), ben(path_);
  const char* const quota = "max_shared_memory_bytes";
  ExpectOverShare(much.Open(RawShm::Hello(7 << 20, 16, "ada")), quota, 6 << 20, false);
  ASSERT_EQ(ada.Open(RawShm::Hello(5 << 20, 16, "ada")).code(), 0);
  ExpectOverShare(more.Open(RawShm::Hello(2 << 20, 16, "ada")), quota, 6 << 20, true);
  EXPECT_EQ(ben.Open(RawShm::Hello(2 << 20, 16, "ben")).code(), 0);
}

// -----------------------------------------------------------------------------------------------------
// Memory that is being made

class ShmOpeningTest : public ShmFairnessTest {
 protected:
  static constexpr uint64_t kLarge = 256 << 20;
  ShmOpeningTest() {
    options_.core.max_inflight_request_bytes = 6 * static_cast<int64_t>(kLarge);
    options_.shared_memory.max_bytes = 4 * static_cast<int64_t>(kLarge);
  }
  static void Send(RawShm& caller, uint64_t bytes, const std::string& name) {
    const v1::ShmHello hello = RawShm::Hello(bytes, 16, name);
    caller.SendBytes(&hello, sizeof(hello));
  }
};

// Who is slow himself looks too late, and tries again.
TEST_F(ShmOpeningTest, ALargeMemoryKeepsNobodyElseWaiting) {
  Start(options_);
  EXPECT_TRUE(Eventually([&] {
    RawShm large(path_), small(path_);
    Send(large, kLarge, "ada");
    if (small.Open(RawShm::Hello(1 << 20, 16, "ben")).code() != 0) return false;
    const bool first = !large.HasAnswer();
    EXPECT_EQ(large.TakeWelcome().code(), 0);
    return first;
  }));
}

TEST_F(ShmOpeningTest, WhatIsBeingMadeCounts) {
  options_.shared_memory.max_sessions = 3;
  Start(options_);
  RawShm ada(path_), ben(path_), third(path_), more(path_);
  Send(ada, kLarge, "ada");
  Send(ben, kLarge, "ben");
  Send(third, kLarge, "ben");
  // Its hello is heard after the others', which are made meanwhile, or have been.
  EXPECT_TRUE(IsRetryLater(more.Open(RawShm::Hello(1 << 20, 16, "eve"))));
  for (RawShm* const caller : {&ada, &ben, &third}) EXPECT_EQ(caller->TakeWelcome().code(), 0);
}

TEST_F(ShmOpeningTest, WhoGoesMeanwhileLeavesNothingBehind) {
  options_.shared_memory.max_sessions = 4;
  Start(options_);
  for (int round = 0; round < 3; ++round) {
    for (const char* const name : {"ada", "ada", "ben"}) {
      RawShm caller(path_);
      Send(caller, kLarge / 2, name);
    }
    std::vector<std::unique_ptr<RawShm>> all;  // the three that the share allows
    const auto open_all = [&] {
      all.clear();
      for (int i = 0; i < 3; ++i) {
        all.push_back(std::make_unique<RawShm>(path_));
        if (all.back()->Open(RawShm::Hello(1 << 20, 16, "ada")).code() != 0) return false;
      }
      return true;
    };
    EXPECT_TRUE(Eventually(open_all));
  }
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(ShmOpeningTest, AServerThatStopsDoesNotMakeTheRest) {
  Start(options_);
  std::vector<std::unique_ptr<RawShm>> callers;
  for (const char* const name : {"ada", "ada", "ben"}) {
    callers.push_back(std::make_unique<RawShm>(path_));
    Send(*callers.back(), kLarge / 2, name);
  }
  server_.reset();
  for (const auto& caller : callers) EXPECT_TRUE(caller->EndsSoon());
}

// -----------------------------------------------------------------------------------------------------
// Scans for NaN

class ShmScanTest : public ShmFairnessTest {
 protected:
  static constexpr int64_t kColumns = 8192, kScans = 31;

  ShmScanTest() {
    options_.copy_threads = 2;  // and so 2 that work
    options_.core.max_inflight_request_bytes = int64_t{1} << 30;
  }
  // The matrix has more rows than kRows, so that a request may have many bytes.
  static constexpr int64_t kLargeRows = 1024;
  static HostMatrix Large() {
    return HostMatrix(problems::RandomSpd(64, 16, 3, 10), Scalar::kFloat64);
  }
  // Right-hand sides of 64 MiB, the last of whose numbers is NaN.
  static v1::ShmRequest Scan(RawShm& caller, const std::string& handle, uint64_t id) {
    v1::SolveRequest message;
    message.set_handle(handle);
    message.set_num_rhs(kColumns);
    message.mutable_options()->set_check_finite(true);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::memcpy(caller.at(caller.data() + kLargeRows * kColumns * sizeof(double) - sizeof(nan)),
                &nan, sizeof(nan));
    return caller.Solve(message, kLargeRows * kColumns, id);
  }
  // An answer to it says that all before it were taken.
  static v1::ShmRequest Marker(uint64_t id) {
    v1::ShmRequest request{};
    request.id = id;
    request.operation = v1::ShmOperation::kCancel;
    request.other_id = std::numeric_limits<uint64_t>::max();
    return request;
  }
  static v1::ShmHello LargeHello(const std::string& name) {
    return RawShm::Hello((kLargeRows * kColumns * 8) + (1 << 20), 64, name);
  }
};

TEST_F(ShmScanTest, OneSessionsScansLeaveAThreadToOthers) {
  Start(options_);
  const std::string handle = Factor(FactorRequestOf(Large()), "ada").system(0).handle();
  const HostMatrix matrix = Matrix();
  v1::FactorRequest message;
  *message.mutable_spec() = SpecOf(matrix);
  RawShm ada(path_), ben(path_);
  ASSERT_EQ(ada.Open(LargeHello("ada")).code(), 0);
  ASSERT_EQ(ben.Open(RawShm::Hello(1 << 20, 16, "ben")).code(), 0);
  v1::ShmRequest factor = ben.Request(v1::ShmOperation::kFactor, message,
                                      ben.PutMatrix(DataOf(matrix), 128 << 10), 0, 0);
  uint64_t id = 0;
  // Who is slow himself looks too late, and tries again.
  EXPECT_TRUE(Eventually([&] {
    const uint64_t before = ada.header().replies_end.load();
    for (int64_t i = 0; i < kScans; ++i) ada.Put(Scan(ada, handle, ++id));
    const uint64_t marker = ++id;
    ada.Put(Marker(marker));
    int64_t left = kScans + 1;
    const auto take = [&] {
      const auto reply = ada.Take();
      --left;
      const bool is_marker = reply.has_value() && reply->id == marker;
      EXPECT_TRUE(is_marker || (reply && reply->code == grpc::StatusCode::INVALID_ARGUMENT));
      return is_marker;
    };
    while (!take()) {
    }
    factor.id = ++id;
    EXPECT_EQ(ben.Ask(factor).code, 0);
    const uint64_t answered = ada.header().replies_end.load() - before;
    while (left > 0) take();
    return answered < kScans / 2;
  }));
}

TEST_F(ShmScanTest, WhatWaitsForAScanEndsWithItsSession) {
  Start(options_);
  const std::string handle = Factor(FactorRequestOf(Large()), "ada").system(0).handle();
  {
    RawShm ada(path_);
    ASSERT_EQ(ada.Open(LargeHello("ada")).code(), 0);
    for (uint64_t id = 1; id <= kScans; ++id) ada.Put(Scan(ada, handle, id));
    ada.Put(Marker(kScans + 1));
    while (ada.Take()->id != kScans + 1) {
    }
  }
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  EXPECT_TRUE(Eventually(
      [&] { return Ended("Solve", "CANCELLED") + Ended("Solve", "INVALID_ARGUMENT") == kScans; }));
  ExpectServes();
}

// Systems that share their blocks would have the server look at more than the memory.
TEST_F(ShmScanTest, MatricesThatAreLookedThroughLieApart) {
  Start(options_);
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello(1 << 20, 16)).code(), 0);
  const HostMatrix matrix(problems::RandomSpd(16, 32, 3, 10), Scalar::kFloat64);
  constexpr size_t kSystems = 16;  // each of which takes a fourth of the memory
  constexpr uint64_t kColumnBytes = 16 * 32 * sizeof(double);
  const std::vector<v1::ShmPlace> blocks = caller.PutMatrix(DataOf(matrix), 512 << 10);
  std::vector<v1::ShmPlace> places;
  v1::FactorSolveManyRequest message;
  *message.mutable_spec() = SpecOf(matrix);
  for (size_t i = 0; i < kSystems; ++i) {
    const v1::ShmPlace columns{.offset = caller.data() + (128 << 10) + i * kColumnBytes,
                               .bytes = kColumnBytes};
    places.insert(places.end(), {blocks[0], blocks[1], columns, columns});
    message.add_handle(Factor(matrix));
  }
  for (const bool checks : {false, true}) {
    message.set_check_finite(checks);
    message.mutable_options()->set_check_finite(!checks);  // right-hand sides alone
    const v1::ShmRequest request =
        caller.Request(v1::ShmOperation::kFactorSolveMany, message, places, checks ? 2 : 1, 0);
    const v1::ShmReply reply = caller.Ask(request);
    EXPECT_EQ(reply.code, checks ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::OK)
        << caller.StatusOf(request, reply).message();
    if (!checks) continue;
    const auto field = DetailOf<v1::InvalidField>(caller.StatusOf(request, reply));
    ASSERT_TRUE(field.has_value());
    EXPECT_EQ(field->field(), "places");
  }
}

}  // namespace
}  // namespace blockd::test
