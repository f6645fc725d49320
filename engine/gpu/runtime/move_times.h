// The report of a kernel that moves columns, in memory that the host reads meanwhile.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_MOVE_TIMES_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_MOVE_TIMES_H_

#include <cstdint>

namespace blockd::gpu {

struct MoveTimes {
  uint64_t begin = 0, end = 0;  // nanoseconds of the device's clock
  uint64_t done = 0;            // the number that the launch was given, once all is moved
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_MOVE_TIMES_H_
