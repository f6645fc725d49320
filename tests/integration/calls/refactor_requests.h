// New values for many held factorizations, and a solve with each, as one message.
#ifndef BLOCKD_TESTS_INTEGRATION_CALLS_REFACTOR_REQUESTS_H_
#define BLOCKD_TESTS_INTEGRATION_CALLS_REFACTOR_REQUESTS_H_

#include <string>
#include <vector>

#include "tests/integration/fixture.h"

namespace blockd::test {

// The right-hand sides of system `system`.
inline std::vector<double> RhsOfSystem(const HostMatrix& matrix, size_t system, int64_t num_rhs) {
  return problems::RandomColumns(matrix.form().shape.rows(), num_rhs, static_cast<int>(system));
}

// One matrix a handle, all of one form.
inline v1::FactorSolveManyRequest FactorSolveManyOf(const std::vector<std::string>& handles,
                                                    const std::vector<HostMatrix>& matrices,
                                                    int64_t num_rhs = 1) {
  v1::FactorSolveManyRequest request;
  *request.mutable_spec() = SpecOf(matrices[0]);
  request.set_num_rhs(num_rhs);
  for (size_t i = 0; i < matrices.size(); ++i) {
    request.add_handle(handles[i]);
    const v1::SystemData data = DataOf(matrices[i]);
    *request.mutable_matrix() += data.diagonal() + data.coupling();
    *request.mutable_rhs() += BytesOf(RhsOfSystem(matrices[i], i, num_rhs));
  }
  return request;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_CALLS_REFACTOR_REQUESTS_H_
