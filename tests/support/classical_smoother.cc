#include "tests/support/classical_smoother.h"

#include <algorithm>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <span>

namespace blockd::test {
namespace {

// Some 230 decimal digits.
using WideNumber = boost::multiprecision::number<
    boost::multiprecision::cpp_bin_float<768, boost::multiprecision::digit_base_2>,
    boost::multiprecision::et_off>;

// Column-major.
template <typename Number>
struct WideMatrix {
  WideMatrix(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns)) {}
  WideMatrix(int64_t rows, int64_t columns, const double* from)
      : rows(rows), columns(columns), values(from, from + rows * columns) {}
  Number& operator()(int64_t i, int64_t j) { return values[j * rows + i]; }
  const Number& operator()(int64_t i, int64_t j) const { return values[j * rows + i]; }

  int64_t rows, columns;
  std::vector<Number> values;
};

template <typename Number>
WideMatrix<Number> operator*(const WideMatrix<Number>& a, const WideMatrix<Number>& b) {
  WideMatrix<Number> c(a.rows, b.columns);
  for (int64_t j = 0; j < b.columns; ++j) {
    for (int64_t k = 0; k < a.columns; ++k) {
      if (b(k, j) == 0) continue;
      for (int64_t i = 0; i < a.rows; ++i) {
        if (a(i, k) != 0) c(i, j) += a(i, k) * b(k, j);
      }
    }
  }
  return c;
}

template <typename Number>
WideMatrix<Number> operator+(WideMatrix<Number> a, const WideMatrix<Number>& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}

template <typename Number>
WideMatrix<Number> operator-(WideMatrix<Number> a, const WideMatrix<Number>& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] -= b.values[i];
  return a;
}

template <typename Number>
WideMatrix<Number> Transposed(const WideMatrix<Number>& a) {
  WideMatrix<Number> t(a.columns, a.rows);
  for (int64_t j = 0; j < a.columns; ++j) {
    for (int64_t i = 0; i < a.rows; ++i) t(j, i) = a(i, j);
  }
  return t;
}

template <typename Number>
WideMatrix<Number> At(const ModelArray& array, int64_t step, int64_t rows, int64_t columns) {
  if (array.values.empty()) return WideMatrix<Number>(rows, columns);
  return {rows, columns, array.At(step, rows * columns)};
}

// An element of y whose noise is independent of those before it: y = h' x + e.
template <typename Number>
struct Element {
  WideMatrix<Number> h{0, 0};  // nx x 1
  Number y{}, variance{};
  int64_t row = 0;
  // Its update's:
  WideMatrix<Number> gain{0, 0};
  Number innovation{}, innovation_variance{};
};

// The elements of y that are observed, the noise of each made independent of those before.
template <typename Number>
std::vector<Element<Number>> ElementsOf(const SmoothParams& params, int64_t series, int64_t step) {
  const int64_t n = params.state_size, ny = params.observation_size;
  const double* const y = params.observations.data() + (series * params.num_steps + step) * ny;
  const WideMatrix<Number> h = At<Number>(params.observation, step, ny, n);
  const WideMatrix<Number> all_r = At<Number>(params.observation_covariance, step, ny, ny);
  const WideMatrix<Number> d = At<Number>(params.observation_offset, step, ny, 1);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < ny; ++i) {
    if (!std::isnan(y[i])) rows.push_back(i);
  }
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<Element<Number>> elements;
  WideMatrix<Number> r(count, count);
  for (int64_t i = 0; i < count; ++i) {
    // The lower triangle counts.
    for (int64_t j = 0; j < count; ++j) {
      r(i, j) = rows[i] >= rows[j] ? all_r(rows[i], rows[j]) : all_r(rows[j], rows[i]);
    }
    Element<Number> element;
    element.h = WideMatrix<Number>(n, 1);
    element.row = rows[i];
    element.y = Number(y[rows[i]]) - d(rows[i], 0);
    for (int64_t j = 0; j < n; ++j) element.h(j, 0) = h(rows[i], j);
    elements.push_back(element);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Number& own = all_r(rows[i], rows[i]);
    if (r(i, i) <= own * Number(1e-40)) continue;  // no noise is left: the others keep theirs
    elements[i].variance = r(i, i);
    for (int64_t k = i + 1; k < count; ++k) {
      const Number factor = r(k, i) / r(i, i);
      for (int64_t j = 0; j < n; ++j) elements[k].h(j, 0) -= factor * elements[i].h(j, 0);
      elements[k].y -= factor * elements[i].y;
      for (int64_t j = i + 1; j < count; ++j) r(k, j) -= factor * r(i, j);
    }
  }
  return elements;
}

