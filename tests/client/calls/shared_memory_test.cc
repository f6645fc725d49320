// The client through shared memory: the same answers, the same errors, and what goes over gRPC all
// the same.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/client/server_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace blockd::client {
namespace {

constexpr int64_t kShared = int64_t{4} << 20;

class SharedMemoryTest : public ServerTest {
 protected:
  void SetUp() override { Start(true); }
  void Start(bool shared_memory) {
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.device.cpu_threads = 2;
    options.drain_grace = absl::ZeroDuration();
    options.log_level = "off";
    options.access.unix_socket = folder_ / "socket";
    options.shared_memory.enabled = shared_memory;
    auto server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Stop() {
    server_->Drain();
    server_.reset();
  }
  std::string unix_target() const { return "unix:" + (folder_ / "socket"); }
  SolverClient ConnectShared(ClientOptions options = {}) const {
    options.shared_memory_bytes = kShared;
    const auto client = SolverClient::Connect(unix_target(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *client;
  }

  const test::TempFolder folder_;
};

template <typename T>
std::vector<T> Solved(const SolverClient& client, const Factorization& held,
                      const std::vector<T>& rhs, const SolveOptions& options = {}) {
  std::vector<T> x(rhs.size());
  const auto result = client.Solve(held, rhs, std::span(x), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return x;
}

template <typename T>
bool SameBits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}
template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return SameBits(std::span<const T>(a), std::span<const T>(b));
}

problems::Problem Small(int64_t n = 6) { return problems::RandomSpd(9, n, 5, 100); }

TEST_F(SharedMemoryTest, CallsHaveTheBitsOfThePort) {
  const SolverClient port = Connect(), shared = ConnectShared();
  const problems::Problem problem = Small();
  for (const SolverClient* factors : {&port, &shared}) {
    const auto held = factors->Factor(View(problem), {.keep_matrix = true});
    ASSERT_TRUE(held.ok()) << held.status();
    for (const int64_t columns : {1, 3, 40}) {
      const std::vector<double> rhs = problems::RandomColumns(54, columns, 7);
      EXPECT_TRUE(SameBits(Solved(shared, held->handle, rhs), Solved(port, held->handle, rhs)));
    }
    std::vector<double> rhs = problems::RandomColumns(54, 2, 8), x(rhs.size()), y(rhs.size());
    const SolveOptions options{.residual = true, .max_refinements = 2};
    const auto a = shared.Solve(held->handle, rhs, std::span(x), options);
    const auto b = port.Solve(held->handle, rhs, std::span(y), options);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    EXPECT_TRUE(SameBits(x, y));
    EXPECT_EQ(a->backward_error, b->backward_error);
    EXPECT_EQ(a->backward_error_bound, b->backward_error_bound);
    EXPECT_EQ(a->refinements, b->refinements);
    EXPECT_GT(a->cost.batch_requests(), 0);
  }
}

TEST_F(SharedMemoryTest, FloatsOfAnOddNumberAreServed) {
  const problems::Problem problem = problems::RandomSpd(3, 5, 5, 100);
  const std::vector<float> diagonal(problem.diagonal.begin(), problem.diagonal.end());
  const std::vector<float> coupling(problem.coupling.begin(), problem.coupling.end());
  const SolverClient shared = ConnectShared(), port = Connect();
  const auto held = shared.Factor(MakeSystemView(3, 5, diagonal.data(), coupling.data()));
  ASSERT_TRUE(held.ok()) << held.status();
  const std::vector<float> rhs(3 * 15, 0.5F);
  EXPECT_TRUE(SameBits(Solved(shared, held->handle, rhs), Solved(port, held->handle, rhs)));
  const std::vector<Factorization> three(3, held->handle);
  std::vector<float> x(rhs.size()), y(rhs.size());
  ASSERT_TRUE(shared.SolveMany(three, std::span(rhs), std::span(x)).ok());
  ASSERT_TRUE(port.SolveMany(three, std::span(rhs), std::span(y)).ok());
  EXPECT_TRUE(SameBits(x, y));
}

TEST_F(SharedMemoryTest, SharedBuffersAreReadWhereTheyLie) {
  const SolverClient shared = ConnectShared(), port = Connect();
  const problems::Problem problem = Small();
  const size_t scalars = problem.diagonal.size() + problem.coupling.size();
  const auto matrix = shared.AllocateShared(static_cast<int64_t>(scalars * sizeof(double)));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  double* const diagonal = matrix->As<double>().data();
  std::ranges::copy(problem.diagonal, diagonal);
  std::ranges::copy(problem.coupling, diagonal + problem.diagonal.size());
  const auto held =
      shared.Factor(MakeSystemView(9, 6, diagonal, diagonal + problem.diagonal.size()));
  ASSERT_TRUE(held.ok()) << held.status();
  const std::vector<double> rhs = problems::RandomColumns(54, 2, 7);
  const std::vector<double> expected = Solved(port, held->handle, rhs);
  const auto buffer = shared.AllocateShared(static_cast<int64_t>(2 * rhs.size() * sizeof(double)));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::span<double> b = buffer->As<double>().first(rhs.size());
  const std::span<double> x = buffer->As<double>().subspan(rhs.size());
  std::ranges::copy(rhs, b.begin());
  ASSERT_TRUE(shared.Solve(held->handle, std::span<const double>(b), x).ok());
  EXPECT_TRUE(SameBits<double>(x, expected));
  EXPECT_TRUE(SameBits<double>(b, rhs));
  ASSERT_TRUE(shared.Solve(held->handle, std::span<const double>(b), b).ok());  // in place
  EXPECT_TRUE(SameBits<double>(b, expected));
}

TEST_F(SharedMemoryTest, ManySolvesFailEachByItself) {
  const SolverClient shared = ConnectShared(), port = Connect();
  const problems::Problem problem = Small(), other = Small(2);
  const auto one = shared.Factor(View(problem)), two = shared.Factor(View(other));
  ASSERT_TRUE(one.ok() && two.ok());
  Factorization unknown = one->handle;
  unknown.handle[0] = static_cast<char>(unknown.handle[0] ^ 1);
  const std::vector<Factorization> all = {one->handle, unknown, two->handle};
  const std::vector<int64_t> columns = {2, 1, 3};
  const std::vector<double> rhs = problems::RandomColumns(2 * 54 + 54 + 3 * 18, 1, 9);
  std::vector<double> x(rhs.size(), 1), y(rhs.size(), 2);
  const auto a = shared.SolveMany(all, rhs, std::span(x), {}, columns);
  const auto b = port.SolveMany(all, rhs, std::span(y), {}, columns);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_TRUE(SameBits(x, y));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(a->solves[i].status.code(), b->solves[i].status.code());
  }
  EXPECT_TRUE(GetHandleNotFound(a->solves[1].status).has_value());
}

TEST_F(SharedMemoryTest, ErrorsHaveTheirDetails) {
  const SolverClient shared = ConnectShared();
  problems::Problem problem = Small();
  const auto held = shared.Factor(View(problem));
  ASSERT_TRUE(held.ok());
  problem.diagonal[0] = -1;
  const auto bad = shared.Factor(View(problem));
  const auto where = GetNotPositiveDefinite(bad.status());
  ASSERT_TRUE(where.has_value()) << bad.status();
  EXPECT_EQ(where->minor(), 1);
  std::vector<double> rhs(54, 1), x(54);
  const auto refused = shared.Solve(held->handle, rhs, std::span(x), {.residual = true});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  Factorization gone = held->handle;
  gone.handle[3] = static_cast<char>(gone.handle[3] ^ 1);
  EXPECT_TRUE(GetHandleNotFound(shared.Solve(gone, rhs, std::span(x)).status()).has_value());
  rhs[5] = std::numeric_limits<double>::quiet_NaN();
  const auto nan = shared.Solve(held->handle, rhs, std::span(x), {.check_finite = true});
  EXPECT_EQ(GetInvalidField(nan.status())->field(), "rhs") << nan.status();
}

TEST_F(SharedMemoryTest, WhatHasNoRoomGoesOverGrpc) {
  const SolverClient shared = ConnectShared();
  const problems::Problem problem = problems::RandomSpd(64, 64, 5, 100);  // more than 4 MiB
  const auto held = shared.Factor(View(problem));
  ASSERT_TRUE(held.ok()) << held.status();
  const std::vector<double> rhs = problems::RandomColumns(64 * 64, 160, 3);
  EXPECT_TRUE(SameBits(Solved(shared, held->handle, rhs), Solved(Connect(), held->handle, rhs)));
}

TEST_F(SharedMemoryTest, ManyThreadsShareASession) {
  const SolverClient shared = ConnectShared();
  const auto held = shared.Factor(View(Small()));
  ASSERT_TRUE(held.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<double> rhs = problems::RandomColumns(54, 1, 100 + t);
      const std::vector<double> expected = Solved(shared, held->handle, rhs);
      for (int i = 0; i < 200; ++i) {
        EXPECT_TRUE(SameBits(Solved(shared, held->handle, rhs), expected));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedMemoryTest, ATimeoutIsTheServers) {
  const SolverClient shared = ConnectShared();
  const auto held = shared.Factor(View(Small()));
  ASSERT_TRUE(held.ok());
  std::vector<double> rhs(54, 1), x(54);
  const auto late =
      shared.Solve(held->handle, rhs, std::span(x), {.timeout = absl::Nanoseconds(1)});
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
}

TEST_F(SharedMemoryTest, ConnectSaysWhereNothingIsShared) {
  ClientOptions options{.timeout = absl::Seconds(10), .shared_memory_bytes = kShared};
  EXPECT_EQ(GetInvalidField(SolverClient::Connect(target(), options).status())->field(),
            "shared_memory_bytes");
  Stop();
  Start(false);
  EXPECT_EQ(SolverClient::Connect(unix_target(), options).status().code(),
            absl::StatusCode::kUnavailable);
  options.shared_memory_bytes = -1;
  EXPECT_EQ(GetInvalidField(SolverClient::Connect(unix_target(), options).status())->field(),
            "shared_memory_bytes");
  EXPECT_EQ(Connect().AllocateShared(8).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SharedMemoryTest, AServerThatIsStartedAgainIsFoundAgain) {
  const SolverClient shared = ConnectShared();
  const problems::Problem problem = Small();
  const auto held = shared.Factor(View(problem), {.restore = {.keep_copy = true}});
  ASSERT_TRUE(held.ok());
  const std::vector<double> rhs = problems::RandomColumns(54, 1, 7);
  const std::vector<double> before = Solved(shared, held->handle, rhs);
  Stop();
  std::vector<double> x(rhs.size());
  // UNAVAILABLE, or DEADLINE_EXCEEDED while it is factored again, which fails as well.
  EXPECT_FALSE(shared.Solve(held->handle, rhs, std::span(x), {.timeout = absl::Seconds(1)}).ok());
  Start(true);
  EXPECT_TRUE(SameBits(Solved(shared, held->handle, rhs), before));
  EXPECT_EQ(held->handle.restore_counters().restores, 1);
}

// Who connects waits for its welcome until this is gone.
class SilentServer {
 public:
  explicit SilentServer(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof(name.sun_path) - 1);
    listens_ = bind(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
               listen(socket_, 100) == 0;
  }
  ~SilentServer() { close(socket_); }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;
  bool listens() const { return listens_; }

 private:
  const int socket_;
  bool listens_ = false;
};

// Its calls try again and again to open a session, each for a second.
TEST_F(SharedMemoryTest, AServerThatSaysNothingHoldsUpNoOtherClient) {
  ClientOptions options;
  options.retry = {.max_attempts = 10,
                   .initial_delay = absl::Milliseconds(1),
                   .max_delay = absl::Milliseconds(1)};
  const SolverClient shared = ConnectShared(options);
  const problems::Problem problem = Small();
  const std::vector<double> b = problems::RandomColumns(problem.rows(), 1, 7);
  const auto lost = shared.Factor(View(problem));
  ASSERT_TRUE(lost.ok()) << lost.status();
  Stop();
  std::optional<SilentServer> silent(folder_ / "socket.shm");
  ASSERT_TRUE(silent->listens());

  std::vector<double> y[2] = {b, b};
  std::atomic<int> ended = 0;
  std::vector<std::thread> callers;  // one opens the session, the other waits for that
  for (std::vector<double>& solution : y) {
    callers.emplace_back([&] {
      shared.SolveAsync(lost->handle, b, std::span(solution), {}, [&](const auto& result) {
        EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
        ++ended;
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  StartServer();
  for (int client = 0; client < 4; ++client) {  // one of them shares what it may share
    const SolverClient other = Connect({.share_connection = false});
    const auto held = other.Factor(View(problem));
    ASSERT_TRUE(held.ok()) << held.status();
    for (int i = 0; i < 20; ++i) {
      std::vector<double> x(b.size());
      absl::Notification solved;
      other.SolveAsync(held->handle, b, std::span(x), {}, [&](const auto& result) {
        EXPECT_TRUE(result.ok()) << result.status();
        solved.Notify();
      });
      solved.WaitForNotification();
    }
  }
  EXPECT_EQ(ended, 0);
  silent.reset();
  EXPECT_TRUE(test::Eventually([&] { return ended == 2; }));
}

}  // namespace
}  // namespace blockd::client
