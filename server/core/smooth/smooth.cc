#include "server/core/smooth/smooth.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/core/common/errors.h"
#include "server/core/smooth/orthogonal.h"
#include "server/core/smooth/smooth_run.h"

namespace blockd::server {

namespace {

absl::Status NotGood(size_t system, const SmoothErrors& errors) {
  return NotSmoothableError({.reason = NotSmoothable::Reason::kInaccurate,
                             .form = SmoothForm::kInformation,
                             .system = static_cast<int64_t>(system),
                             .errors = errors});
}

}  // namespace

// Else the thread that downloads them takes their memory from the system, page by page.
void SmoothRun::TouchResults() {
  constexpr int64_t kPage = 512, kPiece = 64 * kPage;  // in doubles
  for (const std::span<double> part : {results_.covariances, results_.lag_one, results_.samples}) {
    pool_->Run(std::ssize(part) / kPiece, [&](int64_t piece, int) {
      for (int64_t i = 0; i < kPiece; i += kPage) part[piece * kPiece + i] = 0;
    });
  }
}

absl::StatusOr<SmoothReply> SmoothRun::Finish() {
  SmoothReply reply;
  const MissingPatterns& patterns = smoother_->patterns();
  reply.system_of_series = patterns.system_of_series;
  reply.observed = patterns.observed;
  reply.found = kept_.keep;
  reply.systems.resize(systems_.size());
  {
    absl::MutexLock lock(&mutex_);
    reply.cost = cost_;
    reply.growth = growth_;
    reply.backward_error_bound = backward_error_bound_;
  }
  if (params_.log_likelihood) reply.log_likelihood.resize(patterns.observed.size());
  using Reason = SmoothedSystem::Reason;
  std::vector<size_t> again;
  for (size_t s = 0; s < systems_.size(); ++s) {
    if (kept_.keep) reply.handles.push_back(systems_[s].handle);
    reply.found &= systems_[s].found;
    SmoothedSystem& system = reply.systems[s];
    if (systems_[s].has_no_factorization) {
      system.reason = Reason::kIndefinitePrecision;
    } else {
      FinishSystem(s, reply);
      system.errors = ErrorsOf(s);
      if (IsGood(s, reply)) continue;
      if (params_.form) {
        ReleaseNew();
        return NotGood(s, system.errors);
      }
      system.reason = Reason::kInaccurate;
    }
    again.push_back(s);
  }
  absl::Status status = SmoothOrthogonally(devices_, *context_, measured_, again, results_, &reply);
  if (!status.ok()) return status;
  return reply;
}

void SmoothRun::ReleaseNew() {
  for (const System& system : systems_) {
    if (!kept_.keep || system.found) continue;
    Cache& cache = shards_->Of(system.handle).cache();
    cache.Release(context_->caller, {&system.handle, 1}).IgnoreError();  // it may be gone
  }
}

Smoother::Variances SmoothRun::VariancesOf(size_t s) const {
  const System& system = systems_[s];
  const int64_t n = params_.state_size;
  const bool full = params_.covariances == SmoothedCovariances::kFull;
  if (full || !system.blocks.empty()) {
    return {full ? CovariancesOf(s).data() : system.blocks.data(), n * n, n + 1};
  }
  if (inverts()) return {CovariancesOf(s).data(), n};
  const bool kept = system.found && system.kept_variances != nullptr;
  return {kept ? system.kept_variances->data() : system.variances.data(), n};
}

std::shared_ptr<const Doubles> SmoothRun::CopyVariances(size_t s) const {
  const Smoother::Variances variances = VariancesOf(s);
  auto copy = std::make_shared<Doubles>(SeriesScalars());
  double* to = copy->data();
  for (int64_t t = 0; t < params_.num_steps; ++t) {
    for (int64_t i = 0; i < params_.state_size; ++i) *to++ = variances.at(t, i);
  }
  return copy;
}

SmoothErrors SmoothRun::ErrorsOf(size_t s) const {
  SmoothErrors errors;
  const auto raise = [](double value, double* most) {
    if (!(value <= *most) && !std::isnan(*most)) *most = value;  // NaN too, and it stays
  };
  for (const int64_t k : systems_[s].series) {
    const SmoothErrors own =
        smoother_->Errors(k, MeansOf(k).data(), VariancesOf(s), systems_[s].growth);
    raise(own.means, &errors.means);
    raise(own.variances, &errors.variances);
    raise(own.log_likelihood, &errors.log_likelihood);
  }
  return errors;
}

bool SmoothRun::IsGood(size_t s, const SmoothReply& reply) const {
  const SmoothErrors& errors = reply.systems[s].errors;
  if (!params_.log_likelihood) return IsPromised(errors, nullptr);
  double least = HUGE_VAL;
  for (const int64_t k : systems_[s].series) {
    least = std::min(least, std::fabs(reply.log_likelihood[static_cast<size_t>(k)]));
  }
  return IsPromised(errors, &least);
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

namespace {

int64_t BytesOf(const SmoothParams& params) {
  size_t values = params.initial_mean.size() + params.initial_covariance.size() +
                  params.initial_diffuse.size() + params.observations.size();
  for (const ModelArray* array :
       {&params.transition, &params.transition_covariance, &params.observation,
        &params.observation_covariance, &params.transition_offset, &params.observation_offset}) {
    values += array->values.size();
  }
  return static_cast<int64_t>(values * sizeof(double));
}

}  // namespace

void StartSmooth(const SmoothDevices& devices, ContextPtr context, const MeasuredSmooth& measured,
                 const KeepModel& kept, const SmoothResults& results, PostWork post,
                 SmoothDone done) {
  Admission* const admission = devices.admission;
  context->method = Method::kSmooth;
  absl::StatusOr<Permit> permit = admission->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  if (absl::Status status = admission->TakeUpload(*permit, BytesOf(measured.params));
      !status.ok()) {
    return done(status);
  }
  const auto wanted = [admission, context] { return context->CheckOngoing(admission->Now()); };
  using Reason = SmoothedSystem::Reason;
  const auto smooth_orthogonally = [&](Reason reason) {
    *permit = {};  // nothing is asked of a device
    done(MakeOrthogonalSmooth(devices, std::move(context), measured, reason, results));
  };
  const std::optional<SmoothForm> form = measured.params.form;
  if (form && *form != SmoothForm::kInformation) return smooth_orthogonally(Reason::kAskedFor);
  if (!measured.params.outputs.empty()) return smooth_orthogonally(Reason::kHasOutputs);
  if (!Smoother::HasInformationForm(measured.params)) {
    if (!kept.keep && !form) return smooth_orthogonally(Reason::kPartlyDiffuse);
    return done(InvalidFieldError("header.diffuse_columns", "other directions than those of states",
                                  "unit vectors, or no INFORMATION and no keep"));
  }
  absl::StatusOr<std::unique_ptr<Smoother>> smoother =
      Smoother::Make(measured, {devices.pool, wanted});
  if (!smoother.ok() && SingularCovarianceOf(smoother.status()) && !kept.keep && !form) {
    return smooth_orthogonally(Reason::kSingularCovariance);
  }
  if (!smoother.ok()) return done(smoother.status());
  std::make_shared<SmoothRun>(devices, std::move(context), *std::move(permit), measured,
                              *std::move(smoother), kept, results, std::move(post), std::move(done))
      ->Start();
}

}  // namespace blockd::server