// The filter, one element after another, and the backward recursion of r and N (Durbin and Koopman,
// Time Series Analysis by State Space Methods, 2012, chapters 4 and 6), which no covariance need be
// inverted for.
template <typename Number>
class Recursion {
 public:
  Recursion(const SmoothParams& params, int64_t series, const Number& diffuse_variance)
      : params_(params),
        series_(series),
        n_(params.state_size),
        diffuse_variance_(diffuse_variance),
        identity_(n_, n_) {
    for (int64_t i = 0; i < n_; ++i) identity_(i, i) = 1;
    WideMatrix<Number> x(n_, 1), p(n_, n_);
    for (int64_t i = 0; i < n_ && params.diffuse; ++i) p(i, i) = diffuse_variance;
    if (!params.diffuse) {
      x = {n_, 1, params.initial_mean.data()};
      p = {n_, n_, params.initial_covariance.data()};
      const int64_t directions = std::ssize(params.initial_diffuse) / n_;
      const WideMatrix<Number> g(n_, directions, params.initial_diffuse.data());
      for (int64_t i = 0; i < n_; ++i) {
        for (int64_t j = 0; j < n_; ++j) {
          for (int64_t k = 0; k < directions; ++k) p(i, j) += diffuse_variance * g(i, k) * g(j, k);
        }
      }
    }
    most_.resize(static_cast<size_t>(n_));
    for (int64_t t = 0; t < params.num_steps; ++t) {
      steps_.push_back({x, p, x, p, ElementsOf<Number>(params, series, t)});
      for (Element<Number>& element : steps_.back().elements) Update(element, x, p);
      steps_.back().filtered_x = x;
      steps_.back().filtered = p;
      if (t + 1 == params.num_steps) break;
      const WideMatrix<Number> f = At<Number>(params.transition, t, n_, n_);
      x = f * x + At<Number>(params.transition_offset, t, n_, 1);
      p = f * p * Transposed(f) + At<Number>(params.transition_covariance, t, n_, n_);
    }
  }

  const Number& log_likelihood() const { return log_likelihood_; }

