#include "tests/router/load.h"

#include <cmath>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/problems/problems.h"

namespace blockd::test {
namespace {

enum class Way { kUnary, kSession, kAsynchronous };

Way WayOf(int caller) {
  if (caller % 4 == 1) return Way::kSession;
  return caller % 4 == 3 ? Way::kAsynchronous : Way::kUnary;
}

class Caller {
 public:
  Caller(const client::SolverClient& client, int caller)
      : client_(client),
        way_(WayOf(caller)),
        problem_(problems::RandomSpd(8, 4, caller + 1, 10)),
        random_(caller),
        session_(client.OpenSession()),
        known_(problem_.rows()),
        x_(problem_.rows()) {}

  absl::Status Factor() {
    auto factored =
        client_.Factor(client::MakeSystemView(problem_.num_blocks, problem_.block_size,
                                              problem_.diagonal.data(), problem_.coupling.data()),
                       {.restore = {.keep_copy = true}});
    if (factored.ok()) handle_ = std::move(factored->handle);
    return factored.status();
  }

  // An error too where the answer is not the solution.
  absl::Status Solve() {
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (double& value : known_) value = uniform(random_);
    const std::vector<double> rhs = problems::Multiply(problem_, known_, 1);
    std::fill(x_.begin(), x_.end(), 0);
    if (absl::Status status = Ask(rhs); !status.ok()) return status;
    double error = 0;
    for (size_t i = 0; i < x_.size(); ++i) error = std::max(error, std::fabs(x_[i] - known_[i]));
    if (error < 1e-10) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("a solution that is off by ", error));
  }

 private:
  absl::Status Ask(const std::vector<double>& rhs) {
    if (way_ == Way::kUnary) return client_.Solve(handle_, rhs, x_).status();
    if (way_ == Way::kSession) {
      const auto id = session_.Send(handle_, rhs, x_);
      return id.ok() ? session_.Await(*id).status() : id.status();
    }
    absl::Notification done;
    absl::Status status;
    client_.SolveAsync(handle_, rhs, x_, {}, [&](absl::StatusOr<client::SolveResult> result) {
      status = result.status();
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  const client::SolverClient& client_;
  const Way way_;
  const problems::Problem problem_;
  std::mt19937_64 random_;
  client::FactorHandle handle_;
  client::SolveSession session_;
  std::vector<double> known_, x_;
};

}  // namespace

Load::Load(client::SolverClient client, int callers, double rate)
    : client_(std::move(client)), pause_(absl::Seconds(callers / rate)) {
  for (int caller = 0; caller < callers; ++caller) {
    threads_.emplace_back([this, caller] { Run(caller); });
  }
}

Load::~Load() { Stop(); }

void Load::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Load::Run(int caller) {
  Caller solver(client_, caller);
  absl::Time next = absl::Now();
  if (absl::Status status = solver.Factor(); !status.ok()) return Fail(next, status.ToString());
  while (!stop_) {
    const absl::Time began = absl::Now();
    if (absl::Status status = solver.Solve(); status.ok()) {
      ++solved_;
    } else {
      Fail(began, status.ToString());
    }
    // Who falls behind does not catch up: that would be another load.
    next = std::max(next + pause_, absl::Now() - pause_);
    absl::SleepFor(next - absl::Now());
  }
}

void Load::Fail(absl::Time began, const std::string& what) {
  absl::MutexLock lock(&mutex_);
  failures_.push_back({began, what});
}

std::vector<Load::Failure> Load::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

client::RestoreCounters Load::restores() const { return client_.restore_counters(); }

}  // namespace blockd::test
