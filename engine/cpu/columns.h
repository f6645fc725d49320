// Columns of vectors that are packed [block][column][n]: in, out, and from one to another.
#ifndef BLOCKD_ENGINE_CPU_COLUMNS_H_
#define BLOCKD_ENGINE_CPU_COLUMNS_H_

#include <span>
#include <vector>

#include "blockd/engine/backend.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// As Backend's functions of these names; done when they return.
void PackColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> columns);
void UnpackColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> columns);
void CopyColumns(ThreadPool& threads, const Shape& shape, void* to, const void* from,
                 const std::vector<bool>& columns);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_COLUMNS_H_
