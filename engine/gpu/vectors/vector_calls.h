// What a backend does with vectors, beside solving: columns in and out, residuals, sums.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_
#define BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
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

  // args: of all pieces, of so many columns.
  absl::Status Pack(void* packed, const void* columns_in, const ColumnArgs& args, int64_t columns);
  absl::Status Unpack(void* columns_out, const void* packed, const ColumnArgs& args,
                      int64_t columns);
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
  // Calls body(pinned memory, args) for as many pieces at a time as the pinned memory holds.
  absl::Status ForEachPinnedPart(ColumnArgs args, int64_t columns,
                                 absl::FunctionRef<absl::Status(void*, const ColumnArgs&)> body);

  Device& device_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_VECTOR_CALLS_H_
