#include "blockd/engine/smoother.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/model_errors.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/scratch.h"

namespace blockd {

// -----------------------------------------------------------------------------------------------------
// Portions

// Some ten microseconds of work at least, and enough of them for all threads.
int64_t Smoother::PortionSteps() const {
  constexpr int64_t kScalars = 8192, kMost = 512;
  const int64_t size = std::max(params_.state_size, params_.observation_size);
  return std::clamp(kScalars / (size * size), int64_t{1}, kMost);
}

Smoother::Steps Smoother::PortionAt(int64_t portion, int64_t steps) const {
  const int64_t size = PortionSteps();
  return {portion * size, std::min(steps, (portion + 1) * size)};
}

int64_t Smoother::ScratchDoubles(const SmoothParams& params) {
  const int64_t n = params.state_size, ny = params.observation_size;
  return n * n + 2 * ny * n + n + ny + ny * ny;
}

void Smoother::Run(int64_t turns, Turn turn) const {
  std::vector<Scratch> scratches;
  for (int i = 0; i < workers_.pool->threads(); ++i) scratches.emplace_back(params_);
  workers_.pool->Run(
      turns, [&](int64_t i, int worker) { turn(i, scratches[static_cast<size_t>(worker)]); });
}

absl::Status Smoother::Share(int64_t turns, Turn turn) const {
  std::atomic<bool> over = false;
  Run(turns, [&](int64_t i, Scratch& scratch) {
    if (over.load(std::memory_order_relaxed)) return;
    if (workers_.wanted().ok()) return turn(i, scratch);
    over.store(true, std::memory_order_relaxed);
  });
  return over ? workers_.wanted() : absl::OkStatus();
}

absl::Status Smoother::ShareSteps(int64_t steps, Portion portion) const {
  return Share(Portions(steps), [&](int64_t i, Scratch& scratch) {
    const Steps part = PortionAt(i, steps);
    for (int64_t t = part.first; t < part.last; ++t) portion(t, scratch);
  });
}

void Smoother::RunSeries(std::span<const int64_t> series, SeriesPortion portion) const {
  const int64_t steps = params_.num_steps, portions = Portions(steps);
  Run(std::ssize(series) * portions, [&](int64_t i, Scratch& scratch) {
    portion(i / portions, PortionAt(i % portions, steps), scratch);
  });
}

// -----------------------------------------------------------------------------------------------------
// Covariances

class Smoother::FirstSingular {
 public:
  void Note(int64_t order, SingularCovariance what) {
    absl::MutexLock lock(&mutex_);
    if (order >= order_) return;
    order_ = order;
    what_ = std::move(what);
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return what_ ? SingularCovarianceError(*what_) : absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  int64_t order_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  std::optional<SingularCovariance> what_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Smoother>> Smoother::Make(const MeasuredSmooth& measured,
                                                         Workers workers) {
  std::unique_ptr<Smoother> smoother(new Smoother(measured, std::move(workers)));
  absl::Status status = smoother->FactorTransitions();
  if (status.ok()) status = smoother->FactorObservations();
  if (status.ok()) status = smoother->FactorInitial();
  if (!status.ok()) return status;
  return smoother;
}

absl::Status Smoother::FactorTransitions() {
  const int64_t size = params_.state_size * params_.state_size, moves = params_.num_steps - 1;
  const ModelArray& q = params_.transition_covariance;
  if (moves == 0) return absl::OkStatus();
  const int64_t matrices = q.per_step ? moves : 1;
  q_ = Doubles(matrices * size);
  q_condition_ = Doubles(matrices);
  FirstSingular first;
  std::vector<double> determinants(static_cast<size_t>(matrices));
  absl::Status status = ShareSteps(matrices, [&](int64_t t, Scratch&) {
    double* const l = q_.data() + t * size;
    std::copy_n(q.At(t, size), size, l);
    if (const std::optional<int64_t> row = Factorize(params_.state_size, l)) {
      return first.Note(t, {"Q", t, *row});
    }
    determinants[static_cast<size_t>(t)] = LogDeterminant(params_.state_size, l);
    q_condition_.data()[t] = InvertTriangle(params_.state_size, l);
  });
  // One by one, where they are all the same too.
  for (int64_t t = 0; t < moves; ++t) {
    q_log_determinant_ += determinants[q.per_step ? static_cast<size_t>(t) : 0];
  }
  status.Update(first.status());
  return status;
}

std::vector<int64_t> Smoother::PlaceObserved() {
  const bool per_step = params_.observation_covariance.per_step;
  const auto steps = static_cast<size_t>(params_.num_steps);
  std::vector<int64_t> whole(per_step ? steps : 1, -1);
  int64_t place = 0;
  const auto add = [&](int64_t step, uint32_t mask) {
    const int64_t count = std::ssize(MaskAt(mask).rows);
    if (IsWhole(MaskAt(mask))) whole[static_cast<size_t>(step)] = std::ssize(observed_);
    observed_.push_back({.step = step, .mask = mask, .place = place});
    place += count * count;
  };
  if (!per_step) {
    for (uint32_t mask = 0; mask < patterns_->masks.size(); ++mask) add(0, mask);
  } else if (systems() == 1) {
    for (size_t t = 0; t < steps; ++t) add(static_cast<int64_t>(t), patterns_->systems[0][t]);
  } else {
    observed_at_.resize(systems() * steps);
    absl::flat_hash_map<uint32_t, int64_t> known;
    for (size_t t = 0; t < steps; ++t) {
      known.clear();
      for (size_t s = 0; s < systems(); ++s) {
        const uint32_t mask = patterns_->systems[s][t];
        const auto [found, made] = known.try_emplace(mask, std::ssize(observed_));
        if (made) add(static_cast<int64_t>(t), mask);
        observed_at_[s * steps + t] = found->second;
      }
    }
  }
  r_ = Doubles(place);
  return whole;
}

const Smoother::Observed& Smoother::ObservedAt(size_t system, int64_t step) const {
  const auto t = static_cast<size_t>(step);
  if (!params_.observation_covariance.per_step) return observed_[patterns_->systems[system][t]];
  if (observed_at_.empty()) return observed_[t];
  const int64_t at = observed_at_[system * static_cast<size_t>(params_.num_steps) + t];
  return observed_[static_cast<size_t>(at)];
}

absl::Status Smoother::FactorObservations() {
  const std::vector<int64_t> whole = PlaceObserved();
  const int64_t matrices = std::ssize(whole), parts = std::ssize(observed_);
  FirstSingular first;
  // Whole, whatever is missing: what is refused does not depend on y.
  absl::Status status = ShareSteps(matrices, [&](int64_t t, Scratch& scratch) {
    const int64_t at = whole[static_cast<size_t>(t)];
    FactorWhole(t, at < 0 ? nullptr : &observed_[static_cast<size_t>(at)], scratch, first);
  });
  status.Update(first.status());
  if (!status.ok()) return status;
  status = ShareSteps(parts, [&](int64_t i, Scratch&) {
    Observed& observed = observed_[static_cast<size_t>(i)];
    if (!IsWhole(MaskAt(observed.mask))) FactorObserved(&observed, i, first);
  });
  status.Update(first.status());
  return status;
}

void Smoother::FactorWhole(int64_t step, Observed* observed, Scratch& scratch,
                           FirstSingular& first) {
  const int64_t ny = params_.observation_size;
  double* const l = observed == nullptr ? scratch.covariance.data() : r_.data() + observed->place;
  std::copy_n(params_.observation_covariance.At(step, ny * ny), ny * ny, l);
  if (const std::optional<int64_t> row = Factorize(ny, l)) {
    return first.Note(step, {"R", step, *row});
  }
  if (observed == nullptr) return;
  observed->log_determinant = LogDeterminant(ny, l);
  observed->condition = InvertTriangle(ny, l);
}

void Smoother::FactorObserved(Observed* observed, int64_t order, FirstSingular& first) {
  const std::vector<int32_t>& rows = MaskAt(observed->mask).rows;
  const int64_t ny = params_.observation_size, count = std::ssize(rows);
  const double* const r = params_.observation_covariance.At(observed->step, ny * ny);
  double* const l = r_.data() + observed->place;
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < count; ++i) l[j * count + i] = r[rows[j] * ny + rows[i]];
  }
  if (const std::optional<int64_t> row = Factorize(count, l)) {
    return first.Note(order, {"R", observed->step, rows[*row]});
  }
  observed->log_determinant = LogDeterminant(count, l);
  observed->condition = InvertTriangle(count, l);
}

absl::Status Smoother::FactorInitial() {
  if (params_.diffuse) return absl::OkStatus();
  p_ = Doubles(std::ssize(params_.initial_covariance));
  std::copy(params_.initial_covariance.begin(), params_.initial_covariance.end(), p_.data());
  if (const std::optional<int64_t> row = Factorize(params_.state_size, p_.data())) {
    return SingularCovarianceError({"P", 0, *row});
  }
  p_log_determinant_ = LogDeterminant(params_.state_size, p_.data());
  p_condition_ = InvertTriangle(params_.state_size, p_.data());
  return absl::OkStatus();
}

const double* Smoother::F(int64_t step) const {
  return params_.transition.At(step, params_.state_size * params_.state_size);
}

const double* Smoother::H(int64_t step) const {
  return params_.observation.At(step, params_.observation_size * params_.state_size);
}

const double* Smoother::WhitenerOfQ(int64_t step) const {
  const int64_t size = params_.state_size * params_.state_size;
  return q_.data() + (params_.transition_covariance.per_step ? step * size : 0);
}

void Smoother::CopyObservedRows(const MissingPatterns::Mask& mask, int64_t step,
                                double* rows) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const double* const h = H(step);
  if (IsWhole(mask)) {
    std::copy_n(h, ny * n, rows);
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    for (const int32_t i : mask.rows) *rows++ = h[j * ny + i];
  }
}

}  // namespace blockd
