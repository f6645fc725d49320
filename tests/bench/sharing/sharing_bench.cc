// The effect of those who share a server on each other: a small Solve alone, and beside everything
// that others may do. Servers are processes of their own, and so are the others, on a quarter of
// the processors or, where there are fewer than four, 19 nicer: the line above the table says
// which.
//
//   sharing_bench --blockd=PROGRAM [--backend=NAME] [--device_memory=SIZE] [--seconds=S]
//     [--rounds=R] [--load_blocks=N --load_block_size=n] [--only=WORDS] [--calls=FILE]
//     [--json=FILE --commit=NAME] [--quick]
//
// Each row is measured in turn with its reference, so many rounds of so many seconds; both, and
// their ratio, are medians of the rounds. Every answer is compared with the first one: exit code 1
// if a bit differs.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/blockctl/text/metrics_page.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/sharing/sharing_caller.h"
#include "tests/bench/sharing/sharing_deadlines.h"
#include "tests/bench/sharing/sharing_load.h"
#include "tests/support/server_process.h"

ABSL_FLAG(std::string, blockd, "", "The server's program.");
ABSL_FLAG(std::string, backend, "auto", "The server's --backend.");
ABSL_FLAG(std::string, device_memory, "4GiB", "The server's --device_memory.");
ABSL_FLAG(double, seconds, 2, "Of each measurement.");
ABSL_FLAG(int32_t, rounds, 9, "Of each row.");
ABSL_FLAG(int32_t, gap_us, 1000, "Between an answer and the next small Solve.");
ABSL_FLAG(std::string, only, "", "Only rows whose text contains this.");
ABSL_FLAG(std::string, calls, "", "Append each request with a deadline to this file (CSV).");
ABSL_FLAG(int64_t, load_blocks, 128, "N of the Factors beside which is measured.");
ABSL_FLAG(int64_t, load_block_size, 512, "n of these.");
ABSL_FLAG(int64_t, load_rhs, 1, "For --load.");
ABSL_FLAG(std::string, load, "", "This program's own: be a load on the server at --port.");
ABSL_FLAG(int32_t, port, 0, "For --load.");

namespace blockd::bench {
namespace {

using test::ServerProcess;

constexpr char kTenants[] = R"(
tenant { name: "victim" identity { metadata: "victim" } highest_class: REALTIME }
tenant { name: "limited" identity { metadata: "limited" } quotas { requests_per_second: 100 } }
)";

class Bench {
 public:
  explicit Bench(const Flags& flags)
      : quick_(flags.quick),
        seconds_(quick_ ? 0.1 : absl::GetFlag(FLAGS_seconds)),
        rounds_(quick_ ? 1 : absl::GetFlag(FLAGS_rounds)),
        gap_(absl::Microseconds(absl::GetFlag(FLAGS_gap_us))),
        factors_{.num_blocks = quick_ ? 8 : absl::GetFlag(FLAGS_load_blocks),
                 .block_size = quick_ ? 32 : absl::GetFlag(FLAGS_load_block_size)},
        table_(flags) {}

  void Run() {
    Factors(kFactors, "");
    if (factors_.num_blocks * factors_.block_size * factors_.block_size <= 1 << 26) {
      Factors(kFullFactors, ", every block sent");
    }
    ManyCallers({64, 16, 1}, /*goal=*/3);
    ManyCallers(quick_ ? LoadSize{16, 16, 2} : LoadSize{256, 64, 16}, /*goal=*/0);
    for (const LoadKind& kind : QuotaAttacks()) Attack(kind, 1.2);
    for (const LoadKind& kind : WireAttacks()) Attack(kind, 2);
    MeetDeadlines();
    ManyHandles();
    UnreadLog();
  }

 private:
  static bool Wanted(const std::string& work) {
    return absl::StrContains(work, absl::GetFlag(FLAGS_only));
  }
  std::unique_ptr<ServerProcess> Serve(std::vector<std::string> flags = {},
                                       ServerProcess::Log log = ServerProcess::Log::kNone) const {
    std::vector<std::string> all = {"--backend=" + absl::GetFlag(FLAGS_backend),
                                    "--device_memory=" + absl::GetFlag(FLAGS_device_memory)};
    if (log == ServerProcess::Log::kNone) all.push_back("--log_level=error");
    if (quick_) all.push_back("--max_handles=20000");
    all.insert(all.end(), flags.begin(), flags.end());
    return std::make_unique<ServerProcess>(absl::GetFlag(FLAGS_blockd), all, log, kTenants);
  }

