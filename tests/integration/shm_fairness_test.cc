// What the sessions of one tenant leave to the others: places, memory, the port's thread.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/shm_fixture.h"

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
TEST_F(ShmOpeningTest, ALargeMemoryKeepsNobodyWaiting) {
  Start(options_);
  for (const char* const name : {"ada", "ben"}) {
    EXPECT_TRUE(Eventually([&] {
      RawShm large(path_), small(path_);
      Send(large, kLarge, "ada");
      if (small.Open(RawShm::Hello(1 << 20, 16, name)).code() != 0) return false;
      const bool first = !large.HasAnswer();
      EXPECT_EQ(large.TakeWelcome().code(), 0);
      return first;
    }));
  }
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

}  // namespace
}  // namespace blockd::test
