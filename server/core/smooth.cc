#include "server/core/smooth.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/doubles.h"
#include "blockd/engine/smoother.h"
#include "server/core/operations/sums.h"
#include "server/core/smooth_fingerprint.h"
#include "server/core/solver_core.h"

namespace blockd::server {
namespace {

// A factorization that is evicted between two steps of a chain is made again, but not so often.
constexpr int kMostLosses = 3;
// Chains beside one another: as many as a batch of Factors takes.
constexpr size_t kMostChains = 256;

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
  SmoothRun(SolverCore* core, StepPool* pool, ContextPtr context, Permit permit,
            std::unique_ptr<Smoother> smoother, const KeepModel& kept, const SmoothResults& results,
            PostWork post, SmoothDone done)
      : core_(core),
        pool_(pool),
        context_(std::move(context)),
        permit_(std::move(permit)),
        smoother_(std::move(smoother)),
        params_(smoother_->params()),
        kept_(kept),
        results_(results),
        post_(std::move(post)),
        done_(std::move(done)),
        systems_(smoother_->systems()),
        most_running_(std::min(systems_.size(), kMostChains)) {
    for (int64_t k = 0; k < params_.num_series; ++k) {
      systems_[smoother_->patterns().system_of_series[k]].series.push_back(k);
    }
    for (size_t s = 0; s < systems_.size(); ++s) waiting_.push_back(s);
    if (kept_.keep) model_fingerprint_ = ModelFingerprint(params_, *pool_);
    context_->part_of = &permit_;
  }

  // Each chain ends with a status of its own.
  void Start() {
    TouchResults();
    // All that is large, while whoever asks can still be told that there is no memory for it.
    if (needs_blocks() && params_.covariances != SmoothedCovariances::kFull) {
      for (System& system : systems_) {
        system.blocks = Doubles(params_.num_steps * BlockScalars());
      }
    }
    StartChains();
  }

  SmoothReply Finish() override;

 private:
  struct System {
    std::vector<int64_t> series;
    SystemMatrix matrix;      // or
    WhitenedSystem whitened;  // where the device makes it
    Handle handle;
    bool held = false;  // the handle is this run's, to be given back or kept
    bool found = false;
    double log_determinant = 0;
    Doubles blocks;      // of the inverse, where they are no result
    size_t sampled = 0;  // series
    int losses = 0;      // of the factorization
    bool alone = false;  // no chain runs beside it
  };

  int64_t BlockScalars() const { return params_.state_size * params_.state_size; }
  int64_t SeriesScalars() const { return params_.state_size * params_.num_steps; }
  bool needs_blocks() const { return params_.residuals || params_.lag_one; }

  // Blocks, or their diagonals.
  std::span<double> CovariancesOf(size_t s) const {
    const int64_t size = params_.covariances == SmoothedCovariances::kFull
                             ? params_.num_steps * BlockScalars()
                             : SeriesScalars();
    return Part(results_.covariances, static_cast<int64_t>(s) * size, size);
  }
  std::span<double> MeansOf(int64_t series) const {
    return Part(results_.means, series * SeriesScalars(), SeriesScalars());
  }
  void TouchResults();
  // Begins as many chains as may run beside one another.
  void StartChains();
  // nullopt: none waits, or enough run.
  std::optional<size_t> NextChain();
  void PostChains();
  // True if a chain that failed begins again: beside fewer, where it had no room beside others, or
  // alone, where its factorization was lost all the same.
  bool BeginsAgain(size_t s, const absl::Status& status);
  void Factor(size_t s);
  // Fills in Factor's parameters for the model, or returns a factorization that is held already.
  absl::StatusOr<std::optional<FactorReply>> Prepare(size_t s, FactorParams* params);
  bool IsForDevice() const {
    return smoother_->IsForDevice() && !core_->backend().reads_host_memory();
  }
  void OnFactored(size_t s, absl::StatusOr<FactorReply> reply);
  void Solve(size_t s);
  void OnSolved(size_t s, absl::StatusOr<SolveManyReply> reply);
  void Invert(size_t s);
  void Sample(size_t s);
  void OnStep(size_t s, const absl::StatusOr<CostReply>& reply, void (SmoothRun::*next)(size_t));
  // Gives the factorization back, unless it is kept.
  void Release(System& system);
  // A step failed: the chain begins again, or ends.
  void Fail(size_t s, const absl::Status& status);
  void End(size_t s, const absl::Status& status);
  void FinishSystem(size_t s, SmoothReply& reply);
  void AddCost(const Cost& cost);