  // A quantile and the median of each round.
  struct Pair {
    Samples beside, alone, beside_p50, alone_p50;
    int64_t failures = 0;
    int64_t growth_bytes = 0;  // of the loaded server's memory, over what it has without a load
    double ratio() const {     // the median of the rounds'
      Samples ratios;
      for (size_t i = 0; i < beside.seconds.size(); ++i) {
        ratios.seconds.push_back(beside.seconds[i] / alone.seconds[i]);
      }
      return ratios.median();
    }
  };
  using Measure = Samples (SmallCaller::*)(double);

  // A quiet server and one with the load, in turn.
  Pair Beside(Measure measure, double quantile, const std::string& load, const LoadSize& size,
              double seconds) {
    const auto quiet = Serve(), loaded = Serve();
    SmallCaller alone(quiet->target(), gap_), beside(loaded->target(), gap_);
    (alone.*measure)(seconds / 4);
    (beside.*measure)(seconds / 4);
    const int64_t resident = loaded->ResidentBytes();
    Pair pair;
    for (int round = 0; round < rounds_; ++round) {
      const Samples undisturbed = (alone.*measure)(seconds);
      Load others(load, loaded->port(), size);
      const Samples disturbed = (beside.*measure)(seconds);
      pair.growth_bytes = std::max(pair.growth_bytes, loaded->ResidentBytes() - resident);
      const std::string said = others.Stop();
      pair.alone.seconds.push_back(undisturbed.quantile(quantile));
      pair.alone_p50.seconds.push_back(undisturbed.median());
      pair.beside.seconds.push_back(disturbed.quantile(quantile));
      pair.beside_p50.seconds.push_back(disturbed.median());
      std::fprintf(stderr, "%s: %s; %s, alone %s\n", load.c_str(), said.c_str(),
                   FormatSeconds(pair.beside.seconds.back()).c_str(),
                   FormatSeconds(pair.alone.seconds.back()).c_str());
    }
    pair.failures = beside.failures();
    return pair;
  }
  static Row RowOf(const std::string& work, const Pair& pair) {
    Row row;
    row.work = work;
    if (pair.failures > 0) absl::StrAppend(&row.work, "; ", pair.failures, " calls failed");
    row.ours = FormatSeconds(pair.beside.median());
    row.reference = FormatSeconds(pair.alone.median()) + " alone";
    row.ratio = pair.ratio();
    row.spread = pair.beside.spread();
    return row;
  }

  void Factors(const std::string& load, const std::string& how) {
    for (const bool session : {true, false}) {
      const std::string work = absl::StrCat("p99 of a small Solve", session ? " of a session" : "",
                                            " beside Factors of N=", factors_.num_blocks,
                                            " n=", factors_.block_size, how);
      if (!Wanted(work)) continue;
      const Pair pair = Beside(session ? &SmallCaller::Session : &SmallCaller::Unary, 0.99, load,
                               factors_, 2 * seconds_);
      Row row = RowOf(work, pair);
      if (OnCpu()) {
        row.goal = "<= alone + 5 ms";
        row.reached = pair.beside.median() <= pair.alone.median() + 5e-3;
        table_.Add(row);
      } else {
        table_.AddAtMost(row, row.ratio, 2);
      }
    }
  }

  void ManyCallers(const LoadSize& size, double goal) {
    const std::string work =
        absl::StrCat("p50 of a small Solve beside another tenant's 64 callers, N=", size.num_blocks,
                     " n=", size.block_size, " d=", size.num_rhs);
    if (!Wanted(work)) return;
    const Row row = RowOf(work, Beside(&SmallCaller::Unary, 0.5, kSolves, size, seconds_));
    if (goal > 0) {
      table_.AddAtMost(row, row.ratio, goal);
    } else {
      table_.Add(row);
    }
  }

