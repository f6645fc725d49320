// A matrix in information form on its way to the device, some steps at a time. Private to the
// solver.
#ifndef BLOCKD_ENGINE_SOLVER_INFORMATION_H_
#define BLOCKD_ENGINE_SOLVER_INFORMATION_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/information_form.h"

namespace blockd {

// How the memory for some steps is laid out.
class InformationWorkspace {
 public:
  explicit InformationWorkspace(const InformationForm& information);
  int64_t bytes() const { return bytes_; }

  // Sends what the matrix is made of through `base`, bytes() of device memory, and has its blocks
  // made at `diagonal` and `coupling`. On the factor track, asynchronous. Once `wanted`, asked
  // before each portion, says no, the rest of the matrix is garbage.
  absl::Status Make(Backend& backend, std::byte* base, void* diagonal, void* coupling,
                    absl::FunctionRef<bool()> wanted) const;

 private:
  absl::Status MakeSteps(Backend& backend, std::byte* base, InformationSteps steps) const;

  const InformationForm& information_;
  const int64_t scalar_, block_, observed_;                                    // bytes of each
  int64_t steps_ = 1;                                                          // at once
  int64_t transitions_ = 0, whiteners_ = 0, observations_ = 0, products_ = 0;  // offsets
  int64_t bytes_ = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_INFORMATION_H_
