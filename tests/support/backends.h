// Which backends a test runs on, and solvers on them.
#ifndef BLOCKD_TESTS_SUPPORT_BACKENDS_H_
#define BLOCKD_TESTS_SUPPORT_BACKENDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"

namespace blockd::test {

// The names in the environment variable BLOCKD_TEST_BACKENDS, separated by commas: a test on one
// that cannot run here then fails. Without the variable, every backend of this build that finds a
// device.
std::vector<std::string> TestBackends();
// The backend of a test's server: the first name in that variable; without it, the CPU.
std::string ServerBackend();

struct SolverOptions {
  int32_t cpu_threads = 2;
  int32_t cpu_lanes = 2;
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t host_memory_bytes = 0;
};

// Aborts with the reason if the backend cannot be created.
std::unique_ptr<Solver> MakeSolver(const std::string& backend, const SolverOptions& options = {});

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_BACKENDS_H_
