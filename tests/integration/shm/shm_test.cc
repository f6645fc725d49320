// Sessions of shared memory: who gets one, what it counts against, and how it ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/integration/shm/shm_fixture.h"

namespace blockd::test {
namespace {

using ShmSessionTest = ShmTest;

TEST_F(ShmSessionTest, SolvesHaveTheBitsOfThePort) {
  Start(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  for (uint64_t id = 1; id < 100; ++id) EXPECT_TRUE(SolvesRight(caller, handle, id));  // wraps
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "OK") >= 99; }));
}

TEST_F(ShmSessionTest, ManyAnswersInAnyOrder) {
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello(1 << 20, 16)).code(), 0);
  gate_->Close();
  for (uint64_t i = 0; i < 16; ++i) caller.Put(caller.Solve(handle, kRows, i, i * 8192));
  gate_->WaitForDevice();
  gate_->Open();
  uint64_t seen = 0;
  for (int i = 0; i < 16; ++i) {
    const auto reply = caller.Take();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->code, 0);
    seen |= uint64_t{1} << reply->id;
  }
  EXPECT_EQ(seen, 0xffffU);
}

TEST_F(ShmSessionTest, HandlesBelongToTheCaller) {
  Start(options_);
  const std::string handle = Factor(FactorRequestOf(Matrix()), "ada").system(0).handle();
  RawShm ada(path_), ben(path_);
  ASSERT_EQ(ada.Open(RawShm::Hello(1 << 20, 16, "ada")).code(), 0);
  ASSERT_EQ(ben.Open(RawShm::Hello(1 << 20, 16, "ben")).code(), 0);
  const v1::ShmRequest request = ada.Solve(handle, kRows, 1);
  EXPECT_EQ(ada.Ask(request).code, 0);
  const v1::ShmReply refused = ben.Ask(ben.Solve(handle, kRows, 1));
  EXPECT_EQ(refused.code, grpc::StatusCode::NOT_FOUND);
  const auto detail = DetailOf<v1::HandleNotFound>(ben.StatusOf(request, refused));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::HandleNotFound::NEVER_EXISTED);
  v1::ReleaseRequest message;
  message.add_handle(handle);
  const auto release = [&](RawShm& caller) {
    return caller.Request(v1::ShmOperation::kRelease, message, {}, 2, 8192);
  };
  EXPECT_EQ(ben.Ask(release(ben)).code, grpc::StatusCode::NOT_FOUND);
  const v1::ShmReply released = ada.Ask(release(ada));
  v1::ReleaseReply reply;
  EXPECT_TRUE(ada.ReadReply(release(ada), released, &reply));
  EXPECT_GT(reply.released_bytes(), 0);
}

TEST_F(ShmSessionTest, AUserIsKnownByTheFile) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants")
      << "tenant { name: \"ada\" identity { unix_uid: " << getuid() << " } }";
  Start(options_);
  const std::string handle = Factor(Matrix());  // of "anonymous"
  RawShm ada(path_), named(path_);
  ASSERT_EQ(ada.Open(RawShm::Hello()).code(), 0);
  EXPECT_EQ(ada.Ask(ada.Solve(handle, kRows, 1)).code, grpc::StatusCode::NOT_FOUND);
  ASSERT_EQ(named.Open(RawShm::Hello(1 << 20, 16, "ben")).code(), 0);  // says so himself
  EXPECT_GT(server().core().tenants().Get("ada").value()->name().size(), 0u);
}

