// The service over loopback: what gRPC and the batcher cost and gain. Same table as cpu_bench.
//
//   service_bench [--target=HOST:PORT] [--router=HOST:PORT] [--json=FILE --commit=NAME]
//     [--noheader] [--quick]
//
// Without --target it starts a server in its own process. --router: a router in front of that
// server; then only what a call costs through it is measured, beside direct calls. --quick: few
// calls; its times mean nothing, its residuals do. Exit code 1 if a call fails or a residual is too
// large.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/synchronization/mutex.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"

ABSL_FLAG(std::string, target, "",
          "The server to measure, as host:port; empty: one in this process.");
ABSL_FLAG(std::string, router, "", "A router in front of it, as host:port; empty: none.");

namespace blockd::bench {
namespace {

using client::FactorHandle;
using client::SolverClient;

constexpr int64_t kUploadBytes = int64_t{256} << 20;
constexpr int64_t kChunkBytes = int64_t{1} << 20;

struct Options : Flags {
  std::string target;
  std::string router;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "service_bench: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status().ToString());
  return *std::move(value);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void CheckResidual(const problems::Problem& problem, const std::vector<double>& x) {
  const double error = problems::BackwardError(problem, x, problem.rhs, 1);
  const double bound = 4 * static_cast<double>(problem.block_size) * 0x1p-52;
  if (!(error <= bound))
    Die("backward error " + std::to_string(error / bound) + " times the bound");
}

client::SystemView View(const problems::Problem& problem) {
  return client::MakeSystemView(problem.num_blocks, problem.block_size, problem.diagonal.data(),
                                problem.coupling.data());
}

// A connected pair of TCP sockets on the loopback interface.
std::pair<int, int> Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    Die("cannot listen on loopback");
  }
  const int sender = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(sender, reinterpret_cast<sockaddr*>(&address), length) != 0) Die("cannot connect");
  const int receiver = accept(listener, nullptr, nullptr);
  close(listener);
  return {sender, receiver};
}

