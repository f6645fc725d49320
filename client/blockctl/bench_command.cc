// blockctl bench
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/blockctl/command.h"
#include "client/blockctl/load/bench_text.h"
#include "client/blockctl/load/load.h"
#include "client/blockctl/text/exit_code.h"
#include "engine/problems/problems.h"

ABSL_DECLARE_FLAG(int64_t, block_size);
ABSL_FLAG(int32_t, callers, 1,
          "Callers, each with one request at a time; with --rate, the most requests in flight.");
ABSL_FLAG(bool, async, false,
          "Callers without a thread each: a caller's next Solve is sent where its last one ends "
          "(SolveAsync), with no thread to wake. For a mix of solves alone, a call each.");
ABSL_FLAG(
    int32_t, connections, 1,
    "TCP connections that the callers share evenly; with --session each caller has one more.");
ABSL_FLAG(int32_t, handles, 1, "Factorizations that the callers share evenly.");
ABSL_FLAG(double, rate, 0,
          "Arrivals a second, of all callers together: an open loop, where latency counts from the "
          "scheduled arrival. 0: a closed loop, each caller one request after another.");
ABSL_FLAG(
    std::string, mix, "solve:1",
    "Operations and their weights, as solve:90,factor:5,refactor:5. refactor_solve is both in "
    "one call.");
ABSL_FLAG(std::string, problem, "random",
          "What is factored: random, mpc, poisson or kalman (observations = 4 n).");
ABSL_FLAG(int64_t, num_blocks, 32, "N, the blocks of a system.");
ABSL_FLAG(int64_t, num_rhs, 1, "d, the right-hand sides of a Solve.");
ABSL_FLAG(absl::Duration, duration, absl::Seconds(10), "Measured time, as 30s.");
ABSL_FLAG(absl::Duration, warmup, absl::Seconds(1), "Time before it that is not counted.");
ABSL_FLAG(bool, session, false, "Solve over one SolveStream a caller in place of unary calls.");
ABSL_FLAG(
    int32_t, frames, 0,
    "Solves of one message: each call is a SolveMany, or with --session a frame, for as many "
    "of the caller's handles; a refactor_solve is a FactorSolveMany, or a frame of refactors. "
    "Solves are what is counted then. 0: a call each.");
ABSL_FLAG(bool, palette, false,
          "Send each distinct block of a matrix once. kalman and poisson have two or three.");
ABSL_FLAG(bool, shm, false,
          "Share memory with a server on this host that has --shared_memory; needs "
          "--server=unix:PATH. Each connection has a session of its own.");
ABSL_FLAG(absl::Duration, poll, blockd::client::ClientOptions().poll,
          "How long a caller looks for its answer before it sleeps, as 200us; over gRPC only while "
          "it is the only one that waits. 0: not at all. Negative: 200us, or 0 on fewer than 4 "
          "processors.");
ABSL_FLAG(
    bool, empty, false,
    "Measure empty calls, GetServerInfo and a health check, in place of a mix: the least that "
    "any call costs.");