  void Attack(const LoadKind& kind, double goal) {
    const std::string work = "p99 of a small Solve beside " + kind.what;
    if (!Wanted(work)) return;
    const Pair pair = Beside(&SmallCaller::Unary, 0.99, kind.name, {}, seconds_);
    Row row = RowOf(work, pair);
    row.ours =
        absl::StrCat(row.ours, ", p50 ", FormatSeconds(pair.beside_p50.median()), ", ",
                     Format(static_cast<double>(pair.growth_bytes) / (1 << 20), "MiB"), " more");
    absl::StrAppend(&row.reference, ", p50 ", FormatSeconds(pair.alone_p50.median()));
    row.goal = "<= " + Format(goal, "x") + ", none fails";
    row.reached = row.ratio <= goal && pair.failures == 0;
    table_.Add(row);
  }

  // One request a batch: only the order differs.
  void MeetDeadlines() {
    const std::string at80 = "deadlines missed at 80% load, deadlines of 2 to 200 ms";
    const std::string loaded = "deadlines missed where the order of arrival misses 5 to 20%";
    if (!Wanted(at80) && !Wanted(loaded)) return;
    const auto server = Serve({"--max_batch_requests=1"});
    DeadlineCaller caller(server->target());
    const double capacity = caller.Capacity(seconds_);
    const auto measure = [&](double load, int round) {
      return MeasureDeadlines(caller, load * capacity, 2 * seconds_, round % 2 == 1, round,
                              absl::GetFlag(FLAGS_calls));
    };
    if (Wanted(at80)) {
      std::vector<DeadlineParts> pairs;
      for (int round = 0; round < rounds_; ++round) pairs.push_back(measure(0.8, round));
      AddDeadlines(at80, pairs);
    }
    if (!Wanted(loaded)) return;
    // The load follows what the machine does at the moment: a pair with another part does not
    // count.
    std::vector<DeadlineParts> pairs;
    double load = 0.9;
    for (int i = 0; i < 8 * rounds_ && std::ssize(pairs) < rounds_; ++i) {
      const DeadlineParts pair = measure(load, i);
      if (pair.by_arrival < 0.05) {
        load *= pair.by_arrival < 0.02 ? 1.06 : 1.02;
      } else if (pair.by_arrival > 0.2) {
        load *= pair.by_arrival > 0.6 ? 0.85 : pair.by_arrival > 0.4 ? 0.94 : 0.98;
      } else {
        pairs.push_back(pair);
      }
    }
    if (std::ssize(pairs) == rounds_) {
      AddDeadlines(absl::StrCat(loaded, ", ", Format(100 * load, "%"), " load"), pairs);
    } else if (!quick_) {
      Die("no load makes the order of arrival miss 5 to 20%");
    }
  }

  void AddDeadlines(const std::string& work, const std::vector<DeadlineParts>& pairs) {
    const auto median = [&pairs](double DeadlineParts::*part) {
      Samples samples;
      for (const DeadlineParts& pair : pairs) samples.seconds.push_back(pair.*part);
      return samples;
    };
    const auto percent = [&](double DeadlineParts::*part) {
      return Format(100 * median(part).median(), "%");
    };
    const Samples told = median(&DeadlineParts::told);
    const double by_arrival = median(&DeadlineParts::by_arrival).median();
    const double best = median(&DeadlineParts::best).median();
    Row row;
    row.work = work;
    row.ours = absl::StrCat(percent(&DeadlineParts::told), ": ", percent(&DeadlineParts::refused),
                            " refused, ", percent(&DeadlineParts::late), " late");
    row.reference = absl::StrCat(percent(&DeadlineParts::by_arrival), " in the order of arrival, ",
                                 percent(&DeadlineParts::best), " in the best order, simulated");
    row.spread = told.spread();
    if (by_arrival < 0.01) return table_.Add(row);  // what the machine does, in any order
    table_.AddAtMost(row, told.median() / by_arrival, std::max(1.0 / 3, 1.2 * best / by_arrival));
  }