TEST_F(ShmSessionTest, NobodyIsRefusedAsThroughTheSocket) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants") << "tenant { name: \"t\" identity { metadata: \"ada\" } } "
                                     << "refuse_unlisted: true";
  Start(options_);
  RawShm ben(path_), nobody(path_), ada(path_), token(path_);
  EXPECT_EQ(ben.Open(RawShm::Hello(1 << 20, 16, "ben")).code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_NE(nobody.Open(RawShm::Hello()).code(), 0);
  EXPECT_EQ(ada.Open(RawShm::Hello(1 << 20, 16, "ada")).code(), 0);
  v1::ShmHello hello = RawShm::Hello();
  hello.token_bytes = 5;
  std::copy_n("wrong", 5, hello.token);
  EXPECT_EQ(token.Open(hello).code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ShmSessionTest, ItsFileHasTheModeOfTheOther) {
  options_.access.unix_socket_mode = "0600";
  Start(options_);
  struct stat file {};
  ASSERT_EQ(lstat((path_ + ".shm").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  server_.reset();
  EXPECT_NE(lstat((path_ + ".shm").c_str(), &file), 0);  // removed
}

TEST_F(ShmSessionTest, TheMemoryCountsAndComesBack) {
  options_.shared_memory.max_bytes = 3 << 20;
  Start(options_);
  auto first = std::make_unique<RawShm>(path_);
  ASSERT_EQ(first->Open(RawShm::Hello(2 << 20)).code(), 0);
  EXPECT_GE(HostBytes(), 2 << 20);
  EXPECT_TRUE(IsRetryLater(RawShm(path_).Open(RawShm::Hello(2 << 20))));
  RawShm large(path_);
  const v1::RpcStatus refused = large.Open(RawShm::Hello(4 << 20));
  EXPECT_TRUE(IsOverLimit(refused, "max_shared_memory_bytes",
                          DetailOf<v1::LimitExceeded>(refused)->asked_bytes(), 3 << 20));
  first.reset();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  EXPECT_TRUE(Eventually([&] { return RawShm(path_).Open(RawShm::Hello(2 << 20)).code() == 0; }));
}

TEST_F(ShmSessionTest, ATenantsQuotaOfHostMemoryHolds) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants")
      << "tenant { name: \"t\" identity { metadata: \"ada\" } quotas { host_bytes: \"1MiB\" } }";
  Start(options_);
  RawShm ada(path_), ben(path_);
  const v1::RpcStatus refused = ada.Open(RawShm::Hello(2 << 20, 16, "ada"));
  EXPECT_EQ(DetailOf<v1::QuotaExceeded>(refused)->quota(), "host_bytes") << refused.message();
  EXPECT_EQ(ben.Open(RawShm::Hello(2 << 20, 16, "ben")).code(), 0);
}

// Messages and places take of it what they take of the host.
TEST_F(ShmSessionTest, RequestsOfASessionCountForTheQuotaOfHostMemory) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants")
      << "tenant { name: \"t\" identity { metadata: \"ada\" } quotas { host_bytes: \"1300KiB\" } }";
  Start(options_);
  const std::string handle = Factor(FactorRequestOf(Matrix()), "ada").system(0).handle();
  RawShm ada(path_);
  ASSERT_EQ(ada.Open(RawShm::Hello(1 << 20, 16, "ada")).code(), 0);
  const auto quota = [&](const v1::ShmRequest& request) {
    const v1::RpcStatus status = ada.StatusOf(request, ada.Ask(request));
    const auto detail = DetailOf<v1::QuotaExceeded>(status);
    return detail.has_value() ? detail->quota() : status.message();
  };
  const v1::ShmPlace one{.offset = ada.data(), .bytes = kRows * sizeof(double)};
  const auto many = [&](size_t solves) {
    v1::SolveManyRequest message;
    for (size_t i = 0; i < solves; ++i) *message.mutable_handles() += handle;
    return ada.Request(v1::ShmOperation::kSolveMany, message,
                       std::vector<v1::ShmPlace>(2 * solves, one), 1, 4096);
  };
  EXPECT_EQ(quota(many(100)), "");
  EXPECT_EQ(quota(many(1000)), "host_bytes");
  v1::ReleaseRequest release;
  release.add_handle(std::string(400 << 10, 'x'));
  EXPECT_EQ(quota(ada.Request(v1::ShmOperation::kRelease, release, {}, 2, 4096)), "host_bytes");
  EXPECT_EQ(ada.Ask(ada.Solve(handle, kRows, 3)).code, 0);
}

TEST_F(ShmSessionTest, MoreSessionsThanThereMayBeAreTold) {
  options_.shared_memory.max_sessions = 2;
  Start(options_);
  RawShm a(path_);
  auto b = std::make_unique<RawShm>(path_);
  ASSERT_EQ(a.Open(RawShm::Hello()).code(), 0);
  ASSERT_EQ(b->Open(RawShm::Hello()).code(), 0);
  EXPECT_TRUE(IsRetryLater(RawShm(path_).Open(RawShm::Hello())));
  b.reset();
  EXPECT_TRUE(Eventually([&] { return RawShm(path_).Open(RawShm::Hello()).code() == 0; }));
}

TEST_F(ShmSessionTest, TheMetricsShowThem) {
  options_.metrics_port = 0;
  Start(options_);
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  const std::string page =
      Ask(server().metrics_port(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(page.find("\nblockd_shared_memory_sessions 1\n"), std::string::npos);
  EXPECT_NE(page.find(absl::StrCat("\nblockd_shared_memory_bytes ", caller.welcome().mapping_bytes,
                                   "\n")),
            std::string::npos);
}

// Who could make it smaller would end the server, which reads behind the end.
TEST_F(ShmSessionTest, NobodyChangesTheSizeOfTheMemory) {
  Start(options_);
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  for (const off_t size : {off_t{0}, off_t{4096}, off_t{1} << 30}) {
    EXPECT_NE(ftruncate(caller.memory_fd(), size), 0);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_NE(fcntl(caller.memory_fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  // A hole is zeros.
  (void)fallocate(caller.memory_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20);
  ExpectServes();
}

TEST_F(ShmSessionTest, ACallerThatVanishesLeavesNothingBehind) {
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 0; }));  // the Factor is over
  const int64_t reserved = ReservedBytes();
  const int64_t descriptors = server::OpenDescriptors();
  gate_->Close();
  for (int i = 0; i < 4; ++i) {
    RawShm caller(path_);
    ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
    caller.Put(caller.Solve(handle, kRows, 1));
    if (i == 0) gate_->WaitForDevice();  // which has this one
    caller.Put(caller.Solve(handle, kRows, 2, 8192));
  }
  // Waiting requests are answered at once, the running one when it ends. Until then the memory
  // stays.
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "CANCELLED") == 7; }));
  EXPECT_EQ(Metric("blockd_queue_requests"), 0);
  EXPECT_GT(HostBytes(), 0);
  gate_->Open();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  EXPECT_TRUE(Eventually([&] { return server::OpenDescriptors() == descriptors; }));
  EXPECT_EQ(ReservedBytes(), reserved);
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "CANCELLED") == 8; }));
  ExpectServes();
}

