// Smoothing of series with a linear Gaussian model, on the server: means and covariances of the
// states given all observations, the likelihood, and samples.
//
//     x(1) ~ N(m, P), or anything (diffuse);
//     x(t+1) = F x(t) + c + w,  w ~ N(0, Q)   t = 1 .. T-1
//     y(t)   = H x(t) + d + v,  v ~ N(0, R)   t = 1 .. T
//
// All matrices are column-major. Values: thread-compatible.
#ifndef BLOCKD_CLIENT_SMOOTH_H_
#define BLOCKD_CLIENT_SMOOTH_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "blockd/client/factor_handle.h"
#include "blockd/client/results.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

// One matrix for all steps, or one a step, one after another.
struct ModelArray {
  std::span<const double> values{};  // empty: absent
  bool per_step = false;
};

struct StateSpaceModel {
  int64_t num_steps = 0;                // T >= 1
  int64_t state_size = 0;               // nx
  int64_t observation_size = 0;         // ny
  ModelArray transition{};              // F: nx x nx, T-1 steps; these two may be absent if T = 1
  ModelArray transition_covariance{};   // Q: nx x nx, symmetric, positive semidefinite
  ModelArray observation{};             // H: ny x nx, T steps
  ModelArray observation_covariance{};  // R: ny x ny, as Q
  ModelArray transition_offset{};       // c: nx, T-1 steps; absent: 0
  ModelArray observation_offset{};      // d: ny, T steps; absent: 0
  std::span<const double> initial_mean{};        // m: nx; both absent: diffuse
  std::span<const double> initial_covariance{};  // P: nx x nx, as Q
  // G: nx x q, with m and P: x(1) = m + u + G delta, u ~ N(0, P), and nothing is known of delta.
  std::span<const double> initial_diffuse{};
};

enum class SmoothedCovariances {
  kNone,
  kVariances,  // their diagonals
  kFull,
};

struct SmoothOptions {
  SmoothedCovariances covariances = SmoothedCovariances::kFull;
  bool lag_one_covariances = false;  // Cov(x(t+1), x(t))
  bool log_likelihood = true;
  bool residuals = false;   // standardized
  int64_t num_samples = 0;  // of each series
  uint64_t seed = 0;
  // The server keeps the factorizations: another Smooth with `keep`, of the same model and the same
  // elements missing, only solves. SmoothResult::handles gives them back.
  bool keep = false;
  absl::Duration lease{};  // as FactorOptions::lease; with keep
  Priority priority = Priority::kInteractive;
  // Only this one. Default: the first whose numbers are good enough, as estimated.
  v1::SmoothForm form = v1::SMOOTH_FORM_UNSPECIFIED;
  // Results beside these: the filter's, new observations, disturbances. Without keep; in any order.
  std::vector<v1::SmoothOutput> outputs{};
  absl::Duration timeout{};  // zero: ClientOptions::timeout
};

// Results that were not asked for are empty.
struct SmoothResult {
  int64_t num_series = 1;                      // K
  int64_t num_systems = 1;                     // S: distinct patterns of missing elements
  std::vector<uint32_t> system_of_series;      // K: whose covariances are a series' own
  std::vector<double> means;                   // nx x T x K
  std::vector<double> covariances;             // nx x nx x T x S, or nx x T x S
  std::vector<double> lag_one_covariances;     // nx x nx x (T-1) x S
  std::vector<double> standardized_residuals;  // ny x T x K; NaN where y is missing
  std::vector<double> samples;                 // nx x T x num_samples x K
  std::vector<double> log_likelihood;          // K
  // By SmoothOptions::outputs, in the shapes that v1::SmoothOutput says.
  std::map<v1::SmoothOutput, std::vector<double>> outputs;
  std::vector<int64_t> observed;            // K: elements that are not missing
  std::vector<FactorHandle> handles;        // S, with keep
  bool found = false;                       // all were held: nothing was factored
  std::vector<v1::SmoothedSystem> systems;  // S: form, and estimated errors
  double growth = 1;                        // these two as Conditioning has them
  double backward_error_bound = 0;
  v1::Cost cost;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SMOOTH_H_
