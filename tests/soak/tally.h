// Counts of the requests and of how they were answered. Thread-safe.
#ifndef BLOCKD_TESTS_SOAK_TALLY_H_
#define BLOCKD_TESTS_SOAK_TALLY_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::soak {

class Tally {
 public:
  // An answer to `what`, with its code. Where it is none of the codes that are allowed, or `wrong`
  // is not empty, it counts as wrong, and the first of these are printed. OK is always allowed.
  void Add(const std::string& what, const grpc::Status& status,
           std::initializer_list<grpc::StatusCode> allowed, const std::string& wrong = "");

  int64_t requests() const;
  int64_t wrong() const;
  // A table: a row for what was asked, a column for each status.
  std::string Table() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, std::map<std::string, int64_t>> counts_ ABSL_GUARDED_BY(mutex_);
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t wrong_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The kind of refusal that a status is, by its typed details: "quota requests_per_second",
// "memory", "retry", "EVICTED", "unreachable", "not SPD"; "" for one without any.
std::string KindOf(const grpc::Status& status);

}  // namespace blockd::soak

#endif  // BLOCKD_TESTS_SOAK_TALLY_H_
