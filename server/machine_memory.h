// How much memory this process may use.
#ifndef BLOCKD_SERVER_MACHINE_MEMORY_H_
#define BLOCKD_SERVER_MACHINE_MEMORY_H_

#include <cstdint>
#include <string>

namespace blockd::server {

// The memory of the machine, or the smallest limit of the control groups that the process is in and
// of those around them, version 1 or 2. `root`: the folder that proc/ and sys/ are in.
int64_t MachineMemoryBytes(const std::string& root = "/");

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_MACHINE_MEMORY_H_
