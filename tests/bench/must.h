// How a benchmark ends when what it measures fails.
#ifndef BLOCKD_TESTS_BENCH_MUST_H_
#define BLOCKD_TESTS_BENCH_MUST_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd::bench {

// Says what went wrong, under the program's name, and exits with 1.
[[noreturn]] void Die(const std::string& what);

inline void Must(const absl::Status& status) {
  if (!status.ok()) Die(status.ToString());
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status().ToString());
  return *std::move(value);
}

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_MUST_H_
