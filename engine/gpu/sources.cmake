# What the GPU backend is made of, listed once for cuda/ and hip/: kernels, which their own compiler
# takes, and the host's code, of which the tests build what needs no GPU's headers everywhere.
set(gpu_kernels
  information/information.cu
  inverse/inverse.cu
  inverse/segments.cu
  lockstep/factor.cu
  lockstep/solve.cu
  segment/factor.cu
  segment/solve.cu
  segment/tiny_solve.cu
  substitution/factor.cu
  substitution/solve.cu
  task_list/factor.cu
  task_list/solve.cu
  vectors/border.cu
  vectors/vectors.cu)
set(gpu_plain_sources
  lockstep/lockstep.cc
  method.cc
  runtime/streaming_copy.cc
  segment/segment.cc
  task_list/factor_tasks.cc
  task_list/task_list.cc
  task_list/task_order.cc)
set(gpu_sources
  ${gpu_plain_sources}
  factor_calls.cc
  gpu_backend.cc
  information/information_calls.cc
  inverse/inverse_calls.cc
  lockstep/runner.cc
  runtime/card.cc
  runtime/card_writes.cc
  runtime/counters.cc
  runtime/device.cc
  runtime/gathered_upload.cc
  runtime/launch_graphs.cc
  runtime/marks.cc
  runtime/pinned_ring.cc
  runtime/reachable_memory.cc
  segment/runner.cc
  solve_calls.cc
  substitution/runner.cc
  task_list/runner.cc
  vectors/border_calls.cc
  vectors/vector_calls.cc)
list(TRANSFORM gpu_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM gpu_plain_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM gpu_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
