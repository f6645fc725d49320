// Statuses of the smoother with a typed detail. Pure functions, thread-safe.
#ifndef BLOCKD_ENGINE_MODEL_ERRORS_H_
#define BLOCKD_ENGINE_MODEL_ERRORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "blockd/engine/smooth_model.h"

namespace blockd {

struct InvalidField {
  std::string field;  // its path: "spec.block_size"
  std::string came;
  std::string expected;
};

// A covariance that is not positive definite where it must be, or not even semidefinite.
struct SingularCovariance {
  std::string matrix;  // "Q", "R", "P"
  int64_t step = 0;
  int64_t row = 0;
};

// A model whose states no arithmetic here gives.
struct NotSmoothable {
  enum class Reason {
    kNotIdentified = 1,  // `directions` of a diffuse x(1) that the observations do not tell
    kContradiction = 2,  // y(row) of `step` has no variance and another value than the model says
    kInaccurate = 3,     // the estimated errors are too large
  };
  Reason reason = Reason::kInaccurate;
  SmoothForm form = SmoothForm::kOrthogonalInDoubleDouble;  // the last one that was tried
  int64_t system = 0;
  int64_t step = 0, row = 0;
  int64_t directions = 0;
  SmoothErrors errors;  // estimates
};

// INVALID_ARGUMENT with a message for people and the detail.
absl::Status InvalidFieldError(std::string_view field, std::string_view came,
                               std::string_view expected);
absl::Status SingularCovarianceError(const SingularCovariance& singular);
absl::Status NotSemidefiniteError(const SingularCovariance& where);
absl::Status NotSmoothableError(const NotSmoothable& why);
// The same status, which then has this detail.
absl::Status WithInvalidField(const absl::Status& status, const InvalidField& field);

// The detail of a status, if it has one of that kind.
std::optional<InvalidField> InvalidFieldOf(const absl::Status& status);
std::optional<SingularCovariance> SingularCovarianceOf(const absl::Status& status);
std::optional<NotSmoothable> NotSmoothableOf(const absl::Status& status);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_MODEL_ERRORS_H_
