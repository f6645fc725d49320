#include "server/core/operations/smooth.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/core/operations/sums.h"
#include "server/core/smoother/missing_patterns.h"
#include "server/core/smoother/smoother.h"
#include "server/core/solver_core.h"

namespace blockd::server {
namespace {

// What is evicted between two steps of a chain is factored again.
constexpr int kMostAttempts = 3;

template <typename T>
std::span<T> Part(std::span<T> all, int64_t first, int64_t count) {
  return all.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

// A is not positive definite: something of the states is known neither before nor from y.
absl::Status NotIdentified(size_t system, const NotPositiveDefinite& where) {
  const absl::Status plain = NotSpdError(static_cast<int64_t>(system), where);
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(plain.message(),
                   "; the observations do not tell what the states are: give m and P, or observe "
                   "more"));
  plain.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

class SmoothRun final : public PendingSmooth, public std::enable_shared_from_this<SmoothRun> {
 public:
  SmoothRun(SolverCore* core, ContextPtr context, Permit permit, std::unique_ptr<Smoother> smoother,
            const SmoothResults& results, SmoothDone done)
      : core_(core),
        context_(std::move(context)),
        permit_(std::move(permit)),
        smoother_(std::move(smoother)),
        params_(smoother_->params()),
        results_(results),
        done_(std::move(done)),
        systems_(smoother_->systems()),
        running_(smoother_->systems()) {
    for (int64_t k = 0; k < params_.num_series; ++k) {
      systems_[smoother_->patterns().system_of_series[k]].series.push_back(k);
    }
    if (params_.keep) model_fingerprint_ = smoother_->ModelFingerprint();
    context_->part_of = &permit_;
  }

  void Start() {
    // Here, for the threads that answer steps feed the device.
    for (size_t s = 0; s < systems_.size(); ++s) WriteRightHandSides(s);
    for (size_t s = 0; s < systems_.size(); ++s) Factor(s);
  }

  SmoothReply Finish() override;

 private:
  struct System {
    std::vector<int64_t> series;
    SystemMatrix matrix;  // while it is factored
    Handle handle;
    bool held = false;  // the handle is this run's, to be given back or kept
    bool found = false;
    double log_determinant = 0;
    std::vector<double> blocks;  // of the inverse, where they are no result
    size_t sampled = 0;          // series
    int attempts = 0;
  };

  int64_t BlockScalars() const { return params_.state_size * params_.state_size; }
  int64_t SeriesScalars() const { return params_.state_size * params_.num_steps; }
  bool needs_blocks() const { return params_.residuals || params_.lag_one; }

  std::span<double> MeansOf(int64_t series) const {
    return Part(results_.means, series * SeriesScalars(), SeriesScalars());
  }
  // Where the means will be.
  void WriteRightHandSides(size_t s) {
    for (const int64_t k : systems_[s].series) smoother_->RightHandSide(k, MeansOf(k).data());
  }
  void Factor(size_t s);
  void OnFactored(size_t s, absl::StatusOr<FactorReply> reply);
  void Solve(size_t s);
  void OnSolved(size_t s, absl::StatusOr<SolveManyReply> reply);
  void Invert(size_t s);
  void Sample(size_t s);
  void OnStep(size_t s, const absl::StatusOr<CostReply>& reply, void (SmoothRun::*next)(size_t));
  // A step failed: tries again where the handle was lost, or ends the chain.
  void Fail(size_t s, const absl::Status& status);
  void End(size_t s, const absl::Status& status);
  void AddCost(const Cost& cost);
  bool failed() {
    absl::MutexLock lock(&mutex_);
    return !status_.ok();
  }

  SolverCore* const core_;
  const ContextPtr context_;
  Permit permit_;  // its parts take none of their own but places
  const std::unique_ptr<Smoother> smoother_;
  const SmoothParams& params_;
  const SmoothResults results_;
  SmoothDone done_;
  std::string model_fingerprint_;  // with keep
  std::vector<System> systems_;    // each used by its chain alone
  std::atomic<size_t> running_;

  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first failure
  Cost cost_ ABSL_GUARDED_BY(mutex_);
  double growth_ ABSL_GUARDED_BY(mutex_) = 1;
  double backward_error_bound_ ABSL_GUARDED_BY(mutex_) = 0;
};

void SmoothRun::Factor(size_t s) {
  System& system = systems_[s];
  ++system.attempts;
  system.matrix = smoother_->Assemble(s);
  FactorParams params;
  params.form = system.matrix.form;
  params.num_systems = 1;
  params.log_determinant = params_.log_likelihood;
  if (params_.keep) {
    params.idempotency_key = absl::StrCat("smooth/", smoother_->Fingerprint(model_fingerprint_, s));
    params.lease = params_.lease;
  }
  core_->Factor(context_, params, {system.matrix.view()},
                [self = shared_from_this(), s](absl::StatusOr<FactorReply> reply) {
                  self->OnFactored(s, std::move(reply));
                });
}

void SmoothRun::OnFactored(size_t s, absl::StatusOr<FactorReply> reply) {
  System& system = systems_[s];
  system.matrix = {};
  const absl::Status status = reply.ok() ? reply->systems[0].status : reply.status();
  if (!status.ok()) {
    const auto failure = NotSpdOf(status);
    return End(s, failure ? NotIdentified(s, failure->where) : status);
  }
  const FactoredSystem& factored = reply->systems[0];
  AddCost(reply->cost);
  system.handle = factored.handle;
  system.held = true;
  system.found = reply->found;
  system.log_determinant = factored.log_determinant.value_or(0);
  {
    absl::MutexLock lock(&mutex_);
    growth_ = std::max(growth_, factored.conditioning.growth);
    backward_error_bound_ = std::max(backward_error_bound_, factored.backward_error_bound);
  }
  Solve(s);
}

void SmoothRun::Solve(size_t s) {
  const System& system = systems_[s];
  SolveManyParams params;
  for (const int64_t k : system.series) {
    const std::span<double> means = MeansOf(k);
    params.handles.push_back(system.handle);
    params.solves.push_back({1, std::as_bytes(means), std::as_writable_bytes(means)});
  }
  core_->SolveMany(context_, std::move(params),
                   [self = shared_from_this(), s](absl::StatusOr<SolveManyReply> reply) {
                     self->OnSolved(s, std::move(reply));
                   });
}

void SmoothRun::OnSolved(size_t s, absl::StatusOr<SolveManyReply> reply) {
  if (!reply.ok()) return Fail(s, reply.status());
  AddCost(reply->cost);
  for (const SolveOutcome& outcome : reply->outcomes) {
    if (!outcome.status.ok()) return Fail(s, outcome.status);
    absl::MutexLock lock(&mutex_);
    backward_error_bound_ = std::max(backward_error_bound_, outcome.backward_error_bound);
  }
  Invert(s);
}

void SmoothRun::Invert(size_t s) {
  System& system = systems_[s];
  if (params_.covariances == SmoothedCovariances::kNone && !needs_blocks()) return Sample(s);
  const auto place = static_cast<int64_t>(s);
  const int64_t steps = params_.num_steps;
  SelectedInverseParams params;
  params.handle = system.handle;
  std::span<double> diagonal;
  if (params_.covariances == SmoothedCovariances::kFull) {
    diagonal = Part(results_.covariances, place * steps * BlockScalars(), steps * BlockScalars());
  } else if (needs_blocks()) {
    system.blocks.resize(static_cast<size_t>(steps * BlockScalars()));
    diagonal = system.blocks;
  } else {
    params.parts = InverseParts::kDiagonalEntries;
    diagonal = Part(results_.covariances, place * SeriesScalars(), SeriesScalars());
  }
  params.diagonal = std::as_writable_bytes(diagonal);
  if (params_.lag_one) {
    params.parts = InverseParts::kWithCouplings;
    params.coupling = std::as_writable_bytes(
        Part(results_.lag_one, place * (steps - 1) * BlockScalars(), (steps - 1) * BlockScalars()));
  }
  core_->SelectedInverse(context_, params,
                         [self = shared_from_this(), s](const absl::StatusOr<CostReply>& reply) {
                           self->OnStep(s, reply, &SmoothRun::Sample);
                         });
}

void SmoothRun::OnStep(size_t s, const absl::StatusOr<CostReply>& reply,
                       void (SmoothRun::*next)(size_t)) {
  if (!reply.ok()) return Fail(s, reply.status());
  AddCost(reply->cost);
  (this->*next)(s);
}

// Series that follow one another are drawn together.
void SmoothRun::Sample(size_t s) {
  System& system = systems_[s];
  if (params_.num_samples == 0 || system.sampled == system.series.size()) {
    return End(s, absl::OkStatus());
  }
  const int64_t first = system.series[system.sampled];
  int64_t count = 0;
  while (system.sampled < system.series.size() && system.series[system.sampled] == first + count) {
    ++system.sampled;
    ++count;
  }
  SampleParams params;
  params.handle = system.handle;
  params.seed = params_.seed;
  params.first_sample = static_cast<uint64_t>(first * params_.num_samples);
  params.num_samples = count * params_.num_samples;
  params.samples =
      std::as_writable_bytes(Part(results_.samples, first * params_.num_samples * SeriesScalars(),
                                  params.num_samples * SeriesScalars()));
  core_->Sample(context_, params,
                [self = shared_from_this(), s](const absl::StatusOr<CostReply>& reply) {
                  self->OnStep(s, reply, &SmoothRun::Sample);
                });
}

void SmoothRun::Fail(size_t s, const absl::Status& status) {
  System& system = systems_[s];
  if (!absl::IsNotFound(status) || system.attempts == kMostAttempts || failed()) {
    return End(s, status);
  }
  system.held = false;
  system.sampled = 0;
  WriteRightHandSides(s);
  Factor(s);
}

void SmoothRun::End(size_t s, const absl::Status& status) {
  const System& system = systems_[s];
  if (system.held && !params_.keep) {
    core_->Release(context_->caller, {&system.handle, 1}).IgnoreError();
    // With `keep` it stays where another system fails too: asked again, the call finds it.
  }
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
  }
  if (--running_ > 0) return;
  const std::shared_ptr<SmoothRun> self = shared_from_this();
  absl::Status all;
  {
    absl::MutexLock lock(&mutex_);
    all = status_;
  }
  // Whoever is told of the answer finds everything back.
  context_->part_of = nullptr;
  permit_.GiveBack();
  SmoothDone done = std::move(done_);  // it may hold whoever will hold this
  if (!all.ok()) return done(all);
  done(self);
}

void SmoothRun::AddCost(const Cost& cost) {
  absl::MutexLock lock(&mutex_);
  AddTo(cost_, cost);
}

SmoothReply SmoothRun::Finish() {
  SmoothReply reply;
  const MissingPatterns& patterns = smoother_->patterns();
  reply.system_of_series = patterns.system_of_series;
  reply.observed = patterns.observed;
  reply.found = params_.keep;
  {
    absl::MutexLock lock(&mutex_);
    reply.cost = cost_;
    reply.growth = growth_;
    reply.backward_error_bound = backward_error_bound_;
  }
  if (params_.log_likelihood) reply.log_likelihood.resize(patterns.observed.size());
  const int64_t n = params_.state_size, steps = params_.num_steps;
  for (size_t s = 0; s < systems_.size(); ++s) {
    System& system = systems_[s];
    if (params_.keep) reply.handles.push_back(system.handle);
    reply.found &= system.found;
    const auto place = static_cast<int64_t>(s);
    const double* const blocks = params_.covariances == SmoothedCovariances::kFull
                                     ? results_.covariances.data() + place * steps * BlockScalars()
                                     : system.blocks.data();
    if (params_.covariances == SmoothedCovariances::kVariances && !system.blocks.empty()) {
      for (int64_t i = 0; i < n * steps; ++i) {
        results_.covariances[place * n * steps + i] = blocks[i / n * n * n + i % n * (n + 1)];
      }
    }
    std::vector<double> variances;
    if (params_.residuals) variances = smoother_->ResidualVariances(s, blocks);
    for (const int64_t k : system.series) {
      const double* const x = results_.means.data() + k * SeriesScalars();
      if (params_.log_likelihood) {
        reply.log_likelihood[k] = smoother_->LogLikelihood(k, x, system.log_determinant);
      }
      if (params_.residuals) {
        smoother_->Residuals(k, x, variances.data(),
                             results_.residuals.data() + k * params_.observation_size * steps);
      }
      double* sample = results_.samples.data() + k * params_.num_samples * SeriesScalars();
      for (int64_t i = 0; i < params_.num_samples; ++i, sample += SeriesScalars()) {
        for (int64_t j = 0; j < SeriesScalars(); ++j) sample[j] += x[j];
      }
    }
  }
  return reply;
}

}  // namespace

void StartSmooth(SolverCore* core, Admission* admission, ContextPtr context,
                 const MeasuredSmooth& measured, const SmoothResults& results, SmoothDone done) {
  context->method = Method::kSmooth;
  absl::StatusOr<Permit> permit = admission->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  permit->slot.Reset();  // its parts have their own
  absl::StatusOr<std::unique_ptr<Smoother>> smoother = Smoother::Make(measured);
  if (!smoother.ok()) return done(smoother.status());
  std::make_shared<SmoothRun>(core, std::move(context), *std::move(permit), *std::move(smoother),
                              results, std::move(done))
      ->Start();
}

}  // namespace blockd::server
