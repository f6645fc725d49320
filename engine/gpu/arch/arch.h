// The hardware as device code needs it: lanes and barriers, copies, signals, pivots' reciprocals,
// matrix instructions. The files below provide it for CUDA and HIP; with BLOCKD_GPU_ON_HOST a
// thread block consists of the host's threads.
#ifndef BLOCKD_ENGINE_GPU_ARCH_ARCH_H_
#define BLOCKD_ENGINE_GPU_ARCH_ARCH_H_

#include "engine/gpu/arch/host_device.h"

#if defined(BLOCKD_GPU_ON_HOST)
#include "engine/gpu/arch/host/host_arch.h"
#include "engine/gpu/arch/host/host_products.h"
#else
#include "engine/gpu/arch/copies.h"
#include "engine/gpu/arch/matrix_instructions.h"
#include "engine/gpu/arch/scalars.h"
#include "engine/gpu/arch/signals.h"
#include "engine/gpu/arch/warp.h"
#include "engine/gpu/arch/warpgroups.h"
#endif
#include "engine/gpu/arch/fragment_layout.h"
#include "engine/gpu/arch/team.h"

#endif  // BLOCKD_ENGINE_GPU_ARCH_ARCH_H_
