// Matrices in the caller's memory, as the client sends them.
//
// Plain data: nothing here owns memory, and every view is only read. What a view points to must
// stay valid and unchanged until the call that it was given to has returned.
#ifndef BLOCKD_CLIENT_SYSTEM_H_
#define BLOCKD_CLIENT_SYSTEM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "absl/status/status.h"

namespace blockd::client {

enum class Scalar : uint8_t { kFloat64, kFloat32 };

template <typename T>
concept SolverScalar = std::is_same_v<T, double> || std::is_same_v<T, float>;

template <SolverScalar T>
inline constexpr Scalar kScalarOf = std::is_same_v<T, double> ? Scalar::kFloat64 : Scalar::kFloat32;

constexpr int64_t ScalarBytes(Scalar scalar) { return scalar == Scalar::kFloat64 ? 8 : 4; }

// How a diagonal block is stored.
enum class DiagonalForm : uint8_t {
  kFull,         // n*n scalars, column-major; the strict upper triangle is not read
  kPackedLower,  // n(n+1)/2 scalars: the lower triangle, column after column
};

// Which coupling blocks are stored, column-major.
enum class CouplingForm : uint8_t {
  kSubdiagonal,    // A(i+1,i)
  kSuperdiagonal,  // A(i,i+1), which is what a row-major A(i+1,i) is
};

// A symmetric positive definite matrix of N x N blocks of n x n scalars, of which only the diagonal
// blocks A(i,i) and their neighbours A(i+1,i) are not zero; below it there may be a border of p
// dense rows, with a corner of p x p (SystemSpec.arrow_size of the wire contract).
struct SystemView {
  int64_t num_blocks = 0;  // N >= 1
  int64_t block_size = 0;  // n >= 1, at most 32768
  Scalar scalar = Scalar::kFloat64;
  DiagonalForm diagonal_form = DiagonalForm::kFull;
  CouplingForm coupling_form = CouplingForm::kSubdiagonal;
  const void* diagonal = nullptr;  // N blocks, one after another
  const void* coupling = nullptr;  // N-1 blocks; may be null if N == 1

  // The palette form, for matrices of few distinct blocks: each is stored, and sent, once, and an
  // index a block row says which one stands there. Not a palette where `diagonal_index` is empty.
  int64_t num_diagonal = 0;                  // blocks behind `diagonal`
  int64_t num_coupling = 0;                  // blocks behind `coupling`
  std::span<const uint32_t> diagonal_index;  // N entries < num_diagonal
  std::span<const uint32_t> coupling_index;  // N-1 entries < num_coupling

  int64_t arrow_size = 0;        // p, at most 1024; 0: no border
  const void* border = nullptr;  // the border's rows one after another, each of N n scalars
  const void* corner = nullptr;  // p x p, column-major; the strict upper triangle is not read

  bool is_palette() const { return !diagonal_index.empty(); }
  int64_t rows() const { return num_blocks * block_size + arrow_size; }
  int64_t diagonal_bytes() const;
  int64_t coupling_bytes() const;
  int64_t border_bytes() const;
  int64_t corner_bytes() const;
  // The bytes to send, in this order: diagonal, coupling, border, corner. Absent parts are empty.
  std::array<std::span<const std::byte>, 4> parts() const;
  int64_t bytes() const;  // of them all
};

// A system with what keeps its memory: `owner` is let go when the matrix has been sent. Empty where
// the memory stays anyway.
struct OwnedSystem {
  SystemView view;
  std::shared_ptr<const void> owner{};
};
OwnedSystem CopySystem(const SystemView& view);  // which CheckSystem accepts

// A system of full blocks, every one stored.
template <SolverScalar T>
SystemView MakeSystemView(int64_t num_blocks, int64_t block_size, const T* diagonal,
                          const T* coupling) {
  SystemView view;
  view.num_blocks = num_blocks;
  view.block_size = block_size;
  view.scalar = kScalarOf<T>;
  view.diagonal = diagonal;
  view.coupling = coupling;
  return view;
}

// INVALID_ARGUMENT, naming the field, unless the sizes are in range, the pointers present and the
// palette's indices as many as they must be. After it the sizes in bytes cannot overflow.
absl::Status CheckSystem(const SystemView& view);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SYSTEM_H_