// Copies `from` to `to` through TCP, chunk by chunk.
void TcpCopy(std::pair<int, int> sockets, const std::vector<char>& from, std::vector<char>& to) {
  std::thread reader([&] {
    for (size_t done = 0; done < to.size();) {
      const ssize_t got =
          read(sockets.second, to.data() + done, std::min<size_t>(kChunkBytes, to.size() - done));
      if (got <= 0) Die("cannot read");
      done += static_cast<size_t>(got);
    }
  });
  for (size_t done = 0; done < from.size();) {
    const ssize_t put =
        write(sockets.first, from.data() + done, std::min<size_t>(kChunkBytes, from.size() - done));
    if (put <= 0) Die("cannot write");
    done += static_cast<size_t>(put);
  }
  reader.join();
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), table_(options) {
    std::string target = options.target;
    if (target.empty()) {
      server::ServerOptions server;
      server.port = server.metrics_port = 0;
      server.log_level = "error";
      server.device.memory_bytes = int64_t{2} << 30;
      const absl::Status checked = server::CheckAndComplete(&server);
      if (!checked.ok()) Die(checked.ToString());
      server_ = Must(server::Server::Start(server));
      target = server_->grpc_target();
    }
    client::ClientOptions settings;
    settings.chunk_bytes = kChunkBytes;
    client_ = std::make_unique<SolverClient>(Must(SolverClient::Connect(target, settings)));
    if (!client_->WaitUntilConnected(absl::Seconds(30))) Die("no server at " + target);
  }

  void Run() {
    if (!options_.router.empty()) return ThroughRouter();
    SmallSolve();
    // So little to compute that the calls themselves are the cost: printed for what it is.
    ManyCallers(problems::Kalman({.states = 8, .observations = 16, .steps = 32}), false);
    ManyCallers(options_.quick ? problems::Kalman({.states = 64, .observations = 64, .steps = 20})
                               : problems::Kalman({}),
                true);
    Upload();
    client_->AwaitReleases(absl::Seconds(30));
  }

 private:
  // Calls in turn, direct and through the router, on handles that the one server holds.
  void ThroughRouter() {
    const SolverClient routed = Must(SolverClient::Connect(options_.router));
    if (!routed.WaitUntilConnected(absl::Seconds(30))) Die("no router at " + options_.router);
    for (const problems::Problem& problem : {problems::Mpc(32, 8, 1), problems::Mpc(1024, 16, 1)}) {
      const FactorHandle direct = Must(client_->Factor(View(problem))).handle;
      const FactorHandle behind = Must(routed.Factor(View(problem))).handle;
      std::vector<double> x(problem.rows()), y(problem.rows());
      const std::vector<Samples> samples =
          Interleave(options_.quick ? 20 : 5000,
                     {{nullptr, [&] { Must(client_->Solve(direct, problem.rhs, x)); }},
                      {nullptr, [&] { Must(routed.Solve(behind, problem.rhs, y)); }}});
      CheckResidual(problem, x);
      CheckResidual(problem, y);
      for (const auto& [name, q] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
        Row row;
        row.work = "Solve, N=" + std::to_string(problem.num_blocks) +
                   " n=" + std::to_string(problem.block_size) + " d=1, " + name +
                   " through Envoy against direct";
        row.ours = FormatSeconds(samples[1].quantile(q));
        row.reference = FormatSeconds(samples[0].quantile(q));
        row.ratio = samples[1].quantile(q) / samples[0].quantile(q);
        row.spread = samples[1].spread();
        table_.Add(row);
      }
    }
    routed.AwaitReleases(absl::Seconds(30));
  }

  void SmallSolve() {
    const problems::Problem problem = problems::Mpc(32, 8, 1);
    const FactorHandle handle = Must(client_->Factor(View(problem))).handle;
    std::vector<double> x(problem.rows());
    const std::vector<Samples> samples =
        Interleave(options_.quick ? 20 : 5000,
                   {{nullptr, [&] { Must(client_->Solve(handle, problem.rhs, x)); }},
                    {nullptr, [&] {
                       const absl::Status status = client_->CheckHealth();
                       if (!status.ok()) Die(status.ToString());
                     }}});
    CheckResidual(problem, x);
    Row row;
    row.work = "Solve, N=32 n=8 d=1, p50 against an empty call (health check)";
    row.ours = FormatSeconds(samples[0].median());
    row.reference = FormatSeconds(samples[1].median());
    row.spread = samples[0].spread();
    table_.AddAtMost(row, samples[0].median() / samples[1].median(), 1.5);
  }

  // Solves a second of `callers` threads that each call in a loop.
  double Throughput(const problems::Problem& problem, const FactorHandle& handle, int callers,
                    double seconds) {
    std::atomic<int64_t> solved{0};
    std::atomic<bool> counting{false}, stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < callers; ++t) {
      threads.emplace_back([&] {
        std::vector<double> x(problem.rows());
        while (!stop) {
          Must(client_->Solve(handle, problem.rhs, x));
          if (counting) ++solved;
        }
        CheckResidual(problem, x);
      });
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 4));
    counting = true;
    const double start = Now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    counting = false;
    const double rate = static_cast<double>(solved) / (Now() - start);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return rate;
  }

  void ManyCallers(const problems::Problem& problem, bool has_goal) {
    const FactorHandle handle = Must(client_->Factor(View(problem))).handle;
    const double seconds = options_.quick ? 0.1 : 2;
    Samples one, many;  // of rates
    for (int round = 0; round < (options_.quick ? 1 : 5); ++round) {
      one.seconds.push_back(Throughput(problem, handle, 1, seconds));
      many.seconds.push_back(Throughput(problem, handle, 64, seconds));
    }
    Row row;
    row.work = "64 callers of one handle, N=" + std::to_string(problem.num_blocks) +
               " n=" + std::to_string(problem.block_size);
    row.ours = Format(many.median(), "solves/s");
    row.reference = Format(one.median(), "solves/s of one caller");
    row.spread = many.spread();
    row.ratio = many.median() / one.median();
    if (has_goal) {
      table_.AddAtLeast(row, row.ratio, 4);
    } else {
      table_.Add(row);
    }
  }

  void Upload() {
    const int64_t bytes = options_.quick ? kUploadBytes / 64 : kUploadBytes;
    const int64_t n = 8;
    const problems::Problem problem =
        problems::Mpc(bytes / static_cast<int64_t>(sizeof(double)) / (2 * n * n), n, 1);
    std::vector<char> from(bytes, 1), to(bytes);
    const std::pair<int, int> sockets = Connect();
    FactorHandle handle;
    Samples upload;
    // What is not upload is taken from what the server says that computing took.
    const auto factor = [&] {
      const double start = Now();
      client::FactorResult result = Must(client_->Factor(View(problem)));
      upload.seconds.push_back(Now() - start - result.cost.compute_seconds());
      handle = std::move(result.handle);
    };
    const auto release = [&] {
      const absl::Status status = handle.Release();
      if (!status.ok()) Die(status.ToString());
    };
    const std::vector<Samples> samples =
        Interleave(options_.quick ? 1 : 7,
                   {{release, factor}, {nullptr, [&] { TcpCopy(sockets, from, to); }}});
    close(sockets.first);
    close(sockets.second);
    upload.seconds.erase(upload.seconds.begin());  // the round that is not counted
    if (from != to) Die("the copy is not a copy");
    std::vector<double> x(problem.rows());
    Must(client_->Solve(handle, problem.rhs, x));
    CheckResidual(problem, x);
    const double rate = static_cast<double>(bytes) / upload.median();
    const double limit = static_cast<double>(bytes) / samples[1].median();
    Row row;
    row.work = "Factor upload, " + std::to_string(bytes >> 20) + " MiB, without its compute";
    row.ours = Format(rate / 1e9, "GB/s");
    row.reference = Format(limit / 1e9, "GB/s raw TCP");
    row.spread = upload.spread();
    table_.AddAtLeast(row, rate / limit, 0.5, "%");
  }

  const Options options_;
  Table table_;
  std::unique_ptr<server::Server> server_;
  std::unique_ptr<SolverClient> client_;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const blockd::bench::Flags flags = blockd::bench::ParseFlags(argc, argv);
  blockd::bench::Bench({flags, absl::GetFlag(FLAGS_target), absl::GetFlag(FLAGS_router)}).Run();
  return 0;
}
