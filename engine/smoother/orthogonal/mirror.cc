#include "engine/smoother/orthogonal/mirror.h"

#include <cmath>
#include <utility>

namespace blockd::orthogonal {

Mirror::Mirror(const System& system) : system_(system) {
  const int64_t n = system.state_size, ny = system.observation_size, steps = system.num_steps;
  const auto reverse = [&](Matrices& matrices, int64_t rows, int64_t columns, int64_t count) {
    if (matrices.values == nullptr) return;
    const int64_t all = matrices.is_per_step() ? count : 1;
    matrices.values = Reverse(matrices.values, rows, columns * all);
  };
  if (steps > 1) {
    // Rows and columns: all of a matrix's numbers, in reverse order.
    reverse(system_.transition, n * n, 1, steps - 1);
    reverse(system_.transition_offset, n, 1, steps - 1);
    Factors& b = system_.transition_factor;
    reverse(b.matrices, n, n, steps - 1);
    reverse(b.low, n, n, steps - 1);
    Triple(n * n * (b.matrices.is_per_step() ? steps - 1 : 1), &b.matrices.values, &b.low.values);
  }
  // Columns alone.
  const int64_t matrices = system.observation.is_per_step() ? steps : 1;
  std::vector<double> h(static_cast<size_t>(matrices * ny * n));
  for (int64_t t = 0; t < matrices; ++t) {
    const double* const from = system.observation.at(t);
    for (int64_t i = 0; i < ny * n; ++i) {
      h[static_cast<size_t>((t * n + n - 1 - i / ny) * ny + i % ny)] = from[i];
    }
  }
  system_.observation.values = arrays_.emplace_back(std::move(h)).data();
  Factors& s = system_.observation_factor;
  Triple((system.is_diagonal ? ny : ny * ny) * (s.matrices.is_per_step() ? steps : 1),
         &s.matrices.values, &s.low.values);
  if (system.initial_mean != nullptr) system_.initial_mean = Reverse(system.initial_mean, n, 1);
  if (system.initial_columns > 0) {
    system_.initial_factor = Reverse(system.initial_factor, n, system.initial_columns);
    system_.initial_low = Reverse(system.initial_low, n, system.initial_columns);
    Triple(n * system.initial_columns, &system_.initial_factor, &system_.initial_low);
  }
  if (system.diffuse_columns > 0) {
    const std::vector<double> low(static_cast<size_t>(n * system.diffuse_columns));
    system_.diffuse = Reverse(system.diffuse, n, system.diffuse_columns);
    system_.diffuse_low = low.data();
    Triple(n * system.diffuse_columns, &system_.diffuse, &system_.diffuse_low);
  }
}

const double* Mirror::Reverse(const double* from, int64_t rows, int64_t columns) {
  std::vector<double>& to = arrays_.emplace_back(static_cast<size_t>(rows * columns));
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      to[static_cast<size_t>(j * rows + rows - 1 - i)] = from[j * rows + i];
    }
  }
  return to.data();
}

void Mirror::Triple(int64_t numbers, const double** high, const double** low) {
  std::vector<double>& to = arrays_.emplace_back(static_cast<size_t>(numbers));
  std::vector<double>& rest = arrays_.emplace_back(static_cast<size_t>(numbers));
  for (size_t i = 0; i < to.size(); ++i) {
    const double product = kMirrorUnit * (*high)[i];
    const double lost = std::fma(kMirrorUnit, (*high)[i], -product) + kMirrorUnit * (*low)[i];
    to[i] = product + lost;
    rest[i] = lost - (to[i] - product);
  }
  *high = to.data();
  *low = rest.data();
}

}  // namespace blockd::orthogonal
