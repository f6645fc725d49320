#ifndef BLOCKD_ENGINE_GPU_SUBSTITUTION_RUNNER_H_
#define BLOCKD_ENGINE_GPU_SUBSTITUTION_RUNNER_H_

#include <memory>

#include "engine/gpu/runner.h"

namespace blockd::gpu::substitution {

// The device outlives it.
std::unique_ptr<Runner> MakeRunner(Device& device);

// As Backend::InvertTriangles.
absl::Status InvertTriangles(Device& device, const EliminationPlan& plan, const void* factor,
                             void* out);

}  // namespace blockd::gpu::substitution

#endif  // BLOCKD_ENGINE_GPU_SUBSTITUTION_RUNNER_H_
