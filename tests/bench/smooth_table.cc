#include "tests/bench/smooth_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/must.h"

namespace blockd::bench {
namespace {

using client::SmoothedCovariances;
using client::SmoothOptions;
using client::SmoothResult;

constexpr double kQ = 0.1, kR = 0.5;  // Q = 0.1 I, R = 0.5 I, P = I, so that A is known at sight

struct Size {
  int64_t steps, states, observations;
  double goal;       // seconds of computing
  std::string peer;  // cuthbert 0.1.1 on one H200, parallel in time
};

// A stable model of numbers without a pattern, and observations of any kind.
class Model {
 public:
  explicit Model(const Size& size, bool per_step) : size_(size), per_step_(per_step) {
    const int64_t n = size.states, ny = size.observations;
    std::mt19937_64 random(static_cast<uint64_t>(n));
    std::normal_distribution<double> normal;
    const auto draw = [&](int64_t count, double deviation) {
      std::vector<double> values(static_cast<size_t>(count));
      for (double& value : values) value = deviation * normal(random);
      return values;
    };
    f_ = draw(n * n, 0.3 / std::sqrt(static_cast<double>(n)));
    for (int64_t i = 0; i < n; ++i) f_[i * (n + 1)] += 0.6;
    h_ = draw(ny * n, 1);
    m_ = draw(n, 1);
    y_ = draw(ny * size.steps, 2);
    q_ = Diagonal(n, kQ);
    r_ = Diagonal(ny, kR);
    p_ = Diagonal(n, 1);
    if (!per_step) return;
    for (std::vector<double>* array : {&f_, &q_}) Repeat(size.steps - 1, array);
    for (std::vector<double>* array : {&h_, &r_}) Repeat(size.steps, array);
  }

  client::StateSpaceModel view() const {
    client::StateSpaceModel view;
    view.num_steps = size_.steps;
    view.state_size = size_.states;
    view.observation_size = size_.observations;
    view.transition = {f_, per_step_};
    view.transition_covariance = {q_, per_step_};
    view.observation = {h_, per_step_};
    view.observation_covariance = {r_, per_step_};
    view.initial_mean = m_;
    view.initial_covariance = p_;
    return view;
  }
  const std::vector<double>& observations() const { return y_; }

  // The largest element of b - A x over the largest of b, and of I - A Z in some rows of blocks of
  // Z = inv(A), which the result has between neighbours. A is formed anew, block by block.
  double Error(const SmoothResult& result) const {
    const int64_t n = size_.states, ny = size_.observations, steps = size_.steps;
    const std::vector<double> gram = Gram(n, n, f_, 1 / kQ), seen = Gram(ny, n, h_, 1 / kR);
    double worst = 0, largest = 0;
    std::vector<double> r(static_cast<size_t>(n));
    const double* const x = result.means.data();
    for (int64_t t = 0; t < steps; ++t) {
      // H' inv(R) (y - H x) - inv(Q) w(t-1) + F' inv(Q) w(t), with P and m in place of the first w.
      std::fill(r.begin(), r.end(), 0.0);
      for (int64_t i = 0; i < ny; ++i) {
        double error = y_[t * ny + i];
        largest = std::max(largest, std::abs(error) / kR);
        for (int64_t j = 0; j < n; ++j) error -= h_[j * ny + i] * x[t * n + j];
        for (int64_t j = 0; j < n; ++j) r[j] += h_[j * ny + i] * error / kR;
      }
      for (int64_t i = 0; i < n; ++i) {
        r[i] -= t == 0 ? x[i] - m_[i] : Step(x, t - 1, i) / kQ;
        if (t + 1 == steps) continue;
        const double w = Step(x, t, i) / kQ;
        for (int64_t j = 0; j < n; ++j) r[j] += f_[j * n + i] * w;
      }
      for (const double value : r) worst = std::max(worst, std::abs(value));
    }
    worst /= largest;
    for (const int64_t t : {int64_t{0}, steps / 3, steps - 1}) {
      std::vector<double> product = Diagonal(n, -1);
      for (int64_t k = 0; k < n; ++k) {  // of the column k of Z(t-1..t+1, t)
        const double* const z = result.covariances.data() + (t * n + k) * n;
        for (int64_t i = 0; i < n; ++i) {
          double& sum = product[k * n + i];
          for (int64_t j = 0; j < n; ++j) {
            sum += seen[j * n + i] * z[j];
            if (t + 1 < steps) sum += gram[j * n + i] * z[j];
          }
          sum += z[i] * (t == 0 ? 1 : 1 / kQ);
          for (int64_t j = 0; j < n; ++j) {
            if (t + 1 < steps) {  // A(t,t+1) Z(t+1,t), with Z(t+1,t)(j,k)
              sum -= f_[i * n + j] / kQ * result.lag_one_covariances[(t * n + k) * n + j];
            }
            if (t > 0) {  // A(t,t-1) Z(t-1,t), with Z(t,t-1)(k,j)
              sum -= f_[j * n + i] / kQ * result.lag_one_covariances[((t - 1) * n + j) * n + k];
            }
          }
        }
      }
      for (const double value : product) worst = std::max(worst, std::abs(value));
    }
    return worst;
  }

