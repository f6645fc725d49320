// The vector passes over a factored system, for four right-hand sides at once: the posterior mean
// of the states, of all noises and the multipliers of the observations, where the noises have means
// of their own before and the states a linear cost.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MEANS_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MEANS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/smoother/orthogonal/factorization.h"
#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"
#include "engine/smoother/orthogonal/storage.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// Where the numbers of each step are, in arrays of those of all steps.
class Layout {
 public:
  template <typename N>
  explicit Layout(const Factorization<N>& f) : places_(f.system().num_steps + 1) {
    for (int64_t t = 0; t < f.system().num_steps; ++t) {
      const auto rows = static_cast<int64_t>(f.system().rows[static_cast<size_t>(t)]->size());
      const int64_t noises = rows == 0 ? 0 : (f.system().is_diagonal ? rows : f.noises_observed(t));
      places_[t + 1] = {places_[t].transition + f.step(t).transition_noises,
                        places_[t].noise + noises, places_[t].row + rows};
    }
  }
  int64_t u(int64_t t) const { return places_[t].transition; }
  int64_t e(int64_t t) const { return places_[t].noise; }
  int64_t y(int64_t t) const { return places_[t].row; }
  int64_t rows(int64_t t) const { return places_[t + 1].row - places_[t].row; }
  int64_t noises(int64_t t) const { return places_[t + 1].noise - places_[t].noise; }
  int64_t last() const { return places_.size() - 1; }

 private:
  struct Place {
    int64_t transition = 0, noise = 0, row = 0;
  };
  Buffer<Place> places_;
};

// Numbers of a model, each for four right-hand sides.
template <typename P>
struct Vectors {
  Vectors(const System& system, const Layout& layout)
      : x(system.num_steps * system.state_size),
        r(system.num_steps * system.state_size),
        u(layout.u(layout.last())),
        e(layout.e(layout.last())),
        y(layout.y(layout.last())),
        z(system.initial_columns),
        delta(system.diffuse_columns) {}

  Buffer<P> x;  // states, or the constants of the equations that make them: of x(1), x(2), ...
  Buffer<P> r;  // multipliers of the states, or their costs
  Buffer<P> u, e;
  Buffer<P> y;  // the multipliers of the observations, or the observations
  Buffer<P> z, delta;
};

template <typename N>
class Means {
 public:
  using P = typename N::Pack;
  using S = typename N::Scalar;

  Means(const Factorization<N>& factorization, const Layout& layout)
      : f_(factorization),
        layout_(layout),
        arrays_(factorization.system()),
        n_(factorization.system().state_size),
        states_(n_),
        mu_(factorization.most_coordinates() + factorization.most_noises()),
        rho_(std::max<int64_t>(1, factorization.system().diffuse_columns)),
        noises_(factorization.noise_packs() * kLanes),
        filtered_(factorization.system().num_steps * n_),
        innovations_(layout.y(layout.last())),
        weights_(layout.y(layout.last())),
        rests_(1) {
    int64_t rests = 0;
    for (int64_t t = 0; t + 1 < factorization.system().num_steps; ++t) {
      rests += f_.step(t).turned() - f_.step(t + 1).coordinates;
    }
    rests_.Append(rests);
  }

  // The answer in place of the constants, priors and costs of the states, where there are any.
  void Solve(Vectors<P>& v, bool has_costs) {
    Forward(v, has_costs);
    Backward(v);
  }
  // The first skipped row of a right-hand side whose data do not agree with what is known of it.
  struct Clash {
    bool found = false;
    int64_t step = 0;
    int32_t row = 0;
  };
  const Clash& clash(int lane) const { return clashes_[lane]; }

 private:
  // ---------------------------------------------------------------------------------------------
  // Forward

  void Forward(const Vectors<P>& v, bool has_costs) {
    const System& system = f_.system();
    for (Clash& clash : clashes_) clash = {};
    std::copy_n(v.x.data(), n_, states_.data());
    std::copy_n(v.z.data(), system.initial_columns, mu_.data());
    std::copy_n(v.delta.data(), system.diffuse_columns, rho_.data());
    int64_t rest = 0;
    for (int64_t t = 0; t < system.num_steps; ++t) {
      if (has_costs) AddCosts(t, &v.r[t * n_]);
      ObserveAll(t, v);
      std::copy_n(states_.data(), n_, &filtered_[t * n_]);
      if (t + 1 < system.num_steps) rest = Move(t, v, rest);
    }
  }

  void AddCosts(int64_t t, const P* costs) {
    const FactoredStep<N>& step = f_.step(t);
    AddToColumns<N>(-1, n_, step.coordinates, f_.columns(step.x), f_.packs(), costs, mu_.data());
    AddToColumns<N>(1, n_, step.directions, f_.columns(step.d), f_.packs(), costs, rho_.data());
  }

