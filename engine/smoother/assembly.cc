// A and b of a model.
#include <algorithm>
#include <array>

#include "blockd/engine/smoother.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/residuals.h"
#include "engine/smoother/scratch.h"

namespace blockd {

BlockTridiagonalView SystemMatrix::view() const {
  BlockTridiagonalView view;
  view.form = form;
  view.diagonal = diagonal.data();
  view.coupling = coupling.data();
  if (!diagonal_index.empty()) view.diagonal_index = diagonal_index.data();
  if (!coupling_index.empty()) view.coupling_index = coupling_index.data();
  return view;
}

// V = U F:  F' inv(Q) F = V' V,  inv(Q) F = U' V.
void Smoother::WriteTransition(int64_t step, double* from, double* coupling) const {
  const int64_t n = params_.state_size;
  const double* const u = WhitenerOfQ(step);
  std::copy_n(F(step), n * n, coupling);
  MultiplyLower(n, u, coupling, n);
  std::fill_n(from, n * n, 0.0);
  AddGram(n, n, coupling, from);
  MultiplyLowerTransposed(n, u, coupling, n);
  for (int64_t i = 0; i < n * n; ++i) coupling[i] = -coupling[i];
}

const Smoother::Alike& Smoother::WhatIsAlike() const {
  absl::call_once(alike_made_, [this] {
    const int64_t n = params_.state_size;
    if (params_.num_steps == 1 || params_.transition_covariance.per_step) return;
    alike_.to = Doubles(n * n);
    if (!params_.transition.per_step) {
      alike_.from = Doubles(n * n);
      alike_.coupling = Doubles(n * n);
    }
    workers_.pool->Run(params_.transition.per_step ? 1 : 2, [&](int64_t part, int) {
      part == 0 ? MultiplySquare(n, WhitenerOfQ(0), alike_.to.data())
                : WriteTransition(0, alike_.from.data(), alike_.coupling.data());
    });
  });
  return alike_;
}

int64_t Smoother::WhitenObservations(size_t system, int64_t step, double* w) const {
  const MissingPatterns::Mask& mask = MaskAt(system, step);
  const int64_t count = std::ssize(mask.rows);
  if (count == 0) return 0;
  CopyObservedRows(mask, step, w);
  Whiten(ObservedAt(system, step), w, params_.state_size);
  return count;
}

// D += H' inv(R) H = W' W.
void Smoother::AddObservations(size_t system, int64_t step, Scratch& scratch, double* d) const {
  double* const w = scratch.rows.data();
  const int64_t count = WhitenObservations(system, step, w);
  if (count > 0) AddGram(count, params_.state_size, w, d);
}

// In one order wherever a block is made: the same model has the same bits, in whichever arrays.
void Smoother::WriteDiagonal(size_t system, int64_t step, const double* from, Scratch& scratch,
                             double* d) const {
  const int64_t n = params_.state_size;
  if (step == 0 && p_.empty()) {
    std::fill_n(d, n * n, 0.0);
  } else if (step == 0 || alike_.to.empty()) {
    MultiplySquare(n, step == 0 ? p_.data() : WhitenerOfQ(step - 1), d);
  } else {
    std::copy_n(alike_.to.data(), n * n, d);
  }
  AddObservations(system, step, scratch, d);
  if (step + 1 == params_.num_steps) return;
  for (int64_t i = 0; i < n * n; ++i) d[i] += from[i];
}

absl::Status Smoother::Assemble(size_t system, SystemMatrix* matrix) const {
  WhatIsAlike();
  matrix->form.shape = {params_.num_steps, params_.state_size, Scalar::kFloat64};
  return params_.is_constant() ? AssemblePalette(system, matrix) : AssembleEach(system, matrix);
}

bool Smoother::IsForDevice() const {
  constexpr int64_t kLeastStates = 128;
  const bool moves = params_.transition.per_step || params_.transition_covariance.per_step;
  return moves && params_.state_size >= kLeastStates &&
         params_.observation_size <= params_.state_size;
}

absl::Status Smoother::Whiten(size_t system, WhitenedSystem* whitened) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  whitened->observations = Doubles(steps * ny * n);
  InformationForm& form = whitened->form;
  form.shape = {steps, n, Scalar::kFloat64};
  form.transitions = params_.transition.values.data();
  form.whiteners = q_.data();
  form.one_transition = !params_.transition.per_step;
  form.one_whitener = !params_.transition_covariance.per_step;
  if (!p_.empty()) form.initial = p_.data();
  form.observations = whitened->observations.data();
  form.rows = ny;
  return ShareSteps(steps, [&](int64_t t, Scratch& scratch) {
    double* const w = whitened->observations.data() + t * ny * n;
    const bool whole = IsWhole(MaskAt(system, t));
    double* const rows = whole ? w : scratch.rows.data();
    const int64_t count = WhitenObservations(system, t, rows);
    if (whole) return;
    for (int64_t j = 0; j < n; ++j) {
      std::fill_n(std::copy_n(rows + j * count, count, w + j * ny), ny - count, 0.0);
    }
  });
}