  void ManyHandles() {
    const std::string scrape = "a scrape of /metrics with 100000 handles, p50";
    const std::string info = "GetServerInfo with 100000 handles, p50";
    if (!Wanted(scrape) && !Wanted(info)) return;
    const auto empty = Serve(), full = Serve();
    const client::SolverClient to_empty = Must(client::SolverClient::Connect(empty->target()));
    const client::SolverClient to_full = Must(client::SolverClient::Connect(full->target()));
    const double two = 2;
    const client::SystemView system = client::MakeSystemView(1, 1, &two, &two);
    const std::vector<client::SystemView> systems(quick_ ? 100 : 4000, system);
    std::vector<client::FactorBatchResult> held;
    for (int i = 0; i < 25; ++i) held.push_back(Must(to_full.FactorBatch(systems)));
    const auto ask = [](const ServerProcess& server) {
      return [&server] { Must(blockctl::FetchMetrics(server.metrics_target())); };
    };
    std::vector<Samples> samples =
        Interleave(quick_ ? 3 : 200, {{nullptr, ask(*full)},
                                      {nullptr, ask(*empty)},
                                      {nullptr, [&] { Must(to_full.ServerInfo()); }},
                                      {nullptr, [&] { Must(to_empty.ServerInfo()); }}});
    for (const size_t i : {0, 2}) {
      Row row;
      row.work = i == 0 ? scrape : info;
      row.ours = FormatSeconds(samples[i].median());
      row.reference = FormatSeconds(samples[i + 1].median()) + " with none";
      row.ratio = samples[i].median() / samples[i + 1].median();
      row.goal = "< 1 ms";
      row.reached = samples[i].median() < 1e-3;
      row.spread = samples[i].spread();
      table_.Add(row);
    }
    // Releasing them one by one would take longer than all else.
    for (auto& batch : held) {
      for (auto& one : batch.systems) one.handle.Detach();
    }
  }

  void UnreadLog() {
    const std::string work = "p99 of a small Solve while nobody reads the log";
    if (!Wanted(work)) return;
    const std::vector<std::string> flags = {"--log_requests_per_second=1000000"};
    const auto read = Serve(flags, ServerProcess::Log::kDrained);
    const auto unread = Serve(flags, ServerProcess::Log::kUnread);
    SmallCaller alone(read->target(), gap_), beside(unread->target(), gap_);
    {  // until the pipe and the server's own buffer are full
      SmallCaller busy(unread->target(), absl::ZeroDuration());
      busy.Unary(quick_ ? 0.1 : 5);
    }
    Pair pair;
    for (int round = 0; round < rounds_; ++round) {
      pair.alone.seconds.push_back(alone.Unary(seconds_).quantile(0.99));
      pair.beside.seconds.push_back(beside.Unary(seconds_).quantile(0.99));
    }
    Row row = RowOf(work, pair);
    row.reference = FormatSeconds(pair.alone.median()) + " while it is read";
    const auto metrics = test::ParseMetrics(Must(blockctl::FetchMetrics(unread->metrics_target())));
    const auto dropped = metrics.find("blockd_log_lines_dropped_total");
    if (!quick_ && (dropped == metrics.end() || dropped->second == 0)) Die("the log was not full");
    table_.AddAtMost(row, row.ratio, 1.2);
  }

  bool OnCpu() {
    if (backend_.empty()) {
      const auto server = Serve();
      backend_ = Must(Must(client::SolverClient::Connect(server->target())).ServerInfo()).backend();
    }
    return backend_ == "cpu";
  }

  const bool quick_;
  const double seconds_;
  const int rounds_;
  const absl::Duration gap_;
  const LoadSize factors_;
  std::string backend_;
  Table table_;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  blockd::bench::Flags flags = blockd::bench::ParseFlags(argc, argv);
  if (const std::string load = absl::GetFlag(FLAGS_load); !load.empty()) {
    const bool known = blockd::bench::RunLoad(
        load, absl::GetFlag(FLAGS_port),
        {absl::GetFlag(FLAGS_load_blocks), absl::GetFlag(FLAGS_load_block_size),
         absl::GetFlag(FLAGS_load_rhs)});
    return known ? 0 : 2;
  }
  if (absl::GetFlag(FLAGS_blockd).empty()) blockd::bench::Die("--blockd names no program");
  if (flags.hardware.empty()) flags.hardware = blockd::bench::DescribeMachine();
  const int of_loads = blockd::bench::LeaveProcessorsToLoads();
  const std::string loads = of_loads > 0
                                ? absl::StrCat("loads on ", of_loads, " processors of their own")
                                : "loads on the same processors, 19 nicer";
  absl::StrAppend(&flags.hardware, ", ", loads);
  if (flags.header) std::printf("%s\n\n", flags.hardware.c_str());
  blockd::bench::Bench(flags).Run();
  return 0;
}
