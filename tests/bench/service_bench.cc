// The service over loopback: what gRPC and the batcher cost and gain. Same table as cpu_bench.
//
//   service_bench [--target=HOST:PORT] [--router=HOST:PORT] [--json=FILE --commit=NAME]
//     [--noheader] [--quick] [--only_uploads] [--upload_bytes=N] [--upload_block_size=N]
//   service_bench --smooth [--target=HOST:PORT] [--backend=NAME] [--json=FILE --commit=NAME]
//     [--quick]
//   service_bench --wire [--two_devices] --blockd=PROGRAM --blockctl=PROGRAM --grpc_bench=PROGRAM
//     [--tcmalloc=LIBRARY] [--backend=NAME] [--seconds=S] [--json=FILE --commit=NAME] [--quick]
//
// Without --target it starts a server in its own process. --router: a router in front of that
// server; then only what a call costs through it is measured, beside direct calls. --quick: few
// calls; its times mean nothing, its residuals do. Exit code 1 if a call fails or a residual is too
// large. --smooth, --wire: the tables of smooth_table.h and wire_table.h.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/synchronization/mutex.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/reference/tcp_copy.h"
#include "tests/bench/smooth_table.h"
#include "tests/bench/wire_table.h"

ABSL_FLAG(std::string, target, "",
          "The server to measure, as host:port; empty: one in this process.");
ABSL_FLAG(std::string, router, "", "A router in front of it, as host:port; empty: none.");
ABSL_FLAG(int64_t, upload_bytes, int64_t{256} << 20, "Bytes of the matrix that is uploaded.");
ABSL_FLAG(int64_t, upload_block_size, 8, "n of it.");
ABSL_FLAG(bool, only_uploads, false, "Measure uploads alone.");
ABSL_FLAG(bool, smooth, false, "Measure what smoothing takes, alone.");
ABSL_FLAG(bool, wire, false, "Measure what callers of a server of its own process wait for.");
ABSL_FLAG(bool, two_devices, false, "With --wire: what two devices do that one does, alone.");
ABSL_FLAG(std::string, blockd, "", "With --wire: the server's program.");
ABSL_FLAG(std::string, blockctl, "", "With --wire: the load's program.");
ABSL_FLAG(std::string, grpc_bench, "", "With --wire: the program that measures gRPC itself.");
ABSL_FLAG(std::string, tcmalloc, "",
          "With --wire: tcmalloc's library, to preload for more rows; empty: without them.");
ABSL_DECLARE_FLAG(std::string, backend);  // the server's own
ABSL_FLAG(double, seconds, 1.5, "With --wire: of each row.");

namespace blockd::bench {
namespace {

using client::FactorHandle;
using client::SolverClient;

constexpr int64_t kQuickUploadBytes = int64_t{4} << 20;

struct Options : Flags {
  std::string target;
  std::string router;
};

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

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), table_(options) {
    std::string target = options.target;
    if (target.empty()) {
      server::ServerOptions server;
      server.port = server.metrics_port = 0;
      server.log_level = "error";
      server.backend = absl::GetFlag(FLAGS_backend);
      server.device.memory_bytes =
          std::max(int64_t{2} << 30, 4 * absl::GetFlag(FLAGS_upload_bytes));
      const absl::Status checked = server::CheckAndComplete(&server);
      if (!checked.ok()) Die(checked.ToString());
      server_ = Must(server::Server::Start(server));
      target = server_->grpc_target();
    }
    target_ = target;
    client_ = std::make_unique<SolverClient>(Connected(1));
    if (!client_->WaitUntilConnected(absl::Seconds(30))) Die("no server at " + target);
  }

  void Run() {
    if (!options_.router.empty()) return ThroughRouter();
    if (absl::GetFlag(FLAGS_smooth)) return AddSmoothRows(*client_, options_.quick, table_);
    if (absl::GetFlag(FLAGS_only_uploads)) return Uploads();
    SmallSolve();
    // So little to compute that the calls themselves are the cost: printed for what it is.
    ManyCallers(problems::Kalman({.states = 8, .observations = 16, .steps = 32}), false);
    ManyCallers(options_.quick ? problems::Kalman({.states = 64, .observations = 64, .steps = 20})
                               : problems::Kalman({}),
                true);
    Uploads();
  }