namespace blockd::blockctl {
namespace {

enum Operation { kFactor, kSolve, kRefactor, kRefactorSolve };
constexpr std::array<std::string_view, 4> kOperations = {"factor", "solve", "refactor",
                                                         "refactor_solve"};

std::atomic<bool> interrupted{false};
void Interrupt(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // a second one ends the process
}

absl::StatusOr<std::vector<double>> ParseMix(const std::string& text) {
  std::vector<double> weights(kOperations.size());
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    const auto name = std::find(kOperations.begin(), kOperations.end(), pair[0]);
    double weight = 1;
    if (name == kOperations.end() ||
        (pair.size() > 1 && (!absl::SimpleAtod(pair[1], &weight) || !(weight >= 0)))) {
      return UsageError(absl::StrCat("--mix has \"", part,
                                     "\", expected factor, solve, refactor or refactor_solve with ",
                                     "a weight"));
    }
    weights[name - kOperations.begin()] = weight;
  }
  if (*std::max_element(weights.begin(), weights.end()) <= 0) {
    return UsageError("--mix needs a weight above 0");
  }
  return weights;
}

// The blocks of `side`, each distinct one once, and which of them stands where.
void Fold(int64_t block_scalars, std::vector<double>& blocks, std::vector<uint32_t>& index) {
  std::map<std::vector<double>, uint32_t> known;
  std::vector<double> folded;
  for (auto at = blocks.begin(); at != blocks.end(); at += block_scalars) {
    const auto [found, first] = known.try_emplace(std::vector<double>(at, at + block_scalars),
                                                  static_cast<uint32_t>(known.size()));
    if (first) folded.insert(folded.end(), at, at + block_scalars);
    index.push_back(found->second);
  }
  blocks = std::move(folded);
}

problems::Problem Folded(problems::Problem problem) {
  if (!problem.diagonal_index.empty()) return problem;
  const int64_t scalars = problem.block_size * problem.block_size;
  Fold(scalars, problem.diagonal, problem.diagonal_index);
  Fold(scalars, problem.coupling, problem.coupling_index);
  return problem;
}

client::SystemView ViewOf(const problems::Problem& problem) {
  client::SystemView view = client::MakeSystemView(
      problem.num_blocks, problem.block_size, problem.diagonal.data(), problem.coupling.data());
  if (problem.diagonal_index.empty()) return view;
  const int64_t scalars = problem.block_size * problem.block_size;
  view.num_diagonal = static_cast<int64_t>(problem.diagonal.size()) / scalars;
  view.num_coupling = static_cast<int64_t>(problem.coupling.size()) / scalars;
  view.diagonal_index = problem.diagonal_index;
  view.coupling_index = problem.coupling_index;
  return view;
}

absl::StatusOr<problems::Problem> MakeProblem() {
  const std::string name = absl::GetFlag(FLAGS_problem);
  const int64_t blocks = absl::GetFlag(FLAGS_num_blocks);
  const int64_t size = absl::GetFlag(FLAGS_block_size) > 0 ? absl::GetFlag(FLAGS_block_size) : 8;
  const double bytes =
      16.0 * static_cast<double>(blocks) * static_cast<double>(size) * static_cast<double>(size);
  if (blocks < 1 || size > 32768 || bytes > 16e9) {
    return UsageError(
        "--num_blocks and --block_size must be at least 1, and the matrix below 16 GB");
  }
  if (name == "random") return problems::RandomSpd(blocks, size, 1, 1e3);
  if (name == "mpc") return problems::Mpc(blocks, size, 1);
  if (name == "poisson") return problems::Poisson(blocks, size);
  if (name == "kalman") {
    const problems::KalmanOptions kalman{.states = size, .observations = 4 * size, .steps = blocks};
    return absl::GetFlag(FLAGS_palette) ? problems::KalmanPalette(kalman)
                                        : problems::Kalman(kalman);
  }
  return UsageError(
      absl::StrCat("--problem is \"", name, "\", expected random, mpc, poisson or kalman"));
}

absl::StatusOr<LoadOptions> LoadFromFlags() {
  if (const auto priority = PriorityFromFlag(); !priority.ok()) return priority.status();
  LoadOptions options;
  options.callers = absl::GetFlag(FLAGS_callers);
  options.rate = absl::GetFlag(FLAGS_rate);
  options.duration = absl::GetFlag(FLAGS_duration);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  if (options.callers < 1 || options.callers > 10000) {
    return UsageError("--callers must be 1 to 10000");
  }
  if (!(options.rate >= 0)) return UsageError("--rate must not be negative");
  if (options.duration <= absl::ZeroDuration() || options.warmup < absl::ZeroDuration() ||
      options.duration + options.warmup > absl::Hours(24)) {
    return UsageError("--duration must be above 0, --warmup not below, and both within a day");
  }
  if (absl::GetFlag(FLAGS_num_rhs) < 1) return UsageError("--num_rhs must be at least 1");
  if (absl::GetFlag(FLAGS_handles) < 1) return UsageError("--handles must be at least 1");
  const int32_t frames = absl::GetFlag(FLAGS_frames);
  if (frames < 0 || frames > 65536) return UsageError("--frames must be 0 to 65536");
  if (absl::GetFlag(FLAGS_poll) > absl::Seconds(1)) return UsageError("--poll must be at most 1s");
  if (absl::GetFlag(FLAGS_connections) < 1) return UsageError("--connections must be at least 1");
  if (absl::GetFlag(FLAGS_shm) && !absl::StartsWith(ServerFlag(), "unix:")) {
    return UsageError("--shm needs --server=unix:PATH, a server on this host");
  }
  if (absl::GetFlag(FLAGS_shm) && absl::GetFlag(FLAGS_empty)) {
    return UsageError("--shm is for what solves; --empty goes over gRPC");
  }
  const bool async = absl::GetFlag(FLAGS_async);
  if (async && (options.rate > 0 || frames > 0 || absl::GetFlag(FLAGS_session) ||
                absl::GetFlag(FLAGS_empty))) {
    return UsageError(
        "--async is for calls of a closed loop: not with --rate, --frames, --session "
        "or --empty");
  }
  if (absl::GetFlag(FLAGS_empty)) {
    options.weights = {1, 1};
    return options;
  }
  absl::StatusOr<std::vector<double>> weights = ParseMix(absl::GetFlag(FLAGS_mix));
  if (!weights.ok()) return weights.status();
  options.weights = *std::move(weights);
  const double all = std::accumulate(options.weights.begin(), options.weights.end(), 0.0);
  if (async && all > options.weights[kSolve]) {
    return UsageError("--async is for --mix=solve alone");
  }
  if (options.weights[kRefactorSolve] > 0 &&
      int64_t{frames} * options.callers > absl::GetFlag(FLAGS_handles)) {
    return UsageError(
        "--mix=refactor_solve with --frames needs handles for all callers: --handles of at least "
        "--frames times --callers");
  }
  return options;
}

// Bytes of shared memory for one connection: the matrix, and what its callers send and receive at
// once; twice that, since calls need some beside it.
int64_t SharedBytes(const problems::Problem& problem, bool refactors_and_solves) {
  const int64_t matrix = static_cast<int64_t>(problem.diagonal.size() + problem.coupling.size());
  const int64_t columns = problem.rows() * absl::GetFlag(FLAGS_num_rhs) * 2;
  const int64_t solves = std::max(absl::GetFlag(FLAGS_frames), 1);
  const int64_t callers = 1 + absl::GetFlag(FLAGS_callers) / absl::GetFlag(FLAGS_connections);
  const int64_t each = solves * (columns + (refactors_and_solves ? matrix : 0));
  return (int64_t{16} << 20) + 2 * static_cast<int64_t>(sizeof(double)) * (matrix + callers * each);
}

absl::StatusOr<std::vector<client::SolverClient>> Connect(const problems::Problem& problem,
                                                          bool refactors_and_solves) {
  // The first one waits as --wait says, and hears whether there is a server at all.
  const absl::StatusOr<client::SolverClient> first = ConnectFromFlags();
  if (!first.ok()) return first.status();
  if (const auto info = first->ServerInfo(); !info.ok()) return info.status();
  absl::StatusOr<client::ClientOptions> options = ClientOptionsFromFlags();
  if (!options.ok()) return options.status();
  options->share_connection = false;
  options->poll = absl::GetFlag(FLAGS_poll);
  if (absl::GetFlag(FLAGS_shm))
    options->shared_memory_bytes = SharedBytes(problem, refactors_and_solves);
  // A load generator wants to see UNAVAILABLE, not to wait it out.
  options->retry.max_attempts = 1;
  std::vector<client::SolverClient> clients;
  for (int k = 0; k < absl::GetFlag(FLAGS_connections); ++k) {
    absl::StatusOr<client::SolverClient> client =
        client::SolverClient::Connect(ServerFlag(), *options);
    if (!client.ok()) return client.status();
    if (!client->WaitUntilConnected(absl::Seconds(10))) {
      return absl::UnavailableError(absl::StrCat("no server at ", ServerFlag()));
    }
    clients.push_back(*std::move(client));
  }
  return clients;
}

// The calls that the callers make.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Make(std::vector<client::SolverClient> clients,
                                                     problems::Problem problem, int callers) {
    auto bench = std::unique_ptr<Bench>(new Bench(std::move(clients), std::move(problem), callers));
    for (int k = 0; k < absl::GetFlag(FLAGS_handles); ++k) {
      absl::StatusOr<client::FactorResult> factored =
          bench->ClientOf(k).Factor(bench->view_, {.pin = true});
      if (!factored.ok()) return factored.status();
      bench->handles_.push_back(std::move(factored->handle));
    }
    return bench;
  }

  ~Bench() {
    sessions_.clear();
    handles_.clear();
    for (const client::SolverClient& client : clients_) client.AwaitReleases(absl::Seconds(5));
  }

  LoadReport Run(const LoadOptions& options, const std::atomic<bool>& stop) {
    if (!absl::GetFlag(FLAGS_async)) {
      return RunLoad(
          options, [this](int caller, int operation) { return Call(caller, operation); }, stop);
    }
    return RunAsyncLoad(
        options,
        [this](int caller, int /*operation*/, auto done) {
          ClientOf(caller).SolveAsync(
              HandleOf(caller), rhs_, x_[caller], {.priority = priority_},
              [done = std::move(done)](const auto& result) { done(CostOf(result)); });
        },
        stop);
  }

 private:
  absl::StatusOr<v1::Cost> Call(int caller, int operation) {
    const client::Factorization& handle = HandleOf(caller);
    const client::SolverClient& client = ClientOf(caller);
    if (operation == kFactor) return CostOf(client.Factor(view_, {.priority = priority_}));
    if (operation == kRefactor) {
      return CostOf(client.Refactor(handle, view_, {.pin = true, .priority = priority_}));
    }
    if (absl::GetFlag(FLAGS_frames) > 0) return CallFrame(caller, operation == kRefactorSolve);
    if (operation == kRefactorSolve) {
      return CostOf(client.RefactorSolve(handle, view_, rhs_, x_[caller], {.priority = priority_}));
    }
    return CostOf(absl::GetFlag(FLAGS_session)
                      ? SolveInSession(caller, handle)
                      : client.Solve(handle, rhs_, x_[caller], {.priority = priority_}));
  }

  template <typename Result>
  static absl::StatusOr<v1::Cost> CostOf(const absl::StatusOr<Result>& result) {
    return result.ok() ? absl::StatusOr<v1::Cost>(result->cost) : result.status();
  }

  Bench(std::vector<client::SolverClient> clients, problems::Problem problem, int callers)
      : clients_(std::move(clients)),
        problem_(std::move(problem)),
        view_(ViewOf(problem_)),
        rhs_(problems::RandomColumns(problem_.rows(), absl::GetFlag(FLAGS_num_rhs), 2)),
        x_(callers, std::vector<double>(rhs_.size())),
        sessions_(callers),
        frames_(callers) {}

  const client::SolverClient& ClientOf(int caller) const {
    return clients_[caller % clients_.size()];
  }

  const client::FactorHandle& HandleOf(int caller) const {
    return handles_[caller % handles_.size()];
  }

  // Callers have different handles as long as there are enough.
  absl::StatusOr<v1::Cost> CallFrame(int caller, bool refactor) {
    const auto solves = static_cast<size_t>(absl::GetFlag(FLAGS_frames));
    Frame& frame = frames_[static_cast<size_t>(caller)];
    if (frame.handles.empty()) {
      for (size_t k = 0; k < solves; ++k) {
        const size_t handle = static_cast<size_t>(caller) + k * frames_.size();
        frame.handles.push_back(handles_[handle % handles_.size()]);
        frame.rhs.insert(frame.rhs.end(), rhs_.begin(), rhs_.end());
      }
      frame.num_rhs.assign(solves, absl::GetFlag(FLAGS_num_rhs));
      frame.systems.assign(solves, view_);
      frame.x.resize(frame.rhs.size());
    }
    const client::SolveOptions options{.priority = priority_};
    absl::StatusOr<client::SolveResult> result;
    if (refactor && absl::GetFlag(FLAGS_session)) {
      result = AwaitFrame(caller, SessionOf(caller).SendRefactorMany(frame.handles, frame.systems,
                                                                     frame.rhs, frame.x, options));
    } else if (refactor) {
      result = ClientOf(caller).RefactorSolveMany(frame.handles, frame.systems, frame.rhs, frame.x,
                                                  options);
    } else if (absl::GetFlag(FLAGS_session)) {
      result = AwaitFrame(caller, SessionOf(caller).SendMany(frame.handles, frame.rhs, frame.x,
                                                             options, frame.num_rhs));
    } else {
      result =
          ClientOf(caller).SolveMany(frame.handles, frame.rhs, frame.x, options, frame.num_rhs);
    }
    if (!result.ok()) return result.status();
    if (absl::Status first = result->FirstFailure(); !first.ok()) return first;
    return result->cost;
  }

  absl::StatusOr<client::SolveResult> AwaitFrame(int caller, const absl::StatusOr<uint64_t>& id) {
    if (id.ok()) return SessionOf(caller).Await(*id);
    sessions_[static_cast<size_t>(caller)].reset();
    return id.status();
  }

  client::SolveSession& SessionOf(int caller) {
    std::optional<client::SolveSession>& session = sessions_[static_cast<size_t>(caller)];
    if (!session) session.emplace(ClientOf(caller).OpenSession());
    return *session;
  }

  absl::StatusOr<client::SolveResult> SolveInSession(int caller,
                                                     const client::Factorization& handle) {
    client::SolveSession& session = SessionOf(caller);
    return AwaitFrame(caller, session.Send(handle, rhs_, x_[caller], {.priority = priority_}));
  }

  const std::vector<client::SolverClient> clients_;
  const problems::Problem problem_;
  const client::SystemView view_;
  const std::vector<double> rhs_;
  std::vector<std::vector<double>> x_;
  std::vector<std::optional<client::SolveSession>> sessions_;
  struct Frame {
    std::vector<client::Factorization> handles;
    std::vector<client::SystemView> systems;
    std::vector<int64_t> num_rhs;
    std::vector<double> rhs, x;
  };
  std::vector<Frame> frames_;  // by caller; each makes its own
  std::vector<client::FactorHandle> handles_;
  const client::Priority priority_ = *PriorityFromFlag();  // which LoadFromFlags has checked
};

