#include "blockd/engine/smoother.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/model_errors.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/diffuse_states.h"
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
    place += WhitenerDoubles(count);
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
  std::vector<int32_t> all(static_cast<size_t>(params_.observation_size));
  std::iota(all.begin(), all.end(), 0);
  FirstSingular first;
  // Whole, whatever is missing: what is refused does not depend on y.
  absl::Status status = ShareSteps(matrices, [&](int64_t t, Scratch& scratch) {
    const int64_t at = whole[static_cast<size_t>(t)];
    Observed unused{.step = t};
    Observed& observed = at < 0 ? unused : observed_[static_cast<size_t>(at)];
    double* const whitener = at < 0 ? scratch.covariance.data() : r_.data() + observed.place;
    if (const auto row = FactorObserved(all, &observed, whitener)) first.Note(t, {"R", t, *row});
  });
  status.Update(first.status());
  if (!status.ok()) return status;
  status = ShareSteps(parts, [&](int64_t i, Scratch&) {
    Observed& observed = observed_[static_cast<size_t>(i)];
    if (IsWhole(MaskAt(observed.mask))) return;
    const auto row =
        FactorObserved(MaskAt(observed.mask).rows, &observed, r_.data() + observed.place);
    if (row) first.Note(i, {"R", observed.step, *row});
  });
  status.Update(first.status());
  return status;
}

std::optional<int64_t> Smoother::FactorObserved(std::span<const int32_t> rows, Observed* observed,
                                                double* whitener) const {
  const int64_t ny = params_.observation_size, count = std::ssize(rows);
  const double* const r = params_.observation_covariance.At(observed->step, ny * ny);
  if (has_diagonal_noise_) {
    for (int64_t i = 0; i < count; ++i) {
      const double variance = r[rows[i] * (ny + 1)];
      if (!(variance > 0)) return rows[i];
      observed->log_determinant += std::log(variance);
      whitener[i] = 1 / std::sqrt(variance);
    }
    return std::nullopt;
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < count; ++i) whitener[j * count + i] = r[rows[j] * ny + rows[i]];
  }
  if (const std::optional<int64_t> row = Factorize(count, whitener)) return rows[*row];
  observed->log_determinant = LogDeterminant(count, whitener);
  observed->condition = InvertTriangle(count, whitener);
  return std::nullopt;
}

void Smoother::Whiten(const Observed& observed, double* b, int64_t columns) const {
  const double* const u = WhitenerOf(observed);
  const int64_t rows = std::ssize(MaskAt(observed.mask).rows);
  if (!has_diagonal_noise_) return MultiplyLower(rows, u, b, columns);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) b[j * rows + i] *= u[i];
  }
}

void Smoother::Weigh(const Observed& observed, double* b) const {
  Whiten(observed, b, 1);
  if (has_diagonal_noise_) return Whiten(observed, b, 1);
  MultiplyLowerTransposed(std::ssize(MaskAt(observed.mask).rows), WhitenerOf(observed), b);
}

bool Smoother::HasInformationForm(const SmoothParams& params) {
  const int64_t n = params.state_size;
  const std::vector<bool> diffuse = DiffuseStates(params);
  const auto states = std::count(diffuse.begin(), diffuse.end(), true);
  return params.diffuse || states * n == std::ssize(params.initial_diffuse);
}

absl::Status Smoother::FactorInitial() {
  const int64_t n = params_.state_size;
  const std::vector<bool> diffuse = DiffuseStates(params_);
  std::vector<int64_t> known;
  for (int64_t i = 0; i < n; ++i) {
    if (!params_.diffuse && !diffuse[static_cast<size_t>(i)]) known.push_back(i);
  }
  const int64_t count = std::ssize(known);
  diffuse_states_ = n - count;
  if (count == 0) return absl::OkStatus();
  Doubles own(count * count);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < count; ++i) {
      own.data()[j * count + i] = params_.initial_covariance[known[j] * n + known[i]];
    }
  }
  if (const std::optional<int64_t> row = Factorize(count, own.data())) {
    return SingularCovarianceError({"P", 0, known[*row]});
  }
  p_log_determinant_ = LogDeterminant(count, own.data());
  p_condition_ = InvertTriangle(count, own.data());
  p_ = Doubles(n * n);
  std::fill_n(p_.data(), n * n, 0.0);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = j; i < count; ++i) {
      p_.data()[known[j] * n + known[i]] = own.data()[j * count + i];
    }
  }
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