 private:
  SolverClient Connected(int upload_connections) {
    client::ClientOptions settings;
    settings.chunk_bytes = kUploadChunkBytes;
    settings.upload_connections = upload_connections;
    return Must(SolverClient::Connect(target_, settings));
  }

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

  void Uploads() {
    for (const int connections : {1, 4}) Upload(connections);
    client_->AwaitReleases(absl::Seconds(30));
  }

  // Beside raw TCP over as many connections.
  void Upload(int num_connections) {
    const int64_t bytes = options_.quick ? kQuickUploadBytes : absl::GetFlag(FLAGS_upload_bytes);
    const int64_t n = absl::GetFlag(FLAGS_upload_block_size);
    const SolverClient client = Connected(num_connections);
    const problems::Problem problem =
        problems::Mpc(bytes / static_cast<int64_t>(sizeof(double)) / (2 * n * n), n, 1);
    std::vector<char> from(bytes, 1), to(bytes);
    const TcpConnections sockets(num_connections);
    FactorHandle handle;
    Samples upload;
    // The upload takes the time of the call less the time that the server says it computed.
    const auto factor = [&] {
      const double start = Now();
      client::FactorResult result = Must(client.Factor(View(problem)));
      upload.seconds.push_back(Now() - start - result.cost.compute_seconds());
      handle = std::move(result.handle);
    };
    const auto release = [&] {
      const absl::Status status = handle.Release();
      if (!status.ok()) Die(status.ToString());
    };
    const std::vector<Samples> samples = Interleave(
        options_.quick ? 1 : 7, {{release, factor}, {nullptr, [&] { sockets.Copy(from, to); }}});
    upload.seconds.erase(upload.seconds.begin());  // the round that is not counted
    if (from != to) Die("the copy is not a copy");
    std::vector<double> x(problem.rows());
    Must(client.Solve(handle, problem.rhs, x));
    CheckResidual(problem, x);
    const double rate = static_cast<double>(bytes) / upload.median();
    const double limit = static_cast<double>(bytes) / samples[1].median();
    Row row;
    row.work = "Factor upload, " + std::to_string(bytes >> 20) + " MiB, without its compute";
    if (num_connections > 1) {
      row.work += ", over " + std::to_string(num_connections) + " connections";
    }
    row.ours = Format(rate / 1e9, "GB/s");
    row.reference = Format(limit / 1e9, "GB/s raw TCP");
    row.spread = upload.spread();
    table_.AddAtLeast(row, rate / limit, num_connections > 1 ? 0.8 : 0.5, "%");
  }

  const Options options_;
  Table table_;
  std::string target_;
  std::unique_ptr<server::Server> server_;
  std::unique_ptr<SolverClient> client_;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const blockd::bench::Flags flags = blockd::bench::ParseFlags(argc, argv);
  if (absl::GetFlag(FLAGS_wire)) {
    blockd::bench::WireOptions options = {.blockd = absl::GetFlag(FLAGS_blockd),
                                          .blockctl = absl::GetFlag(FLAGS_blockctl),
                                          .grpc_bench = absl::GetFlag(FLAGS_grpc_bench),
                                          .backend = absl::GetFlag(FLAGS_backend),
                                          .tcmalloc = absl::GetFlag(FLAGS_tcmalloc),
                                          .seconds = absl::GetFlag(FLAGS_seconds),
                                          .two_devices = absl::GetFlag(FLAGS_two_devices)};
    if (flags.quick) {
      options.seconds = 0.1;
      options.kalman_blocks = options.upload_blocks = 20;
      options.kalman_block_size = options.upload_block_size = 64;
    }
    PrintWireTable(flags, options);
    return 0;
  }
  blockd::bench::Bench({flags, absl::GetFlag(FLAGS_target), absl::GetFlag(FLAGS_router)}).Run();
  return 0;
}
