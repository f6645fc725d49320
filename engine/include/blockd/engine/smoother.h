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
// Steps are shared by several threads, in portions that depend on the model alone: results have the
// same bits for any number of threads.
//
// Immutable once it is made, thread-safe. The model's arrays outlive it.
#ifndef BLOCKD_ENGINE_SMOOTHER_H_
#define BLOCKD_ENGINE_SMOOTHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/doubles.h"
#include "blockd/engine/information_form.h"
#include "blockd/engine/smooth_model.h"
#include "blockd/engine/step_pool.h"

namespace blockd {

// A of one system: what the model makes several times is there once, in a palette.
struct SystemMatrix {
  MatrixForm form;
  Doubles diagonal, coupling;
  std::vector<uint32_t> diagonal_index, coupling_index;  // empty: no palette

  BlockTridiagonalView view() const;
};

// The input from which a device makes one system's A. The form points into the smoother, the
// model's arrays and the observations.
struct WhitenedSystem {
  InformationForm form;
  Doubles observations;
};

class Smoother {
 public:
  // Who works on it, and whether to go on: asked before each portion, on any of the threads. What
  // it says but OK is what the call says. The pool outlives the smoother.
  struct Workers {
    StepPool* pool = nullptr;
    std::function<absl::Status()> wanted;
  };
  // INVALID_ARGUMENT with SingularCovariance. `measured` has an information form.
  static absl::StatusOr<std::unique_ptr<Smoother>> Make(const MeasuredSmooth& measured,
                                                        Workers workers);

  // False if x(1) is diffuse in other directions than those of states.
  static bool HasInformationForm(const SmoothParams& params);
  // The scratch memory of each thread, in doubles.
  static int64_t ScratchDoubles(const SmoothParams& params);

  const SmoothParams& params() const { return params_; }
  const MissingPatterns& patterns() const { return *patterns_; }
  size_t systems() const { return patterns_->systems.size(); }

  // Series are of one system. Where numbers are of K series, each series' are at its place.
  //
  // Into `matrix`, which is empty.
  absl::Status Assemble(size_t system, SystemMatrix* matrix) const;
  // True if a device with memory of its own should make A: its input is no larger than A, and the
  // host would take longer for A's products of nx rows, of an F or a Q one a step, than for sending
  // them.
  bool IsForDevice() const;
  // Instead of Assemble, into `whitened`, which is empty and stays where it is.
  absl::Status Whiten(size_t system, WhitenedSystem* whitened) const;
  // b: nx x T x K.
  absl::Status RightHandSides(std::span<const int64_t> series, double* b) const;

  // The smoother makes all of the following, wanted or not.
  //
  // log p(y) with all constants, of the means and log det A: as the proto's
  // SmoothHead.log_likelihood. Sums of squares at the means, so that nothing cancels.
  void LogLikelihoods(std::span<const int64_t> series, const double* means, double log_determinant,
                      double* values) const;
  // The states' variances, nx a step: as they are, or on the diagonals of blocks.
  struct Variances {
    const double* values = nullptr;
    int64_t step = 0, state = 1;  // how far two of them are apart
    double at(int64_t t, int64_t i) const { return values[t * step + i * state]; }
  };
  // Estimates of a series' errors from above, of means that were made of a factorization with that
  // growth. Rounding of A = sum w'w, of the whitened equations w, changes no variance by a larger
  // share than |inv(L) dA inv(L)'| <= sum |dA(i,j)| sd(i) sd(j), and no mean by more deviations
  // than sum |r(i)| sd(i) of what it leaves in the equations.
  SmoothErrors Errors(int64_t series, const double* means, const Variances& variances,
                      double growth) const;
  // The variances (R - H Z(t,t) H')(i,i) of y - H x - d, ny x T, of the blocks Z(t,t) = Cov(x(t)).
  // NaN where y is missing, and where rounding leaves nothing.
  Doubles ResidualVariances(size_t system, const double* blocks) const;
  // (y - H x - d)(i) over the root of its variance: ny x T x K.
  void Residuals(std::span<const int64_t> series, const double* means, const double* variances,
                 double* residuals) const;

 private:
  // R of the observed elements of one step, or of all where it is constant.
  struct Observed {
    int64_t step = 0;
    uint32_t mask = 0;
    int64_t place = 0;  // in r_
    double log_determinant = 0;
    double condition = 1;  // of its whitener, as InvertTriangle says it
  };
  // Products that all steps share; empty where they differ.
  struct Alike {
    Doubles to;              // inv(Q)
    Doubles from, coupling;  // F' inv(Q) F and -inv(Q) F
  };
  struct Scratch;       // of one worker
  class FirstSingular;  // the same one whoever meets it first
  struct Sums;          // of the log-likelihood
  struct Roundings;     // of its errors

  Smoother(const MeasuredSmooth& measured, Workers workers)
      : params_(measured.params),
        patterns_(measured.patterns),
        has_diagonal_noise_(measured.has_diagonal_noise),
        workers_(std::move(workers)) {}