  void ObserveAll(int64_t t, const Vectors<P>& v) {
    const FactoredStep<N>& step = f_.step(t);
    if (step.first_elimination == step.last_elimination) return;
    arrays_.LoadObservation(t);
    const P* const e = v.e.data() + layout_.e(t);
    std::copy_n(e, step.noises, &mu_[step.coordinates]);
    noises_.Clear();
    for (int64_t i = step.first_elimination; i < step.last_elimination; ++i) {
      const int64_t a = i - step.first_elimination, at = layout_.y(t) + a;
      if (f_.elimination(i).has_noise) mu_[f_.elimination(i).coordinates - 1] = e[a];
      Observe(t, f_.elimination(i), a, v.y[at], &innovations_[at], &weights_[at]);
    }
  }

  void Observe(int64_t t, const Elimination<N>& made, int64_t a, const P& y, P* innovation,
               P* weight) {
    const double* const h = StepArrays::Doubles(arrays_.h(made.row));
    P left = noises_.size() > 0 ? y - noises_[a] : y;
    left = left - AddLine<typename N::Sum>(P{}, arrays_.h_rows(), made.row, states_.data());
    const int64_t last = made.coordinates - 1;
    *innovation = *weight = P{};
    if (made.kind == Elimination<N>::Kind::kDiffuse) {
      *innovation = left * Spread(N::Of(1.0) / made.scale);
      *weight = TakeDirection(made);
      AddInnovation(made, *innovation);
      return;
    }
    if (made.kind == Elimination<N>::Kind::kSkipped) return NoteClash(t, made, h, y, left);
    Turn(made.reflection, f_.weights(), mu_.data(), 1, 1);
    *innovation = left * Spread(N::Of(1.0) / made.scale);
    *weight = *innovation - mu_[0];
    AddInnovation(made, *innovation);
    mu_[0] = mu_[last];
  }

  void AddInnovation(const Elimination<N>& made, const P& innovation) {
    const P* const column = f_.columns(made.column);
    for (int64_t i = 0; i < n_; ++i) {
      states_[i] = Accumulate(states_[i], Spread(N::Get(column, i)), innovation);
    }
    for (int64_t i = 0; i < noises_.size(); ++i) {
      noises_[i] = Accumulate(noises_[i], Spread(N::Get(column + f_.packs(), i)), innovation);
    }
  }

  // The cost of the direction that leaves, of which the coordinates and the others take theirs.
  P TakeDirection(const Elimination<N>& made) {
    const P cost = rho_[made.direction];
    const S* const multipliers = f_.scalars(made.multipliers);
    int64_t to = 0;
    for (int64_t j = 0; j < made.directions; ++j) {
      if (j == made.direction) continue;
      rho_[to++] = Accumulate(rho_[j], Spread(-multipliers[j]), cost);
    }
    const S* const row = f_.scalars(made.noise_row);
    for (int64_t c = 0; c < made.coordinates; ++c) {
      mu_[c] = Accumulate(mu_[c], Spread(row[c]), cost);
    }
    return cost;
  }

  void NoteClash(int64_t t, const Elimination<N>& made, const double* h, const P& y,
                 const P& left) {
    Four terms = Spread(made.terms);
    for (int k = 0; k < kLanes; ++k) terms[k] += std::fabs(High(y)[k]);
    for (int64_t i = 0; i < n_; ++i) {
      for (int k = 0; k < kLanes; ++k) terms[k] += std::fabs(h[i] * High(states_[i])[k]);
    }
    const double most = 32 * static_cast<double>(n_) * InDouble::kUnit;
    for (int k = 0; k < kLanes; ++k) {
      if (clashes_[k].found || std::fabs(High(left)[k]) <= most * terms[k]) continue;
      clashes_[k] = {true, t, made.row};
    }
  }

  // Theta' of the coordinates and the noises; where the rests of the next step are.
  int64_t Move(int64_t t, const Vectors<P>& v, int64_t rest) {
    const FactoredStep<N>& step = f_.step(t);
    arrays_.LoadTransition(t);
    std::copy_n(v.u.data() + layout_.u(t), step.transition_noises, &mu_[step.known_coordinates]);
    for (int64_t i = step.first_reflection; i < step.last_reflection; ++i) {
      Turn(f_.reflection(i), f_.weights(), mu_.data(), 1, 1);
    }
    const int64_t kept = f_.step(t + 1).coordinates, left = step.turned() - kept;
    std::copy_n(&mu_[kept], left, &rests_[rest]);
    const P* const constants = &v.x[(t + 1) * n_];
    for (int64_t i = 0; i < n_; ++i) {
      states_[i] = AddLine<typename N::Sum>(constants[i], arrays_.f_rows(), i, &filtered_[t * n_]);
    }
    return rest + left;
  }

  // ---------------------------------------------------------------------------------------------
  // Backward

  void Backward(Vectors<P>& v) {
    const System& system = f_.system();
    const int64_t last = system.num_steps - 1;
    int64_t rest = rests_.size() - 1;
    states_.Clear();  // minus the multiplier of the last state
    for (int64_t t = last; t >= 0; --t) {
      if (t < last) rest = MoveBack(t, v, rest);
      WriteStates(t, &v.x[t * n_]);
      RestoreAll(t, v);
    }
    std::copy_n(mu_.data(), system.initial_columns, v.z.data());
    std::copy_n(rho_.data(), system.diffuse_columns, v.delta.data());
  }