absl::StatusOr<v1::Cost> CallEmpty(const client::SolverClient& client, int operation) {
  const absl::Status status = operation == 0 ? client.ServerInfo().status() : client.CheckHealth();
  return status.ok() ? absl::StatusOr<v1::Cost>(v1::Cost()) : status;
}

// A frame counts as its solves.
void CountSolves(int64_t frames, OperationReport& report) {
  report.succeeded *= frames;
  for (auto& [code, count] : report.failed) count *= frames;
}

// Fails if nothing succeeded.
absl::Status Verdict(const LoadReport& report) {
  absl::Status first;
  for (const OperationReport& operation : report.operations) {
    if (operation.succeeded > 0) return absl::OkStatus();
    if (first.ok()) first = operation.first_error;
  }
  return first;
}

absl::Status RunBench(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const absl::StatusOr<LoadOptions> options = LoadFromFlags();
  if (!options.ok()) return options.status();
  absl::StatusOr<problems::Problem> problem = MakeProblem();
  if (!problem.ok()) return problem.status();
  if (absl::GetFlag(FLAGS_palette)) problem = Folded(*std::move(problem));
  absl::StatusOr<std::vector<client::SolverClient>> clients =
      Connect(*problem, !absl::GetFlag(FLAGS_empty) && options->weights[kRefactorSolve] > 0);
  if (!clients.ok()) return clients.status();
  std::signal(SIGINT, Interrupt);

  BenchTitle title{absl::GetFlag(FLAGS_problem),
                   problem->num_blocks,
                   problem->block_size,
                   absl::GetFlag(FLAGS_num_rhs),
                   absl::GetFlag(FLAGS_connections),
                   absl::GetFlag(FLAGS_handles),
                   absl::GetFlag(FLAGS_frames),
                   {"server_info", "health"}};
  LoadReport report;
  if (absl::GetFlag(FLAGS_empty)) {
    report = RunLoad(
        *options,
        [&](int caller, int operation) {
          return CallEmpty((*clients)[caller % clients->size()], operation);
        },
        interrupted);
  } else {
    title.operations.assign(kOperations.begin(), kOperations.end());
    const absl::StatusOr<std::unique_ptr<Bench>> bench =
        Bench::Make(*std::move(clients), *std::move(problem), options->callers);
    if (!bench.ok()) return bench.status();
    report = (*bench)->Run(*options, interrupted);
    for (const Operation of : {kSolve, kRefactorSolve}) {
      if (title.frames > 0) CountSolves(title.frames, report.operations[of]);
    }
  }
  if (interrupted) Note("interrupted: what follows covers the time until then");
  Print(JsonAsked() ? BenchJson(title, *options, report) : BenchTable(title, *options, report));
  return Verdict(report);
}

}  // namespace

