// The backend's calls for vectors, beside solving: columns in and out, residuals, sums.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_
#define BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/elimination_plan.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/vectors/launch.h"

namespace blockd::gpu {

// As Backend's functions of these names. From one thread at a time.
class VectorCalls {
 public:
  using ResidualNorms = Backend::ResidualNorms;

  explicit VectorCalls(Device& device) : device_(device) {}

  absl::Status Pack(const Shape& shape, std::span<const HostColumns> columns);
  absl::Status Unpack(const Shape& shape, std::span<const HostColumns> columns);
  absl::StatusOr<double> LogDeterminant(const EliminationPlan& plan, const void* factor);
  absl::StatusOr<std::vector<ResidualNorms>> Residual(const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs);
  absl::Status CopyColumns(const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns);
  absl::Status Add(Scalar scalar, void* y, const void* x, int64_t scalars);

 private:
  template <typename T>
  absl::StatusOr<std::vector<ResidualNorms>> Residuals(const BlockTridiagonalView& matrix,
                                                       const T* x, const T* b, T* r,
                                                       int64_t num_rhs);
  // The columns that one launch moves, and its part of the pinned memory.
  struct Move;
  // Moves columns of host memory that the device reaches, and parts of others by way of pinned
  // memory. Where it unpacks these it waits.
  absl::Status MoveAll(bool pack, const Shape& shape, std::span<const HostColumns> columns);
  absl::Status Launch(bool pack, bool last, Move& move);
  // From the caller's memory to where the launch reads it, or back behind the launch.
  static void CopyStaged(bool pack, const Move& move);

  Device& device_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_
