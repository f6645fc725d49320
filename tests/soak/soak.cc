// Many requests of four tenants on one server, with everything that goes wrong on the way; see
// README.md beside this file.
//
//   soak --blockd=PROGRAM [--requests=N] [--rss_percent=P]
//
// Exit code 1 where an answer was wrong, where something did not return to its start, or where the
// server's memory grew.
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/blockctl/text/metrics_page.h"
#include "tests/soak/faults.h"
#include "tests/soak/strangers.h"
#include "tests/soak/tally.h"
#include "tests/soak/tenant.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

ABSL_FLAG(std::string, blockd, "", "The server's program.");
ABSL_FLAG(int64_t, requests, 1'000'000, "How many, at least.");
ABSL_FLAG(double, rss_percent, 2,
          "By how much the server's resident memory may be above that after the first tenth.");
ABSL_FLAG(std::string, client, "", "This program's own: be a client that is killed.");
ABSL_FLAG(int32_t, port, 0, "For --client.");

namespace blockd::soak {
namespace {

constexpr int kParts = 10;
constexpr int kCallersOfEach = 2;

// The server's gauges but for those that only rise. In every part of the soak they return to what
// they were before the first request.
std::map<std::string, double> Gauges(const test::ServerProcess& server) {
  const auto page = blockctl::FetchMetrics(server.metrics_target());
  if (!page.ok()) {
    std::fprintf(stderr, "%s\n", page.status().ToString().c_str());
    std::exit(1);
  }
  std::map<std::string, double> gauges = test::ParseMetrics(*page);
  for (auto each = gauges.begin(); each != gauges.end();) {
    const std::string name = each->first.substr(0, each->first.find('{'));
    const bool is_gauge = absl::StrContains(*page, absl::StrCat("# TYPE ", name, " gauge\n"));
    each = is_gauge && !absl::StrContains(name, "peak") ? std::next(each) : gauges.erase(each);
  }
  gauges["descriptors"] = static_cast<double>(server.OpenDescriptors());
  return gauges;
}

class Soak {
 public:
  Soak()
      : server_(absl::GetFlag(FLAGS_blockd),
                {"--backend=cpu", "--device_memory=20MiB", "--reply_timeout=1s",
                 "--stream_idle_timeout=1s", "--tombstones=2000", "--server_name=soak",
                 "--stream_chunk_bytes=8KiB"},
                test::ServerProcess::Log::kDrained, TenantsFile()),
        start_(Gauges(server_)) {}

  bool Run() {
    std::printf(
        "| requests | resident MiB | descriptors | returned |\n| --- | --- | --- | --- |\n");
    Caller(Tenants()[0], server_.port(), 0, &tally_).FillPool();
    Say(true);
    bool good = true;
    int64_t after_first = 0;
    for (int part = 0; part < kParts; ++part) {
      RunPart(part);
      const bool returned = test::Eventually([this] { return Differences().empty(); });
      good &= returned;
      // The server gives back what its allocator keeps once nobody has asked for 5 s.
      absl::SleepFor(absl::Seconds(8));
      Say(returned);
      if (part == 0) after_first = server_.ResidentBytes();
    }
    const double growth =
        100 * (static_cast<double>(server_.ResidentBytes()) / static_cast<double>(after_first) - 1);
    const bool grew = growth > absl::GetFlag(FLAGS_rss_percent);
    const int status = server_.Stop();
    std::printf(
        "\n%s\n%ld requests, %ld wrong; %ld clients killed; resident memory %+.1f%%; exit "
        "status %d\n",
        tally_.Table().c_str(), static_cast<long>(tally_.requests()),
        static_cast<long>(tally_.wrong()), static_cast<long>(killed_), growth, status);
    return good && !grew && tally_.wrong() == 0 && status == 0;
  }

 private:
  // A tenth of the requests. Every client is gone at its end.
  void RunPart(int part) {
    Faults faults(server_.port(), &tally_);
    Strangers strangers(server_.port(), &tally_);
    std::vector<std::unique_ptr<Caller>> callers;
    uint64_t seed = static_cast<uint64_t>(part) * 100;
    for (const Tenant& tenant : Tenants()) {
      for (int i = 0; i < kCallersOfEach; ++i) {
        callers.push_back(std::make_unique<Caller>(tenant, server_.port(), ++seed, &tally_));
      }
    }
    const auto each = static_cast<int64_t>(callers.size());
    const int64_t share = (absl::GetFlag(FLAGS_requests) + kParts * each - 1) / (kParts * each);
    // First a few, so that each has a handle that it can hand to another.
    callers[0]->Run(std::min<int64_t>(share, 50));
    for (size_t i = kCallersOfEach; i < callers.size(); ++i) {
      callers[i]->set_foreign_handle(callers[0]->any_handle());
    }
    std::vector<std::thread> threads;
    for (const auto& caller : callers) {
      threads.emplace_back([&caller, share] { caller->Run(share); });
    }
    for (std::thread& thread : threads) thread.join();
    faults.Stop();
    strangers.Stop();
    killed_ += faults.killed();
    for (const auto& caller : callers) caller->ReleaseAll();
  }

  // The gauges that are not as they were at the start.
  std::string Differences() const {
    std::string all;
    const std::map<std::string, double> now = Gauges(server_);
    for (const auto& [name, value] : start_) {
      const auto found = now.find(name);
      const double other = found == now.end() ? std::nan("") : found->second;
      if (other != value) absl::StrAppend(&all, " ", name, " ", value, " -> ", other);
    }
    return all;
  }

  void Say(bool returned) const {
    std::printf("| %ld | %.1f | %ld | %s |\n", static_cast<long>(tally_.requests()),
                static_cast<double>(server_.ResidentBytes()) / (1 << 20),
                static_cast<long>(server_.OpenDescriptors()),
                returned ? "yes" : Differences().c_str());
    std::fflush(stdout);
  }

  test::ServerProcess server_;
  const std::map<std::string, double> start_;
  Tally tally_;
  int64_t killed_ = 0;
};

}  // namespace
}  // namespace blockd::soak

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_client).empty()) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // with whoever would have killed it
    blockd::soak::BeClient(absl::GetFlag(FLAGS_client), absl::GetFlag(FLAGS_port));
  }
  if (absl::GetFlag(FLAGS_blockd).empty()) {
    std::fprintf(stderr, "soak: --blockd names no program\n");
    return 2;
  }
  return blockd::soak::Soak().Run() ? 0 : 1;
}