Command BenchCommand() {
  return {
      "bench",
      "",
      "Generate load and print throughput and latencies",
      "Closed loop: --callers one request after another each. Open loop: --rate arrivals a\n"
      "second whatever the server does. Ends after --warmup and --duration; Ctrl-C ends it\n"
      "early and prints what there is. Requests that fail are counted, not retried.\n"
      "  blockctl bench --callers=64 --duration=30s\n"
      "  blockctl bench --callers=64 --connections=16 --async\n"
      "  blockctl bench --callers=16 --handles=4096 --frames=256 --session\n"
      "  blockctl bench --callers=64 --handles=64 --mix=refactor_solve --problem=kalman --palette\n"
      "  blockctl bench --callers=4 --handles=256 --frames=64 --session --mix=refactor_solve\n"
      "  blockctl --server=unix:PATH bench --shm --callers=16 --connections=16\n"
      "  blockctl bench --rate=2000 --callers=256 --mix=solve:95,refactor:5\n",
      {"callers", "connections", "handles",    "rate",     "mix",
       "problem", "num_blocks",  "block_size", "num_rhs",  "frames",
       "palette", "duration",    "warmup",     "session",  "async",
       "shm",     "poll",        "empty",      "priority", "upload_connections"},
      RunBench};
}

}  // namespace blockd::blockctl
