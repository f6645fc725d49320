// Products with the border of an arrowhead, by threads.
#ifndef BLOCKD_ENGINE_CPU_BORDER_H_
#define BLOCKD_ENGINE_CPU_BORDER_H_

#include <cstdint>

#include "blockd/engine/backend.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// As Backend's functions of these names. Sums are made in one order, however many threads there
// are.
void MultiplyBorder(ThreadPool& threads, const BorderColumns& y, const void* v, int64_t columns,
                    double* products);
void AddBorder(ThreadPool& threads, const BorderColumns& y, const double* x, void* v,
               int64_t columns, bool add);
void AddBorderSquares(ThreadPool& threads, const BorderColumns& h, InverseParts parts,
                      void* diagonal, void* coupling);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_BORDER_H_
