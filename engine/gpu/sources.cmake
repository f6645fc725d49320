# What the GPU backend is made of, listed once for cuda/ and hip/: kernels, which their own compiler
# takes, and the host's code.
set(gpu_kernels
  lockstep/factor.cu
  lockstep/solve.cu
  segment/factor.cu
  segment/solve.cu
  task_list/factor.cu
  task_list/solve.cu
  vectors/vectors.cu)
set(gpu_sources
  gpu_backend.cc
  runtime/device.cc
  runtime/launch_graphs.cc
  vectors/vector_calls.cc)
list(TRANSFORM gpu_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM gpu_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