TEST_F(ShmSessionTest, ARequestIsCancelledAndOneIsLate) {
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  gate_->Close();
  caller.Put(caller.Solve(handle, kRows, 1));
  gate_->WaitForDevice();
  caller.Put(caller.Solve(handle, kRows, 2, 8192));
  v1::ShmRequest late = caller.Solve(handle, kRows, 3, 16384);
  late.timeout_nanoseconds = 1'000'000;
  caller.Put(late);
  EXPECT_EQ(caller.Take()->code, grpc::StatusCode::DEADLINE_EXCEEDED);
  v1::ShmRequest cancel{};
  cancel.id = 4;
  cancel.operation = v1::ShmOperation::kCancel;
  cancel.other_id = 2;
  caller.Put(cancel);
  int cancelled = 0;
  for (int i = 0; i < 2; ++i) {
    const auto reply = caller.Take();
    ASSERT_TRUE(reply.has_value());
    if (reply->id == 2) cancelled = reply->code;
    EXPECT_TRUE(reply->id == 2 || reply->code == 0);
  }
  EXPECT_EQ(cancelled, grpc::StatusCode::CANCELLED);
  gate_->Open();
  EXPECT_EQ(caller.Take()->code, 0);
}

TEST_F(ShmSessionTest, TwoRequestsOfOneIdEndTheSession) {
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  gate_->Close();
  caller.Put(caller.Solve(handle, kRows, 1));
  gate_->WaitForDevice();
  caller.Put(caller.Solve(handle, kRows, 1));
  EXPECT_TRUE(caller.EndsSoon());
  gate_->Open();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(ShmSessionTest, ADrainAnswersWhatIsAcceptedAndRefusesTheRest) {
  options_.server_name = "solver-7";
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  gate_->Close();
  caller.Put(caller.Solve(handle, kRows, 1));
  gate_->WaitForDevice();
  server().StartDrain();
  RawShm second(path_);
  EXPECT_EQ(DetailOf<v1::ServerDraining>(second.Open(RawShm::Hello()))->server_name(), "solver-7");
  const v1::ShmRequest request = caller.Solve(handle, kRows, 2, 8192);
  const v1::ShmReply refused = caller.Ask(request);
  EXPECT_EQ(refused.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf<v1::ServerDraining>(caller.StatusOf(request, refused))->server_name(),
            "solver-7");
  EXPECT_TRUE(IsRetryLater(caller.StatusOf(request, refused)));
  std::atomic<bool> in_time{false};
  std::thread drain([&] { in_time = server().Drain(); });
  EXPECT_TRUE(Eventually([&] { return !RawShm(path_).connected(); }));
  gate_->Open();
  EXPECT_EQ(caller.Take()->code, 0);
  drain.join();
  EXPECT_TRUE(in_time);
  EXPECT_TRUE(caller.EndsSoon());
}

TEST_F(ShmSessionTest, WhatOutlastsTheDrainIsCancelled) {
  options_.drain_timeout = absl::Milliseconds(10);
  StartGated(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  gate_->Close();
  caller.Put(caller.Solve(handle, kRows, 1));
  gate_->WaitForDevice();
  caller.Put(caller.Solve(handle, kRows, 2, 8192));
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 1; }));
  std::thread drain([&] { EXPECT_FALSE(server().Drain()); });
  const auto waiting = caller.Take();
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->id, 2U);
  EXPECT_EQ(waiting->code, grpc::StatusCode::CANCELLED);
  gate_->Open();
  drain.join();
}

TEST_F(ShmSessionTest, SleepersAreWokenOnEitherSide) {
  options_.core.poll = absl::ZeroDuration();
  Start(options_);
  const std::string handle = Factor(Matrix());
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  for (uint64_t id = 1; id < 200; ++id) {
    EXPECT_TRUE(Eventually([&] { return caller.header().server_asleep.load() == 1; }));
    EXPECT_TRUE(SolvesRight(caller, handle, id));
  }
}

}  // namespace
}  // namespace blockd::test
