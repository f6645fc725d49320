// The backend's calls for the border of an arrowhead.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_BORDER_CALLS_H_
#define BLOCKD_ENGINE_GPU_VECTORS_BORDER_CALLS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu {

// As Backend's functions of these names. From one thread at a time.
class BorderCalls {
 public:
  explicit BorderCalls(Device& device) : device_(device) {}

  absl::Status Multiply(const BorderColumns& y, const void* v, int64_t columns, double* products);
  absl::Status Add(const BorderColumns& y, const double* x, void* v, int64_t columns, bool add);
  absl::Status AddSquares(const BorderColumns& h, InverseParts parts, void* diagonal,
                          void* coupling);

 private:
  template <typename T>
  absl::Status MultiplyAs(const BorderColumns& y, const void* v, int64_t columns, double* products);
  template <typename T>
  absl::Status AddSquaresAs(const BorderColumns& h, InverseParts parts, void* diagonal,
                            void* coupling);

  Device& device_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_BORDER_CALLS_H_
