// Sessions, asynchronous Solves, fused calls and releases of a client with shared memory: as over
// gRPC, and with nothing over gRPC for a caller that is nobody there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/client/server_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/gated_cpu.h"
#include "tests/support/temp_folder.h"

namespace blockd::client {
namespace {

constexpr int64_t kSessionBytes = int64_t{8} << 20;
constexpr int64_t kRows = 54;

class SharedSessionTest : public ServerTest {
 protected:
  void SetUp() override { Start(); }
  void TearDown() override {
    gate_->Open();  // a test that failed may have left it closed
    ServerTest::TearDown();
  }
  // `alone`: whoever is not the user of this process is refused, and nobody over gRPC says who he
  // is.
  void Start(bool alone = false, bool gated = false) {
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.device.cpu_threads = 2;
    options.drain_grace = absl::ZeroDuration();
    options.log_level = "off";
    options.access.unix_socket = folder_ / "socket";
    options.shared_memory.enabled = true;
    if (alone) {
      options.access.tenants_file = folder_ / "tenants";
      std::ofstream(folder_ / "tenants")
          << "tenant { name: \"ada\" identity { unix_uid: " << getuid()
          << " } } refuse_unlisted: true";
    }
    absl::StatusOr<std::unique_ptr<server::Server>> server;
    if (gated) {
      options.core.max_batch_delay = absl::Microseconds(1);  // no Solve on the poller's thread
      std::vector<std::unique_ptr<Backend>> devices;
      devices.push_back(test::GatedCpu(options.device, gate_));
      server = server::Server::Start(options, std::move(devices));
    } else {
      server = server::Server::Start(options);
    }
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Restart(bool alone, bool gated) {
    Stop();
    Start(alone, gated);
  }
  void Stop() {
    server_->Drain();
    server_.reset();
  }
  SolverClient ConnectShared(ClientOptions options = {}) const {
    options.shared_memory_bytes = kSessionBytes;
    const auto client = SolverClient::Connect("unix:" + (folder_ / "socket"), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *client;
  }
  // Through another session of shared memory, where gRPC refuses.
  std::vector<double> Expected(const Factorization& held, const std::vector<double>& rhs) const {
    const SolverClient client = ConnectShared();
    std::vector<double> x(rhs.size());
    EXPECT_TRUE(client.Solve(held, rhs, std::span(x)).ok());
    return x;
  }
  int64_t Held() const { return server_->core().memory().factorizations; }

  const test::TempFolder folder_;
  const std::shared_ptr<test::Gate> gate_ = std::make_shared<test::Gate>();
  const problems::Problem problem_ = problems::RandomSpd(9, 6, 5, 100);
  const problems::Problem after_ = problems::RandomSpd(9, 6, 6, 100);
};

std::vector<double> Rhs(int64_t columns, int seed = 7) {
  return problems::RandomColumns(kRows, columns, seed);
}

// -----------------------------------------------------------------------------------------------------
// A caller that is nobody over gRPC

TEST_F(SharedSessionTest, AUserNeedsNothingButSharedMemory) {
  Restart(/*alone=*/true, /*gated=*/false);
  const SolverClient client = ConnectShared();
  EXPECT_FALSE(client.List().ok());  // which goes over gRPC
  const std::vector<double> b = Rhs(1);
  std::vector<double> x(b.size());
  {
    auto held = client.Factor(View(problem_));
    ASSERT_TRUE(held.ok()) << held.status();
    ASSERT_TRUE(client.Solve(held->handle, b, std::span(x)).ok());
    ASSERT_TRUE(client.RefactorSolve(held->handle, View(after_), b, std::span(x)).ok());
    EXPECT_LT(problems::BackwardError(after_, x, b, 1), 1e-14);
    ASSERT_TRUE(client.FactorSolve(View(problem_), b, std::span(x)).ok());
    EXPECT_LT(problems::BackwardError(problem_, x, b, 1), 1e-14);
    SolveSession session = client.OpenSession();
    const auto id = session.Send(held->handle, b, std::span(x));
    ASSERT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(session.Await(*id).ok());
    EXPECT_LT(problems::BackwardError(after_, x, b, 1), 1e-14);
    absl::Notification called;
    absl::Status async;
    client.SolveAsync(held->handle, b, std::span(x), {}, [&](absl::StatusOr<SolveResult> result) {
      async = result.status();
      called.Notify();
    });
    called.WaitForNotification();
    EXPECT_TRUE(async.ok()) << async;
    EXPECT_EQ(Held(), 1);
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_EQ(Held(), 0);
  auto held = client.Factor(View(problem_));
  ASSERT_TRUE(held.ok());
  const std::string handle = held->handle.get().handle;
  EXPECT_TRUE(held->handle.Release().ok());
  EXPECT_EQ(Held(), 0);
  const std::vector<std::string> handles = {handle};
  const auto detail = GetHandleNotFound(client.Release(handles).status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::HandleNotFound::RELEASED);
}

TEST_F(SharedSessionTest, MoreHandlesThanSlotsAreReleasedAtOnce) {
  Restart(/*alone=*/true, /*gated=*/false);
  const SolverClient client = ConnectShared();
  const problems::Problem small = problems::RandomSpd(2, 2, 5, 100);
  {
    std::vector<FactorHandle> held;
    const std::vector<SystemView> views(400, View(small));
    auto batch = client.FactorBatch(views);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(Held(), 400);
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_EQ(Held(), 0);
}

TEST_F(SharedSessionTest, AHandleMayOutliveItsClient) {
  std::optional<FactorHandle> held;
  {
    const SolverClient client = ConnectShared();
    auto factored = client.Factor(View(problem_));
    ASSERT_TRUE(factored.ok());
    held.emplace(std::move(factored->handle));
  }
  held.reset();
  EXPECT_TRUE(test::Eventually([&] { return Held() == 0; }));
}

// -----------------------------------------------------------------------------------------------------
// Fused calls

TEST_F(SharedSessionTest, FusedCallsHaveTheBitsOfThePort) {
  const SolverClient shared = ConnectShared(), port = Connect();
  const auto one = shared.Factor(View(problem_)), two = port.Factor(View(problem_));
  ASSERT_TRUE(one.ok() && two.ok());
  for (const int64_t columns : {1, 4}) {
    const std::vector<double> b = Rhs(columns);
    std::vector<double> x(b.size()), y(b.size());
    const SolveOptions options{.residual = true, .max_refinements = 1};
    const FactorOptions factor{.keep_matrix = true, .log_determinant = true};
    const auto a =
        shared.RefactorSolve(one->handle, View(after_), b, std::span(x), options, factor);
    const auto c = port.RefactorSolve(two->handle, View(after_), b, std::span(y), options, factor);
    ASSERT_TRUE(a.ok() && c.ok()) << a.status() << c.status();
    EXPECT_EQ(x, y);
    EXPECT_EQ(a->log_determinant, c->log_determinant);
    EXPECT_EQ(a->backward_error, c->backward_error);
    EXPECT_EQ(a->growth, c->growth);
    EXPECT_TRUE(a->matrix_kept);
    ASSERT_TRUE(shared.FactorSolve(View(problem_), b, std::span(x)).ok());
    ASSERT_TRUE(port.FactorSolve(View(problem_), b, std::span(y)).ok());
    EXPECT_EQ(x, y);
  }
  const std::vector<Factorization> fused = {one->handle, two->handle};
  const std::vector<SystemView> systems = {View(after_), View(problem_)};
  const std::vector<double> b = Rhs(4);
  std::vector<double> x(b.size()), y(b.size());
  ASSERT_TRUE(shared.RefactorSolveMany(fused, systems, b, std::span(x)).ok());
  ASSERT_TRUE(port.RefactorSolveMany(fused, systems, b, std::span(y)).ok());
  EXPECT_EQ(x, y);
}

TEST_F(SharedSessionTest, MatricesInSharedBuffersAreReadWhereTheyLie) {
  const SolverClient shared = ConnectShared(), port = Connect();
  const auto held = shared.Factor(View(problem_));
  ASSERT_TRUE(held.ok());
  const auto copy = [&](const std::vector<double>& from) {
    auto buffer = shared.AllocateShared(static_cast<int64_t>(from.size() * sizeof(double)));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    std::ranges::copy(from, buffer->As<double>().begin());
    return *buffer;
  };
  const SharedBuffer diagonal = copy(after_.diagonal), coupling = copy(after_.coupling);
  const SharedBuffer columns = copy(Rhs(2));
  const SystemView view =
      MakeSystemView(9, 6, diagonal.As<double>().data(), coupling.As<double>().data());
  const std::span<double> b = columns.As<double>();
  ASSERT_TRUE(shared.RefactorSolve(held->handle, view, std::span<const double>(b), b).ok());
  std::vector<double> x(b.size());
  ASSERT_TRUE(port.FactorSolve(View(after_), Rhs(2), std::span(x)).ok());
  EXPECT_EQ(std::vector<double>(b.begin(), b.end()), x);
}

TEST_F(SharedSessionTest, AFusedCallThatHasNoRoomGoesOverGrpc) {
  const SolverClient shared = ConnectShared();
  const problems::Problem large = problems::RandomSpd(64, 96, 5, 100);  // more than 8 MiB
  const std::vector<double> b = problems::RandomColumns(64 * 96, 1, 7);
  std::vector<double> x(b.size());
  ASSERT_TRUE(shared.FactorSolve(View(large), b, std::span(x)).ok());
  EXPECT_LT(problems::BackwardError(large, x, b, 1), 1e-14);
}

TEST_F(SharedSessionTest, AFusedCallHeals) {
  const SolverClient shared = ConnectShared();
  auto held = shared.Factor(View(problem_), {.restore = {.keep_copy = true}});
  ASSERT_TRUE(held.ok());
  const std::vector<std::string> handles = {held->handle.get().handle};
  ASSERT_TRUE(shared.Release(handles).ok());
  Restart(false, false);
  std::vector<double> b = Rhs(1), x(b.size());
  const auto solved = shared.RefactorSolve(held->handle, View(after_), b, std::span(x));
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_LT(problems::BackwardError(after_, x, b, 1), 1e-14);
  EXPECT_EQ(held->handle.restore_counters().restores, 1);
}

// -----------------------------------------------------------------------------------------------------
// Sessions

TEST_F(SharedSessionTest, MoreRequestsThanSlotsAreAllAnswered) {
  constexpr int kRequests = 600;
  const SolverClient client = ConnectShared();
  const auto held = client.Factor(View(problem_));
  ASSERT_TRUE(held.ok());
  SolveSession session = client.OpenSession();
  std::vector<std::vector<double>> b, x(kRequests);
  std::map<uint64_t, int> request_of;
  for (int k = 0; k < kRequests; ++k) {
    b.push_back(Rhs(1 + k % 3, k));
    x[k].resize(b[k].size());
  }
  for (int k = 0; k < kRequests; ++k) {
    const auto id = session.Send(held->handle, b[k], std::span(x[k]));
    ASSERT_TRUE(id.ok()) << id.status();
    request_of[*id] = k;
  }
  for (int k = 0; k < kRequests; ++k) {
    const auto answer = session.Next();
    ASSERT_TRUE(answer.ok() && answer->result.ok()) << answer.status();
    const int request = request_of.at(answer->id);
    request_of.erase(answer->id);
    EXPECT_LT(problems::BackwardError(problem_, x[request], b[request], 1 + request % 3), 1e-14);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(session.Next().status()));
}

TEST_F(SharedSessionTest, FramesHaveTheBitsOfThePort) {
  const SolverClient shared = ConnectShared(), port = Connect();
  const auto one = shared.Factor(View(problem_)), two = shared.Factor(View(after_));
  ASSERT_TRUE(one.ok() && two.ok());
  Factorization unknown = one->handle;
  unknown.handle[0] = static_cast<char>(unknown.handle[0] ^ 1);
  const std::vector<Factorization> all = {one->handle, unknown, two->handle};
  const std::vector<int64_t> columns = {2, 1, 3};
  const std::vector<double> b = Rhs(6);
  std::vector<double> x(b.size(), 1), y(b.size(), 2);
  SolveSession session = shared.OpenSession(), other = port.OpenSession();
  for (int k = 0; k < 3; ++k) {
    const auto id = session.SendMany(all, b, std::span(x), {}, columns);
    const auto its = other.SendMany(all, b, std::span(y), {}, columns);
    ASSERT_TRUE(id.ok() && its.ok()) << id.status() << its.status();
    const auto a = session.Await(*id), c = other.Await(*its);
    ASSERT_TRUE(a.ok() && c.ok()) << a.status() << c.status();
    EXPECT_EQ(x, y);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(a->solves[i].status.code(), c->solves[i].status.code());
    }
  }
}

class HeldSharedSessionTest : public SharedSessionTest {
 protected:
  void SetUp() override {
    Start(/*alone=*/false, /*gated=*/true);
    client_.emplace(ConnectShared());
    auto held = client_->Factor(View(problem_));
    ASSERT_TRUE(held.ok());
    held_.emplace(std::move(held->handle));
  }
  void TearDown() override {
    gate_->Open();
    held_.reset();
    SharedSessionTest::TearDown();
  }
  // One that the device is at, and the rest of the test behind it.
  uint64_t Occupy(SolveSession& session) {
    gate_->Close();
    const auto id = session.Send(*held_, b_, std::span(first_));
    EXPECT_TRUE(id.ok()) << id.status();
    gate_->WaitForDevice();
    return *id;
  }

  const std::vector<double> b_ = Rhs(1);
  std::vector<double> first_ = std::vector<double>(kRows), x_ = first_, y_ = first_;
  std::optional<SolverClient> client_;
  std::optional<FactorHandle> held_;
};

TEST_F(HeldSharedSessionTest, ARequestIsCancelledAndOneIsReplaced) {
  SolveSession session = client_->OpenSession();
  const uint64_t first = Occupy(session);
  const auto second = session.Send(*held_, b_, std::span(x_));
  const auto third = session.Send(*held_, b_, std::span(y_));
  ASSERT_TRUE(second.ok() && third.ok());
  ASSERT_TRUE(session.Cancel(*second).ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*second).status()));
  std::vector<double> last(kRows);
  const auto fourth = session.Send(*held_, b_, std::span(last), {.replace_last = true});
  ASSERT_TRUE(fourth.ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*third).status()));
  EXPECT_TRUE(absl::IsNotFound(session.Cancel(*third)));
  gate_->Open();
  EXPECT_TRUE(session.Await(first).ok());
  EXPECT_TRUE(session.Await(*fourth).ok());
  EXPECT_EQ(last, first_);
}

TEST_F(HeldSharedSessionTest, ARequestEndsWithItsTimeout) {
  SolveSession session = client_->OpenSession();
  const uint64_t first = Occupy(session);
  const auto late = session.Send(*held_, b_, std::span(x_), {.timeout = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.ok() ? session.Await(*late).status() : late.status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(first, absl::Milliseconds(1)).status()));
  gate_->Open();
  EXPECT_TRUE(session.Await(first).ok());
  EXPECT_EQ(x_, std::vector<double>(kRows));  // nothing was written there
}

TEST_F(HeldSharedSessionTest, ASessionMayEndWithRequestsInFlight) {
  std::optional<SolveSession> session(client_->OpenSession());
  Occupy(*session);
  ASSERT_TRUE(session->Send(*held_, b_, std::span(x_)).ok());
  session.reset();
  gate_->Open();
  std::vector<double> solved(kRows);
  EXPECT_TRUE(client_->Solve(*held_, b_, std::span(solved)).ok());
  EXPECT_EQ(first_, std::vector<double>(kRows));
  EXPECT_EQ(x_, std::vector<double>(kRows));
}

TEST_F(SharedSessionTest, WhatIsUnansweredWhenTheServerGoesFails) {
  const SolverClient client = ConnectShared({.timeout = absl::Seconds(5)});
  const auto held = client.Factor(View(problem_));
  ASSERT_TRUE(held.ok());
  SolveSession session = client.OpenSession();
  std::vector<double> b = Rhs(1), x(b.size());
  const auto first = session.Send(held->handle, b, std::span(x));
  ASSERT_TRUE(first.ok() && session.Await(*first).ok());
  Stop();
  const auto second = session.Send(held->handle, b, std::span(x));
  const absl::Status status = second.ok() ? session.Await(*second).status() : second.status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  Start();
}

TEST_F(SharedSessionTest, ASessionHealsWithAServerThatIsStartedAgain) {
  const SolverClient client = ConnectShared();
  const auto held = client.Factor(View(problem_), {.restore = {.keep_copy = true}});
  ASSERT_TRUE(held.ok());
  SolveSession session = client.OpenSession();
  std::vector<double> b = Rhs(1), x(b.size());
  const auto first = session.Send(held->handle, b, std::span(x));
  ASSERT_TRUE(first.ok() && session.Await(*first).ok());
  Restart(false, false);
  std::ranges::fill(x, 0);
  const auto second = session.Send(held->handle, b, std::span(x));
  ASSERT_TRUE(second.ok()) << second.status();
  const auto solved = session.Await(*second);
  EXPECT_TRUE(solved.ok()) << solved.status();
  EXPECT_LT(problems::BackwardError(problem_, x, b, 1), 1e-14);
  EXPECT_EQ(held->handle.restore_counters().restores, 1);
}

// -----------------------------------------------------------------------------------------------------
// Asynchronous Solves

TEST_F(SharedSessionTest, AsynchronousSolvesAreAllCalledBack) {
  constexpr int kSolves = 700;
  const SolverClient client = ConnectShared();
  const auto held = client.Factor(View(problem_));
  ASSERT_TRUE(held.ok());
  const std::vector<double> b = Rhs(1), expected = Expected(held->handle, b);
  std::vector<std::vector<double>> x(kSolves, std::vector<double>(kRows));
  std::atomic<int> good{0};
  absl::BlockingCounter left(kSolves);
  for (int k = 0; k < kSolves; ++k) {
    client.SolveAsync(held->handle, b, std::span(x[k]), {}, [&](absl::StatusOr<SolveResult> r) {
      good += r.ok();
      left.DecrementCount();
    });
  }
  std::vector<double> between(kRows);  // while the ring is full of others
  EXPECT_TRUE(client.Solve(held->handle, b, std::span(between)).ok());
  left.Wait();
  EXPECT_EQ(good, kSolves);
  for (const std::vector<double>& each : x) EXPECT_EQ(each, expected);
}

// The callback lets go of the connection last.
TEST_F(SharedSessionTest, ACallbackMayAskAgainAndBeTheLast) {
  absl::Notification over;
  std::vector<double> x(kRows), y(kRows);
  absl::Status nested = absl::UnknownError("");
  const std::vector<double> b = Rhs(1);
  {
    std::optional<SolverClient> client(ConnectShared());
    auto held = client->Factor(View(problem_));
    ASSERT_TRUE(held.ok());
    const auto kept = std::make_shared<FactorHandle>(std::move(held->handle));
    client->SolveAsync(*kept, b, std::span(x), {},
                       [&, kept, own = *client](const absl::StatusOr<SolveResult>&) {
                         nested = own.Solve(*kept, b, std::span(y)).status();
                         over.Notify();
                       });
  }
  over.WaitForNotification();
  EXPECT_TRUE(nested.ok()) << nested;
  EXPECT_EQ(x, y);
  EXPECT_TRUE(test::Eventually([&] { return Held() == 0; }));
}

}  // namespace
}  // namespace blockd::client