  // The steps [first, last) of a portion of so many steps, and how many such portions there are.
  struct Steps {
    int64_t first = 0, last = 0;
  };
  int64_t PortionSteps() const;
  int64_t Portions(int64_t steps) const { return (steps - 1) / PortionSteps() + 1; }
  Steps PortionAt(int64_t portion, int64_t steps) const;
  // Work for each i in [0, turns), with memory of whoever does it.
  using Turn = absl::FunctionRef<void(int64_t i, Scratch& scratch)>;
  void Run(int64_t turns, Turn turn) const;
  // The same; none is begun that is not wanted.
  absl::Status Share(int64_t turns, Turn turn) const;
  // Share for all portions of so many steps.
  using Portion = absl::FunctionRef<void(int64_t step, Scratch& scratch)>;
  absl::Status ShareSteps(int64_t steps, Portion portion) const;
  // For all portions of all series.
  using SeriesPortion = absl::FunctionRef<void(int64_t place, const Steps&, Scratch&)>;
  void RunSeries(std::span<const int64_t> series, SeriesPortion portion) const;

  absl::Status FactorTransitions();
  // Where the whiteners of R will be. The place in observed_, for each R, of that which has all
  // rows; or -1.
  std::vector<int64_t> PlaceObserved();
  absl::Status FactorObservations();
  // Writes the whitener of the observed rows and columns of R, and what is known of it; the row
  // where R is singular.
  std::optional<int64_t> FactorObserved(std::span<const int32_t> rows, Observed* observed,
                                        double* whitener) const;
  absl::Status FactorInitial();

  const MissingPatterns::Mask& MaskAt(uint32_t mask) const { return patterns_->masks[mask]; }
  const MissingPatterns::Mask& MaskAt(size_t system, int64_t step) const {
    return MaskAt(patterns_->systems[system][static_cast<size_t>(step)]);
  }
  bool IsWhole(const MissingPatterns::Mask& mask) const {
    return std::ssize(mask.rows) == params_.observation_size;
  }
  size_t SystemOf(int64_t series) const {
    return patterns_->system_of_series[static_cast<size_t>(series)];
  }
  const Observed& ObservedAt(size_t system, int64_t step) const;
  // A diagonal one is its diagonal.
  const double* WhitenerOf(const Observed& observed) const { return r_.data() + observed.place; }
  int64_t WhitenerDoubles(int64_t rows) const { return has_diagonal_noise_ ? rows : rows * rows; }
  // B = U B and U' U b of the whitener U; B has as many rows as are observed.
  void Whiten(const Observed& observed, double* b, int64_t columns) const;
  void Weigh(const Observed& observed, double* b) const;
  const double* F(int64_t step) const;
  const double* H(int64_t step) const;
  const double* WhitenerOfQ(int64_t step) const;

  const Alike& WhatIsAlike() const;
  // F' inv(Q) F, of which the lower triangle is written, and -inv(Q) F.
  void WriteTransition(int64_t step, double* from, double* coupling) const;
  // A(t,t); `from` is of its step.
  void WriteDiagonal(size_t system, int64_t step, const double* from, Scratch& scratch,
                     double* d) const;
  void AddObservations(size_t system, int64_t step, Scratch& scratch, double* d) const;
  // W = U H of the elements that are observed, and how many there are.
  int64_t WhitenObservations(size_t system, int64_t step, double* w) const;
  absl::Status AssembleEach(size_t system, SystemMatrix* matrix) const;
  absl::Status AssemblePalette(size_t system, SystemMatrix* matrix) const;

  // The rows of H that are observed.
  void CopyObservedRows(const MissingPatterns::Mask& mask, int64_t step, double* rows) const;
  // u = inv(Q) c of the step.
  void WeighOffset(int64_t step, double* u) const;
  void WriteRightHandSide(int64_t series, const Steps& steps, Scratch& scratch, double* b) const;
  Sums LikelihoodSums(int64_t series, const Steps& steps, Scratch& scratch, const double* x) const;
  Roundings RoundingsOf(int64_t series, const Steps& steps, const double* x,
                        const Variances& variances) const;

  const SmoothParams params_;
  const std::shared_ptr<const MissingPatterns> patterns_;
  const bool has_diagonal_noise_;
  const Workers workers_;
  // Whiteners U = inv(L) of covariances C = L L', so that inv(C) = U' U.
  Doubles q_;                     // of one Q or of all
  double q_log_determinant_ = 0;  // of all steps
  Doubles q_condition_;           // of one Q or of all
  std::vector<Observed> observed_;
  std::vector<int64_t> observed_at_;  // S x T, into observed_; empty: by the mask, or by the step
  Doubles r_;                         // of observed_
  Doubles p_;  // of P, with rows and columns of 0 for diffuse states; empty: all are
  int64_t diffuse_states_ = 0;
  double p_log_determinant_ = 0, p_condition_ = 1;
  mutable absl::once_flag alike_made_;
  mutable Alike alike_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTHER_H_