  SolverCore* const core_;
  StepPool* const pool_;
  const ContextPtr context_;
  Permit permit_;  // its parts take none of their own but places
  const std::unique_ptr<Smoother> smoother_;
  const SmoothParams& params_;
  const KeepModel kept_;
  const SmoothResults results_;
  const PostWork post_;
  SmoothDone done_;
  std::string model_fingerprint_;  // with keep
  std::vector<System> systems_;    // each used by its chain alone

  absl::Mutex mutex_;
  std::deque<size_t> waiting_ ABSL_GUARDED_BY(mutex_);  // chains that have not begun
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;          // chains, of which so many may:
  size_t most_running_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first failure
  Cost cost_ ABSL_GUARDED_BY(mutex_);
  double growth_ ABSL_GUARDED_BY(mutex_) = 1;
  double backward_error_bound_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Else the thread that downloads them takes their memory from the system, page by page.
void SmoothRun::TouchResults() {
  constexpr int64_t kPage = 512, kPiece = 64 * kPage;  // in doubles
  for (const std::span<double> part : {results_.covariances, results_.lag_one, results_.samples}) {
    pool_->Run(std::ssize(part) / kPiece, [&](int64_t piece, int) {
      for (int64_t i = 0; i < kPiece; i += kPage) part[piece * kPiece + i] = 0;
    });
  }
}

void SmoothRun::StartChains() {
  while (const std::optional<size_t> s = NextChain()) Factor(*s);
}

std::optional<size_t> SmoothRun::NextChain() {
  absl::MutexLock lock(&mutex_);
  if (waiting_.empty() || running_ >= most_running_) return std::nullopt;
  const size_t s = waiting_.front();
  waiting_.pop_front();
  ++running_;
  systems_[s].alone = most_running_ == 1;
  return s;
}

bool SmoothRun::BeginsAgain(size_t s, const absl::Status& status) {
  System& system = systems_[s];
  const bool lost = absl::IsNotFound(status);  // others have taken its factorization's memory
  const bool may = system.alone
                       ? lost && ++system.losses < kMostLosses
                       : lost || absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  if (!may) return false;
  Release(system);
  bool none_runs = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return false;
    waiting_.push_front(s);
    --running_;
    most_running_ = std::max<size_t>(running_, 1);
    none_runs = running_ == 0;
  }
  if (none_runs) PostChains();
  return true;
}

// The calling thread may feed a device, or answer what that has done, and has no time to assemble.
void SmoothRun::PostChains() {
  post_([self = shared_from_this()] { self->StartChains(); });
}

void SmoothRun::Release(System& system) {
  // With `keep` it stays where another system fails too: asked again, the call finds it.
  if (std::exchange(system.held, false) && !kept_.keep) {
    core_->Release(context_->caller, {&system.handle, 1}).IgnoreError();
  }
}

void SmoothRun::Factor(size_t s) {
  System& system = systems_[s];
  system.sampled = 0;
  FactorParams params;
  absl::StatusOr<std::optional<FactorReply>> found;
  try {
    found = Prepare(s, &params);
  } catch (const std::bad_alloc&) {
    found = absl::ResourceExhaustedError("the server's host has no memory for the model");
  }
  if (!found.ok()) return Fail(s, found.status());
  if (found->has_value()) return OnFactored(s, **std::move(found));
  auto done = [self = shared_from_this(), s](absl::StatusOr<FactorReply> reply) {
    self->OnFactored(s, std::move(reply));
  };
  if (IsForDevice()) {
    core_->Factor(context_, params, system.whitened.form, std::move(done));
  } else {
    core_->Factor(context_, params, {system.matrix.view()}, std::move(done));
  }
}

absl::StatusOr<std::optional<FactorReply>> SmoothRun::Prepare(size_t s, FactorParams* params) {
  System& system = systems_[s];
  // b is where the means will be.
  absl::Status status = smoother_->RightHandSides(system.series, results_.means.data());
  if (!status.ok()) return status;
  params->form.shape = {params_.num_steps, params_.state_size, Scalar::kFloat64};
  params->num_systems = 1;
  params->log_determinant = params_.log_likelihood;
  if (kept_.keep) {
    params->idempotency_key =
        absl::StrCat("smooth/", SystemFingerprint(model_fingerprint_, smoother_->patterns(), s));
    params->lease = kept_.lease;
    absl::StatusOr<std::optional<FactorReply>> found = core_->FindFactored(*context_, *params);
    if (!found.ok() || found->has_value()) return found;
  }
  if (IsForDevice()) {
    system.whitened = {};
    status = smoother_->Whiten(s, &system.whitened);
    if (!status.ok()) return status;
    return std::nullopt;
  }
  system.matrix = {};
  status = smoother_->Assemble(s, &system.matrix);
  if (!status.ok()) return status;
  params->form = system.matrix.form;
  return std::nullopt;
}

void SmoothRun::OnFactored(size_t s, absl::StatusOr<FactorReply> reply) {
  System& system = systems_[s];
  const absl::Status status = reply.ok() ? reply->systems[0].status : reply.status();
  if (!status.ok()) {
    if (BeginsAgain(s, status)) return;
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
    diagonal = CovariancesOf(s);
  } else if (needs_blocks()) {
    diagonal = {system.blocks.data(), static_cast<size_t>(system.blocks.size())};
  } else {
    params.parts = InverseParts::kDiagonalEntries;
    diagonal = CovariancesOf(s);
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
  if (!BeginsAgain(s, status)) End(s, status);
}

void SmoothRun::End(size_t s, const absl::Status& status) {
  Release(systems_[s]);
  const std::shared_ptr<SmoothRun> self = shared_from_this();
  absl::Status all;
  bool over = false, more = false;
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    all = status_;
    if (!all.ok()) waiting_.clear();
    --running_;
    more = !waiting_.empty();
    over = running_ == 0 && !more;
  }
  if (more) PostChains();
  if (!over) return;
  // Gives everything back before the caller learns of the answer.
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
  reply.found = kept_.keep;
  {
    absl::MutexLock lock(&mutex_);
    reply.cost = cost_;
    reply.growth = growth_;
    reply.backward_error_bound = backward_error_bound_;
  }
  if (params_.log_likelihood) reply.log_likelihood.resize(patterns.observed.size());
  for (size_t s = 0; s < systems_.size(); ++s) {
    if (kept_.keep) reply.handles.push_back(systems_[s].handle);
    reply.found &= systems_[s].found;
    FinishSystem(s, reply);
  }
  return reply;
}

void SmoothRun::FinishSystem(size_t s, SmoothReply& reply) {
  const System& system = systems_[s];
  const double* const means = results_.means.data();
  if (params_.log_likelihood) {
    smoother_->LogLikelihoods(system.series, means, system.log_determinant,
                              reply.log_likelihood.data());
  }
  const double* blocks = system.blocks.data();
  if (params_.covariances == SmoothedCovariances::kFull) {
    blocks = CovariancesOf(s).data();
  } else if (params_.covariances == SmoothedCovariances::kVariances && !system.blocks.empty()) {
    const int64_t n = params_.state_size;
    const std::span<double> variances = CovariancesOf(s);
    for (int64_t i = 0; i < std::ssize(variances); ++i) {
      variances[i] = blocks[i / n * n * n + i % n * (n + 1)];
    }
  }
  if (params_.residuals) {
    const Doubles variances = smoother_->ResidualVariances(s, blocks);
    smoother_->Residuals(system.series, means, variances.data(), results_.residuals.data());
  }
  const int64_t samples = params_.num_samples, scalars = SeriesScalars();
  pool_->Run(std::ssize(system.series) * samples, [&](int64_t i, int) {
    const int64_t k = system.series[i / samples];
    double* const sample = results_.samples.data() + (k * samples + i % samples) * scalars;
    for (int64_t j = 0; j < scalars; ++j) sample[j] += means[k * scalars + j];
  });
}

int64_t BytesOf(const SmoothParams& params) {
  size_t values =
      params.initial_mean.size() + params.initial_covariance.size() + params.observations.size();
  for (const ModelArray* array :
       {&params.transition, &params.transition_covariance, &params.observation,
        &params.observation_covariance, &params.transition_offset, &params.observation_offset}) {
    values += array->values.size();
  }
  return static_cast<int64_t>(values * sizeof(double));
}

}  // namespace

void StartSmooth(SolverCore* core, Admission* admission, StepPool* pool, ContextPtr context,
                 const MeasuredSmooth& measured, const KeepModel& kept,
                 const SmoothResults& results, PostWork post, SmoothDone done) {
  context->method = Method::kSmooth;
  absl::StatusOr<Permit> permit = admission->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  permit->slot.Reset();  // its parts have their own
  if (absl::Status status = admission->TakeUpload(*permit, BytesOf(measured.params));
      !status.ok()) {
    return done(status);
  }
  const auto wanted = [admission, context] { return context->CheckOngoing(admission->Now()); };
  absl::StatusOr<std::unique_ptr<Smoother>> smoother = Smoother::Make(measured, {pool, wanted});
  if (!smoother.ok()) return done(smoother.status());
  std::make_shared<SmoothRun>(core, pool, std::move(context), *std::move(permit),
                              *std::move(smoother), kept, results, std::move(post), std::move(done))
      ->Start();
}

}  // namespace blockd::server
