// Checks of requests from any carrier. Pure; INVALID_ARGUMENT names the field.
#ifndef BLOCKD_SERVER_CORE_COMMON_CHECKS_H_
#define BLOCKD_SERVER_CORE_COMMON_CHECKS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/core/common/request.h"

namespace blockd::server {

absl::Status CheckSpec(const MatrixForm& form);
// INVALID_ARGUMENT if an option was asked for that systems with a border do not have.
absl::Status CheckNoBorder(const BorderedShape& shape, std::string_view option, bool asked);
absl::Status CheckFactor(const FactorParams& params, const CoreLimits& limits);
absl::Status CheckSystems(int64_t num_systems, const CoreLimits& limits);
absl::Status CheckColumns(int64_t num_rhs, const CoreLimits& limits);
absl::Status CheckRhs(const BorderedShape& shape, int64_t num_rhs, int64_t rhs_bytes,
                      int64_t solution_bytes, int32_t max_refinements, const CoreLimits& limits);
absl::Status CheckPalette(const MatrixForm& form, std::span<const uint32_t> diagonal_index,
                          std::span<const uint32_t> coupling_index);
absl::Status CheckMatrices(std::span<const BlockTridiagonalView> matrices, const MatrixForm& form);
// Each is there once. `field` is whose elements they are.
absl::Status CheckDistinct(std::span<const Handle> handles, std::string_view field);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_CHECKS_H_
