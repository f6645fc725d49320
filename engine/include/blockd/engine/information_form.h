// A matrix in information form, and what a device makes it of: that of a chain of states
// x(t+1) = F(t) x(t) + w(t) of which y(t) = H(t) x(t) + v(t) are observed, with w ~ N(0, Q) and
// v ~ N(0, R). Of the whiteners U(t) = inv(chol(Q(t))) and W(t) = inv(chol(R(t))) H(t), and with
// V(t) = U(t) F(t),
//
//   A(t,t)   = V(t)' V(t)  (of the step from t)  + W(t)' W(t)  + U(t-1)' U(t-1)  (of the step to
//   t), A(t+1,t) = -U(t)' V(t).
//
// Plain data: no ownership, no threads.
#ifndef BLOCKD_ENGINE_INFORMATION_FORM_H_
#define BLOCKD_ENGINE_INFORMATION_FORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "blockd/engine/block_tridiagonal.h"

namespace blockd {

// Host memory that the caller keeps: column-major matrices of scalars of the shape, one behind the
// other.
struct InformationForm {
  Shape shape;                        // N steps, states of n
  const void* transitions = nullptr;  // F: N-1, n x n; or one
  const void* whiteners = nullptr;    // U: N-1 lower triangles, n x n with zeros above; or one
  bool one_transition = false, one_whitener = false;  // for all steps
  const void* initial = nullptr;                      // U of x(0); null: nothing is known of it
  const void* observations = nullptr;                 // W: N, rows x n
  int64_t rows = 0;                                   // those that a step lacks are zero

  // The form of the matrix that the device makes: full blocks, subdiagonal.
  MatrixForm matrix() const { return {.shape = shape}; }
};

// INVALID_ARGUMENT unless CheckShape holds, there are at most kMaxBlockSize rows, and what is
// needed is there.
absl::Status CheckInformation(const InformationForm& information);

// Blocks [first, first + count) of the diagonal of such a matrix, and the couplings below them:
// what they are made of, and where they go. Device memory.
struct InformationSteps {
  static constexpr int64_t kMost = 32768;  // at once

  Shape shape;  // of the whole matrix
  int64_t first = 0, count = 0;
  const void* transitions = nullptr;                  // F(first) and those that follow
  const void* whiteners = nullptr;                    // U(first), likewise
  bool one_transition = false, one_whitener = false;  // of which there is one
  const void* to_first = nullptr;                     // U of the step to `first`, or null
  const void* observations = nullptr;                 // W(first), likewise
  int64_t rows = 0;
  void* products = nullptr;  // memory for moves() blocks
  void* diagonal = nullptr;  // A(first,first) and those that follow; their lower triangles
  void* coupling = nullptr;  // A(first+1,first), likewise

  // The number of these steps that have a coupling.
  int64_t moves() const { return first + count < shape.num_blocks ? count : count - 1; }
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_INFORMATION_FORM_H_
