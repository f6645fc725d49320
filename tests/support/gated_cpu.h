// The CPU as a device that a test can hold, or let fail: for servers whose work is to be caught
// under way.
#ifndef BLOCKD_TESTS_SUPPORT_GATED_CPU_H_
#define BLOCKD_TESTS_SUPPORT_GATED_CPU_H_

#include <cstdlib>
#include <memory>
#include <utility>

#include "blockd/engine/backend_registry.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {

// Gates as HookedBackend has them. Aborts if there is no CPU backend.
inline std::unique_ptr<Backend> GatedCpu(const BackendOptions& options, std::shared_ptr<Gate> gate,
                                         std::shared_ptr<Gate> solve_gate = nullptr) {
  absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", options);
  if (!cpu.ok()) std::abort();
  const CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
  return std::make_unique<HookedBackend>(*std::move(cpu), costs, std::move(gate),
                                         std::move(solve_gate));
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_GATED_CPU_H_