  void Smooth(ClassicalSmoother* to) const {
    const int64_t steps = params_.num_steps;
    WideMatrix<Number> r(n_, 1), n(n_, n_);
    to->means.resize(static_cast<size_t>(n_ * steps));
    to->covariances.resize(static_cast<size_t>(n_ * n_ * steps));
    to->lag_one.resize(static_cast<size_t>(n_ * n_ * (steps - 1)));
    const int64_t ny = params_.observation_size;
    for (auto* all : {&to->predicted_means, &to->filtered_means}) all->resize(to->means.size());
    for (auto* all : {&to->predicted_covariances, &to->filtered_covariances}) {
      all->resize(to->covariances.size());
    }
    for (auto* all : {&to->state_disturbances, &to->state_disturbance_variances}) {
      all->resize(static_cast<size_t>(n_ * (steps - 1)));
    }
    for (auto* all : {&to->innovations, &to->observation_means, &to->observation_disturbances,
                      &to->observation_disturbance_variances}) {
      all->assign(static_cast<size_t>(ny * steps), std::nanl(""));
    }
    to->observation_covariances.resize(static_cast<size_t>(ny * ny * steps));
    to->log_likelihood_steps.resize(static_cast<size_t>(steps));
    for (int64_t t = steps - 1; t >= 0; --t) {
      const Step& step = steps_[static_cast<size_t>(t)];
      if (t + 1 < steps) {
        const WideMatrix<Number> f = At<Number>(params_.transition, t, n_, n_);
        const WideMatrix<Number>& next = steps_[static_cast<size_t>(t + 1)].p;
        Copy((identity_ - next * n) * f * step.filtered, &to->lag_one[t * n_ * n_]);
        const WideMatrix<Number> q = At<Number>(params_.transition_covariance, t, n_, n_);
        Copy(q * r, &to->state_disturbances[t * n_]);
        CopyDiagonal(q * n * Transposed(q), &to->state_disturbance_variances[t * n_]);
        r = Transposed(f) * r;
        n = Transposed(f) * n * f;
      }
      for (auto element = step.elements.rbegin(); element != step.elements.rend(); ++element) {
        if (element->gain.rows == 0) continue;
        const WideMatrix<Number> keep = identity_ - element->gain * Transposed(element->h);
        r = Transposed(keep) * r;
        n = Transposed(keep) * n * keep;
        for (int64_t i = 0; i < n_; ++i) {
          const Number weight = element->h(i, 0) / element->innovation_variance;
          r(i, 0) += weight * element->innovation;
          for (int64_t j = 0; j < n_; ++j) n(i, j) += weight * element->h(j, 0);
        }
      }
      const WideMatrix<Number> x = step.x + step.p * r, v = step.p - step.p * n * step.p;
      Copy(x, &to->means[t * n_]);
      Copy(v, &to->covariances[t * n_ * n_]);
      Copy(step.x, &to->predicted_means[t * n_]);
      Copy(step.p, &to->predicted_covariances[t * n_ * n_]);
      Copy(step.filtered_x, &to->filtered_means[t * n_]);
      Copy(step.filtered, &to->filtered_covariances[t * n_ * n_]);
      WriteObservations(t, x, v, to);
      WriteInnovations(t, to);
    }
  }

  // The variance that a diffuse direction has; nothing else is nearly as large.
  bool IsDiffuse(const Number& variance) const {
    return diffuse_variance_ > 0 && variance > diffuse_variance_ * Number(1e-40);
  }

 private:
  struct Step {
    WideMatrix<Number> x, p;                  // predicted
    WideMatrix<Number> filtered_x, filtered;  // after its observations
    std::vector<Element<Number>> elements;
  };

  // Noises are the rest of the observations, which so many digits hold.
  void WriteObservations(int64_t t, const WideMatrix<Number>& x, const WideMatrix<Number>& v,
                         ClassicalSmoother* to) const {
    const int64_t ny = params_.observation_size;
    const WideMatrix<Number> h = At<Number>(params_.observation, t, ny, n_);
    const WideMatrix<Number> r = At<Number>(params_.observation_covariance, t, ny, ny);
    const WideMatrix<Number> means = h * x + At<Number>(params_.observation_offset, t, ny, 1);
    const WideMatrix<Number> seen = h * v * Transposed(h);
    Copy(means, &to->observation_means[t * ny]);
    Copy(seen + r, &to->observation_covariances[t * ny * ny]);
    for (const Element<Number>& element : steps_[static_cast<size_t>(t)].elements) {
      const int64_t i = element.row, at = t * ny + i;
      const Number y = params_.observations[static_cast<size_t>(series_ * steps() * ny + at)];
      to->observation_disturbances[at] = static_cast<long double>(y - means(i, 0));
      to->observation_disturbance_variances[at] = static_cast<long double>(r(i, i) - seen(i, i));
    }
  }
  void WriteInnovations(int64_t t, ClassicalSmoother* to) const {
    Number sum = 0;
    for (const Element<Number>& element : steps_[static_cast<size_t>(t)].elements) {
      if (element.gain.rows == 0) continue;
      using std::log;
      using std::sqrt;
      const Number& variance = element.innovation_variance;
      const Number scaled = element.innovation / sqrt(variance);
      const Number two_pi = 2 * boost::math::constants::pi<Number>();
      sum -= (log(two_pi * variance) + scaled * scaled) / 2;
      if (IsDiffuse(variance)) {
        sum += log(two_pi * diffuse_variance_) / 2;
      } else {
        to->innovations[t * params_.observation_size + element.row] =
            static_cast<long double>(scaled);
      }
    }
    to->log_likelihood_steps[t] = static_cast<long double>(sum);
  }
  int64_t steps() const { return params_.num_steps; }

