// The growth that the CPU finds with a plan, to compare that of other code with.
#ifndef BLOCKD_TESTS_ENGINE_PLAN_PLAN_GROWTH_H_
#define BLOCKD_TESTS_ENGINE_PLAN_PLAN_GROWTH_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "blockd/engine/backend_registry.h"

namespace blockd::test {

// NaN if the CPU cannot factor the matrix, which is in host memory.
inline double GrowthOf(const EliminationPlan& plan, const BlockTridiagonalView& matrix) {
  const auto failed = [](const absl::Status& status) {
    ADD_FAILURE() << status;
    return std::numeric_limits<double>::quiet_NaN();
  };
  BackendOptions options;
  options.memory_bytes = int64_t{64} << 20;
  options.cpu_threads = 1;
  const auto backend = CreateBackend("cpu", options);
  if (!backend.ok()) return failed(backend.status());
  auto factor = (*backend)->pool().Allocate(plan.factor_bytes());
  auto chains =
      (*backend)->pool().Allocate(1 + plan.chain_scalars() * ScalarBytes(plan.shape().scalar));
  auto scratch = (*backend)->pool().Allocate(1 + (*backend)->FactorScratchBytes(plan, 1));
  for (const auto* buffer : {&factor, &chains, &scratch}) {
    if (!buffer->ok()) return failed(buffer->status());
  }
  const FactorSystem system{matrix, factor->data(), chains->data()};
  const auto reports =
      (*backend)->Factor({&plan, {&system, 1}, scratch->data()}, [] { return true; });
  if (!reports.ok()) return failed(reports.status());
  return (*reports)[0].growth;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_PLAN_PLAN_GROWTH_H_
