// The machine as the operating system describes it, and the part that this process may use.
#ifndef BLOCKD_ENGINE_CPU_THREADS_PROCESSOR_H_
#define BLOCKD_ENGINE_CPU_THREADS_PROCESSOR_H_

#include <cstdint>
#include <string>

namespace blockd::cpu {

int64_t PhysicalMemory();   // bytes
int64_t AvailableMemory();  // bytes
std::string ProcessorName();
// That this process may run on: the machine may have more.
int32_t AllowedProcessors();

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_THREADS_PROCESSOR_H_