  int64_t MoveBack(int64_t t, Vectors<P>& v, int64_t rest) {
    const FactoredStep<N>& step = f_.step(t);
    arrays_.LoadTransition(t);
    const int64_t kept = f_.step(t + 1).coordinates, left = step.turned() - kept;
    rest -= left;
    std::copy_n(&rests_[rest], left, &mu_[kept]);
    for (int64_t i = step.last_reflection; i-- > step.first_reflection;) {
      TurnBack(f_.reflection(i), f_.weights(), mu_.data(), 1, 1);
    }
    std::copy_n(&mu_[step.known_coordinates], step.transition_noises, v.u.data() + layout_.u(t));
    // F' of the multiplier, whose former numbers the next step's x has no use for.
    P* const moved = &filtered_[(t + 1) * n_];
    for (int64_t j = 0; j < n_; ++j) {
      moved[j] = AddLine<typename N::Sum>(P{}, arrays_.f_columns(), j, states_.data());
    }
    std::copy_n(moved, n_, states_.data());
    return rest;
  }

  void WriteStates(int64_t t, P* x) {
    const FactoredStep<N>& step = f_.step(t);
    std::copy_n(&filtered_[t * n_], n_, x);
    AddToRows<N>(n_, step.known_coordinates, f_.columns(step.known_x), f_.packs(), mu_.data(), x);
    AddToRows<N>(n_, step.known_directions, f_.columns(step.known_d), f_.packs(), rho_.data(), x);
  }

  void RestoreAll(int64_t t, Vectors<P>& v) {
    const FactoredStep<N>& step = f_.step(t);
    if (step.first_elimination < step.last_elimination) {
      arrays_.LoadObservation(t);
      P* const e = v.e.data() + layout_.e(t);
      for (int64_t i = step.last_elimination; i-- > step.first_elimination;) {
        const Elimination<N>& made = f_.elimination(i);
        const int64_t a = i - step.first_elimination, at = layout_.y(t) + a;
        v.y[at] = MultiplierOf(step, made, a, v.y.data() + layout_.y(t), weights_[at]);
        Restore(made, innovations_[at]);
        const bool is_left = made.kind == Elimination<N>::Kind::kSkipped;
        if (made.has_noise && !is_left) e[a] = mu_[made.coordinates - 1];
      }
      std::copy_n(&mu_[step.coordinates], step.noises, e);
    }
    P* const r = &v.r[t * n_];
    for (int64_t i = 0; i < n_; ++i) r[i] = states_[i] = states_[i] + r[i];
  }

  // (w + x_c' adjoint - sum of the later elements') / s; takes h of it from the adjoint.
  P MultiplierOf(const FactoredStep<N>& step, const Elimination<N>& made, int64_t a,
                 const P* multipliers, const P& weight) {
    if (made.kind == Elimination<N>::Kind::kSkipped) return P{};
    const P* const column = f_.columns(made.column);
    P sum = weight;
    AddToColumns<N>(1, n_, 1, column, 0, states_.data(), &sum);
    if (!f_.system().is_diagonal) {
      const int64_t rows = step.last_elimination - step.first_elimination;
      for (int64_t b = a + 1; b < rows; ++b) {
        sum = Accumulate(sum, Spread(-N::Get(column + f_.packs(), b)), multipliers[b]);
      }
    }
    const P multiplier = sum * Spread(N::Of(1.0) / made.scale);
    AddLineTo<typename N::Sum>(arrays_.h_rows(), made.row, -multiplier, states_.data());
    return multiplier;
  }

  void Restore(const Elimination<N>& made, const P& innovation) {
    if (made.kind == Elimination<N>::Kind::kDiffuse) return RestoreDirection(made, innovation);
    if (made.kind == Elimination<N>::Kind::kSkipped) return;
    mu_[made.coordinates - 1] = mu_[0];
    mu_[0] = innovation;
    TurnBack(made.reflection, f_.weights(), mu_.data(), 1, 1);
  }
  void RestoreDirection(const Elimination<N>& made, const P& innovation) {
    for (int64_t j = made.directions - 1; j > made.direction; --j) rho_[j] = rho_[j - 1];
    P own = innovation;
    own = own - DotScalars<N>(made.coordinates, f_.scalars(made.noise_row), mu_.data());
    const S* const multipliers = f_.scalars(made.multipliers);
    for (int64_t j = 0; j < made.directions; ++j) {
      if (j != made.direction) own = Accumulate(own, Spread(-multipliers[j]), rho_[j]);
    }
    rho_[made.direction] = own;
  }

  const Factorization<N>& f_;
  const Layout& layout_;
  StepArrays arrays_;
  const int64_t n_;
  Buffer<P> states_;  // a; backward minus the multiplier
  Buffer<P> mu_, rho_;
  Buffer<P> noises_;  // what is known of the rows of S e
  Buffer<P> filtered_, innovations_, weights_;
  Buffer<P> rests_;  // coordinates that a step in time leaves
  Clash clashes_[kLanes];
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MEANS_H_