absl::Status Smoother::AssembleEach(size_t system, SystemMatrix* matrix) const {
  const int64_t size = params_.state_size * params_.state_size, steps = params_.num_steps;
  matrix->diagonal = Doubles(steps * size);
  matrix->coupling = Doubles((steps - 1) * size);
  const bool moves = alike_.coupling.empty();
  return ShareSteps(steps, [&](int64_t t, Scratch& scratch) {
    double* const coupling = matrix->coupling.data() + t * size;
    const double* from = alike_.from.data();
    if (moves && t + 1 < steps) {
      WriteTransition(t, scratch.square.data(), coupling);
      from = scratch.square.data();
    } else if (t + 1 < steps) {
      std::copy_n(alike_.coupling.data(), size, coupling);
    }
    WriteDiagonal(system, t, from, scratch, matrix->diagonal.data() + t * size);
  });
}

// One block for each mask at the first, the last and all other steps; one coupling.
absl::Status Smoother::AssemblePalette(size_t system, SystemMatrix* matrix) const {
  const int64_t size = params_.state_size * params_.state_size, steps = params_.num_steps;
  const std::vector<uint32_t>& masks = patterns_->systems[system];
  if (steps > 1) {
    matrix->coupling = Doubles(size);
    std::copy_n(alike_.coupling.data(), size, matrix->coupling.data());
    matrix->coupling_index.assign(static_cast<size_t>(steps - 1), 0);
    matrix->form.coupling_palette = 1;
  }
  std::vector<std::array<int64_t, 3>> known(patterns_->masks.size(), {-1, -1, -1});
  std::vector<int64_t> first;  // step of each block
  matrix->diagonal_index.reserve(static_cast<size_t>(steps));
  for (int64_t t = 0; t < steps; ++t) {
    const size_t place = t == 0 ? 0 : t + 1 == steps ? 2 : 1;
    int64_t& block = known[masks[static_cast<size_t>(t)]][place];
    if (block < 0) {
      block = std::ssize(first);
      first.push_back(t);
    }
    matrix->diagonal_index.push_back(static_cast<uint32_t>(block));
  }
  const int64_t blocks = std::ssize(first);
  matrix->form.diagonal_palette = blocks;
  matrix->diagonal = Doubles(blocks * size);
  return ShareSteps(blocks, [&](int64_t i, Scratch& scratch) {
    WriteDiagonal(system, first[static_cast<size_t>(i)], alike_.from.data(), scratch,
                  matrix->diagonal.data() + i * size);
  });
}

// -----------------------------------------------------------------------------------------------------
// b

void Smoother::WeighOffset(int64_t step, double* u) const {
  const int64_t n = params_.state_size;
  std::copy_n(params_.transition_offset.At(step, n), n, u);
  MultiplyLower(n, WhitenerOfQ(step), u);
  MultiplyLowerTransposed(n, WhitenerOfQ(step), u);
}

void Smoother::WriteRightHandSide(int64_t series, const Steps& steps, Scratch& scratch,
                                  double* b) const {
  const int64_t n = params_.state_size;
  const size_t system = SystemOf(series);
  const bool offsets = !params_.transition_offset.values.empty();
  double* const u = scratch.state.data();
  double* const errors = scratch.errors.data();
  if (offsets && steps.first > 0) WeighOffset(steps.first - 1, u);
  for (int64_t t = steps.first; t < steps.last; ++t) {
    double* const bt = b + t * n;
    if (t == 0 && !p_.empty()) {
      std::copy(params_.initial_mean.begin(), params_.initial_mean.end(), bt);
      MultiplyLower(n, p_.data(), bt);
      MultiplyLowerTransposed(n, p_.data(), bt);
    } else {
      std::fill_n(bt, n, 0.0);
    }
    if (offsets && t > 0) {
      for (int64_t j = 0; j < n; ++j) bt[j] += u[j];
    }
    if (const int64_t count = WriteErrors(params_, MaskAt(system, t), series, t, nullptr, errors);
        count > 0) {
      Weigh(ObservedAt(system, t), errors);
      const MissingPatterns::Mask& mask = MaskAt(system, t);
      const double* rows = H(t);
      if (!IsWhole(mask)) {
        CopyObservedRows(mask, t, scratch.rows.data());
        rows = scratch.rows.data();
      }
      AddTransposedProduct(count, n, 1, rows, errors, bt);
    }
    if (offsets && t + 1 < params_.num_steps) {
      WeighOffset(t, u);
      AddTransposedProduct(n, n, -1, F(t), u, bt);
    }
  }
}

absl::Status Smoother::RightHandSides(std::span<const int64_t> series, double* b) const {
  const int64_t steps = params_.num_steps, portions = Portions(steps);
  return Share(std::ssize(series) * portions, [&](int64_t i, Scratch& scratch) {
    const int64_t k = series[static_cast<size_t>(i / portions)];
    WriteRightHandSide(k, PortionAt(i % portions, steps), scratch,
                       b + k * steps * params_.state_size);
  });
}

}  // namespace blockd
