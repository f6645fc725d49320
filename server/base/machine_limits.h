// How much of the machine this process may use.
#ifndef BLOCKD_SERVER_BASE_MACHINE_LIMITS_H_
#define BLOCKD_SERVER_BASE_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace blockd::server {

// The memory of the machine, or the smallest limit of the control groups that the process is in and
// of those around them, version 1 or 2, or of what the process may map (RLIMIT_AS, RLIMIT_DATA).
// `root`: the folder that proc/ and sys/ are in.
int64_t MachineMemoryBytes(const std::string& root = "/");

// The processors that the process may run on, or as many as the smallest quota of these control
// groups is worth, rounded up; at least 1.
int32_t MachineProcessors(const std::string& root = "/");

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_MACHINE_LIMITS_H_