 private:
  static std::vector<double> Diagonal(int64_t n, double value) {
    std::vector<double> matrix(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) matrix[i * (n + 1)] = value;
    return matrix;
  }
  static void Repeat(int64_t times, std::vector<double>* array) {
    const std::vector<double> one = *array;
    for (int64_t t = 1; t < times; ++t) array->insert(array->end(), one.begin(), one.end());
  }
  // scale B' B, of the first rows x n of a model's array.
  static std::vector<double> Gram(int64_t rows, int64_t n, const std::vector<double>& b,
                                  double scale) {
    std::vector<double> gram(static_cast<size_t>(n * n));
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        double& sum = gram[j * n + i];
        for (int64_t k = 0; k < rows; ++k) sum += scale * b[i * rows + k] * b[j * rows + k];
      }
    }
    return gram;
  }
  // Element i of x(t+1) - F x(t).
  double Step(const double* x, int64_t t, int64_t i) const {
    const int64_t n = size_.states;
    double w = x[(t + 1) * n + i];
    for (int64_t j = 0; j < n; ++j) w -= f_[j * n + i] * x[t * n + j];
    return w;
  }

  const Size size_;
  const bool per_step_;
  std::vector<double> f_, h_, q_, r_, p_, m_, y_;
};

// A call, and what the server says of it.
struct Runs {
  Samples call, upload, compute, download;

  void Add(double seconds, const v1::Cost& cost) {
    call.seconds.push_back(seconds);
    upload.seconds.push_back(cost.upload_seconds());
    compute.seconds.push_back(cost.compute_seconds());
    download.seconds.push_back(cost.download_seconds());
  }
};

Runs Measure(const client::SolverClient& client, const Model& model, const SmoothOptions& options,
             int repetitions) {
  Runs runs;
  std::vector<SmoothResult> kept;  // whoever lets go of one gives its factorization back
  for (int i = -1; i < repetitions; ++i) {
    const double start = Now();
    SmoothResult result = Must(client.Smooth(model.view(), model.observations(), options));
    if (i >= 0) runs.Add(Now() - start, result.cost);
    if (options.keep) kept.push_back(std::move(result));
  }
  return runs;
}

}  // namespace

void AddSmoothRows(const client::SolverClient& client, bool quick, Table& table) {
  std::vector<Size> sizes = {{1000, 20, 10, 0.6e-3, "18.4 ms"},
                             {1000, 4, 2, 0.3e-3, "2.8 ms"},
                             {100'000, 4, 2, 1e-3, "8.3 ms"},
                             {100, 256, 128, 4e-3, "863 ms in sequence"}};
  if (quick) sizes = {{50, 5, 3, 1, "none"}};
  for (const Size& size : sizes) {
    for (const bool per_step : {false, true}) {
      const Model model(size, per_step);
      SmoothOptions options;
      options.lag_one_covariances = true;
      const SmoothResult checked = Must(client.Smooth(model.view(), model.observations(), options));
      const double error = model.Error(checked);
      if (!(error <= 1e-10)) Die(absl::StrCat("the answer is wrong by ", error));
      options.lag_one_covariances = options.log_likelihood = false;
      const int repetitions = quick ? 1 : size.steps > 10'000 || size.states > 100 ? 7 : 21;
      const Runs runs = Measure(client, model, options, repetitions);
      options.keep = true;  // and it is found again
      options.covariances = SmoothedCovariances::kNone;
      const Runs again = Measure(client, model, options, repetitions);
      const double compute = runs.compute.median();
      table.Add({.work = absl::StrFormat(
                     "Smooth T=%d nx=%d ny=%d, %s, means and covariances, compute", size.steps,
                     size.states, size.observations, per_step ? "arrays a step" : "constant"),
                 .ours = FormatSeconds(compute),
                 .reference = absl::StrFormat(
                     "%s the call, %s upload, %s download; new y of a kept model %s, %s compute; "
                     "cuthbert %s",
                     FormatSeconds(runs.call.median()), FormatSeconds(runs.upload.median()),
                     FormatSeconds(runs.download.median()), FormatSeconds(again.call.median()),
                     FormatSeconds(again.compute.median()), size.peer),
                 .goal = "<= " + FormatSeconds(size.goal),
                 .reached = compute <= size.goal,
                 .spread = runs.compute.spread()});
    }
  }
}

}  // namespace blockd::bench