  static void Copy(const WideMatrix<Number>& from, long double* to) {
    for (const Number& value : from.values) *to++ = static_cast<long double>(value);
  }

  static void CopyDiagonal(const WideMatrix<Number>& from, long double* to) {
    for (int64_t i = 0; i < from.rows; ++i) *to++ = static_cast<long double>(from(i, i));
  }

  void Update(Element<Number>& element, WideMatrix<Number>& x, WideMatrix<Number>& p) {
    const WideMatrix<Number> ph = p * element.h;
    element.innovation = element.y;
    element.innovation_variance = element.variance;
    Number terms = element.variance;
    for (int64_t i = 0; i < n_; ++i) {
      element.innovation -= element.h(i, 0) * x(i, 0);
      element.innovation_variance += element.h(i, 0) * ph(i, 0);
      most_[i] = std::max(most_[i], p(i, i));
      terms += element.h(i, 0) * element.h(i, 0) * most_[i];
    }
    // Known exactly before.
    if (element.innovation_variance <= terms * Number(1e-140)) return;
    element.gain = ph;
    for (Number& value : element.gain.values) value /= element.innovation_variance;
    for (int64_t i = 0; i < n_; ++i) x(i, 0) += element.gain(i, 0) * element.innovation;
    const WideMatrix<Number> keep =
        identity_ - element.gain * Transposed(element.h);  // Joseph's form
    p = keep * p * Transposed(keep);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        p(i, j) += element.gain(i, 0) * element.variance * element.gain(j, 0);
      }
    }
    const Number two_pi = 2 * boost::math::constants::pi<Number>();
    using std::log;
    log_likelihood_ -= (log(two_pi * element.innovation_variance) +
                        element.innovation * element.innovation / element.innovation_variance) /
                       2;
  }

  const SmoothParams& params_;
  const int64_t series_, n_;
  const Number diffuse_variance_;
  WideMatrix<Number> identity_;
  std::vector<Number> most_;  // variances that the states have had
  std::vector<Step> steps_;
  Number log_likelihood_ = 0;
};

template <typename Number>
void Smooth(const SmoothParams& params, int64_t series, long double diffuse_variance,
            ClassicalSmoother* to) {
  const Recursion<Number> recursion(params, series, Number(diffuse_variance));
  recursion.Smooth(to);
  to->log_likelihood = static_cast<long double>(recursion.log_likelihood());
  Number limit = recursion.log_likelihood();
  const int64_t directions =
      params.diffuse ? params.state_size : std::ssize(params.initial_diffuse) / params.state_size;
  if (directions > 0) {
    using std::log;
    limit += Number(directions) / 2 *
             log(2 * boost::math::constants::pi<Number>() * Number(diffuse_variance));
  }
  to->diffuse_log_likelihood = static_cast<long double>(limit);
}

}  // namespace

ClassicalSmoother::ClassicalSmoother(const SmoothParams& params, int64_t series,
                                     long double diffuse_variance, Digits digits) {
  if (digits == Digits::k230) {
    Smooth<WideNumber>(params, series, diffuse_variance, this);
  } else {
    Smooth<long double>(params, series, diffuse_variance, this);
  }
}

}  // namespace blockd::test
