// The states of a linear Gaussian model given its observations, in information form. All terms of
// the density of x(1..T) given y that have x in them are
//
//   (x(1) - m)' inv(P) (x(1) - m) + sum w' inv(Q) w + sum v' inv(R) v,
//   w = x(t+1) - F x(t) - c,   v = y - H x - d, of the elements of y that are observed,
//
// which is x' A x - 2 b' x + ..., with A block-tridiagonal:
//
//   A(t,t)   = H' inv(R) H  + F' inv(Q) F (of the step from t)  + inv(Q) (of the step to t),
//   A(t+1,t) = -inv(Q) F,
//   b(t)     = H' inv(R) (y - d)  - F' inv(Q) c  + inv(Q) c (of the step to t),
//
// and inv(P), inv(P) m more at t = 1, unless x(1) is diffuse. Inverses are taken by Cholesky
// factors alone: H' inv(R) H is W' W, W = inv(chol(R)) H. Then x = inv(A) b, and blocks of inv(A)
// are its covariances (Rue and Held, Gaussian Markov Random Fields, 2005, chapter 2).
//
// Immutable once it is made, thread-safe. The model's arrays outlive it.
#ifndef BLOCKD_SERVER_CORE_SMOOTHER_SMOOTHER_H_
#define BLOCKD_SERVER_CORE_SMOOTHER_SMOOTHER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/status/statusor.h"
#include "blockd/engine/block_tridiagonal.h"
#include "server/core/smooth_request.h"
#include "server/core/smoother/missing_patterns.h"

namespace blockd::server {

// A of one system: what the model makes several times is there once, in a palette.
struct SystemMatrix {
  MatrixForm form;
  std::vector<double> diagonal, coupling;
  std::vector<uint32_t> diagonal_index, coupling_index;  // empty: no palette

  BlockTridiagonalView view() const;
};

class Smoother {
 public:
  // INVALID_ARGUMENT with SingularCovariance.
  static absl::StatusOr<std::unique_ptr<Smoother>> Make(const MeasuredSmooth& measured);

  const SmoothParams& params() const { return params_; }
  const MissingPatterns& patterns() const { return *patterns_; }
  size_t systems() const { return patterns_->systems.size(); }

  SystemMatrix Assemble(size_t system) const;
  // b of a series: nx x T.
  void RightHandSide(int64_t series, double* b) const;
  // log p(y) with all constants, of the means x and log det A: as the proto's
  // SmoothHead.log_likelihood. Sums of squares at the means, so that nothing cancels.
  double LogLikelihood(int64_t series, const double* x, double log_determinant) const;
  // The variances (R - H Z(t,t) H')(i,i) of y - H x - d, ny x T, of the blocks Z(t,t) = Cov(x(t)).
  // NaN where y is missing, and where rounding leaves nothing.
  std::vector<double> ResidualVariances(size_t system, const double* blocks) const;
  // (y - H x - d)(i) over the root of its variance: ny x T.
  void Residuals(int64_t series, const double* x, const double* variances, double* residuals) const;
  // Numbers of 256 bits, as text: of what the A of all systems depend on, and of that and what is
  // missing in one. Systems of one number have one A.
  std::string ModelFingerprint() const;
  std::string Fingerprint(const std::string& model, size_t system) const;

 private:
  // R of the observed elements, factored.
  struct Observed {
    std::vector<double> l;
    double log_determinant = 0;
  };
  struct Terms;  // of one transition

  explicit Smoother(const MeasuredSmooth& measured)
      : params_(measured.params), patterns_(measured.patterns) {}
  absl::Status FactorTransitions();
  absl::Status FactorObservations();
  absl::Status FactorObserved(uint32_t mask, int64_t step);
  absl::Status FactorInitial();

  const MissingPatterns::Mask& MaskAt(uint32_t mask) const { return patterns_->masks[mask]; }
  const Observed& ObservedAt(uint32_t mask, int64_t step) const;
  static const double* At(const ModelArray& array, int64_t step, int64_t size) {
    return array.values.data() + (array.per_step ? step * size : 0);
  }
  const double* F(int64_t step) const;
  const double* H(int64_t step) const;
  const double* FactorOfQ(int64_t step) const;
  // The rows of H that are observed.
  std::vector<double> ObservedRows(const MissingPatterns::Mask& mask, int64_t step) const;
  void AddObservations(uint32_t mask, int64_t step, double* d) const;
  Terms TermsOf(int64_t step) const;
  void AssembleEach(size_t system, SystemMatrix& matrix) const;
  void AssemblePalette(size_t system, SystemMatrix& matrix) const;
  // y - H x - d of the observed elements; without x: y - d.
  void Errors(int64_t series, int64_t step, const MissingPatterns::Mask& mask, const double* x,
              std::vector<double>& errors) const;

  const SmoothParams params_;
  const std::shared_ptr<const MissingPatterns> patterns_;
  std::vector<double> q_;         // Cholesky factors of Q, of one or of all steps
  double q_log_determinant_ = 0;  // of all steps
  absl::node_hash_map<std::pair<uint32_t, int64_t>, Observed> observed_;
  std::vector<double> p_;  // of P; empty: diffuse
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTHER_SMOOTHER_H_
