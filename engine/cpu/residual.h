// r = b - A x, and what its backward error is made of.
#ifndef BLOCKD_ENGINE_CPU_RESIDUAL_H_
#define BLOCKD_ENGINE_CPU_RESIDUAL_H_

#include <cstdint>
#include <vector>

#include "blockd/engine/backend.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// As Backend::Residual. Sums are made in double and in one order, whatever the scalar and however
// many threads.
std::vector<Backend::ResidualNorms> Residual(ThreadPool& threads,
                                             const BlockTridiagonalView& matrix, const void* x,
                                             const void* b, void* r, int64_t num_rhs);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_RESIDUAL_H_
