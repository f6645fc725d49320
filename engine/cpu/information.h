// Matrices in information form, by threads.
#ifndef BLOCKD_ENGINE_CPU_INFORMATION_H_
#define BLOCKD_ENGINE_CPU_INFORMATION_H_

#include "blockd/engine/information_form.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// As Backend::FormInformation.
void FormInformation(ThreadPool& threads, const InformationSteps& steps);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_INFORMATION_H_
