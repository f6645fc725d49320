// Marks functions that host code and device code share.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_

#if defined(__CUDACC__) || defined(__HIPCC__)
#define BLOCKD_HOST_DEVICE __host__ __device__
#else
#define BLOCKD_HOST_DEVICE
#endif

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_DEVICE_H_
