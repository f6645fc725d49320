// The backend's calls for matrices in information form.
#ifndef BLOCKD_ENGINE_GPU_INFORMATION_INFORMATION_CALLS_H_
#define BLOCKD_ENGINE_GPU_INFORMATION_INFORMATION_CALLS_H_

#include "absl/status/status.h"
#include "blockd/engine/information_form.h"
#include "engine/gpu/runtime/device.h"

namespace blockd::gpu::information {

// As Backend::FormInformation. From one thread at a time.
absl::Status Run(Device& device, const InformationSteps& steps);

}  // namespace blockd::gpu::information

#endif  // BLOCKD_ENGINE_GPU_INFORMATION_INFORMATION_CALLS_H_
