// A Factor's matrix that arrives in pieces.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_UPLOAD_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd::server {

// A matrix that arrives in chunks, on the stream that began it and on others that joined. Its first
// part, a sixty-fourth but at least 64 KiB and at most 2 MiB, is kept on the host; with it
// everything else that the call needs is reserved, and what is idle evicted for it. So who sends
// nothing takes nothing from anybody. Destroying it gives all back. It is finished or destroyed
// before its core is.
//
// Each stream has a range of the matrix, whose bytes come in order: Place says where they belong,
// WriteAt copies them there. Place is called by one thread at a time for each range. WriteAt too
// until the upload is staged; from then on by any number of threads, in any order.
class FactorUpload {
 public:
  static constexpr int kFirstRange = 0;  // of the stream that began it: all that nobody joins for
  static constexpr int kMostRanges = 64;

  virtual ~FactorUpload() = default;
  // A range for another stream, `bytes` long; `first` is a multiple of 8. FAILED_PRECONDITION
  // unless staged. INVALID_ARGUMENT if it is not one of the matrix, or meets another range or what
  // the first one has had; RESOURCE_EXHAUSTED beyond kMostRanges.
  virtual absl::StatusOr<int> Join(int64_t first, int64_t bytes) = 0;
  // Where the next bytes of a range begin. Looks at them where the caller asked to have them
  // checked. INVALID_ARGUMENT if more come than the range has; nothing is taken then.
  virtual absl::StatusOr<int64_t> Place(int range,
                                        std::span<const std::span<const std::byte>> pieces) = 0;
  // RESOURCE_EXHAUSTED, when the first part is here, if others have taken the memory meanwhile.
  virtual absl::Status WriteAt(int64_t place,
                               std::span<const std::span<const std::byte>> pieces) = 0;
  virtual bool staged() const = 0;  // its memory is taken
  virtual int64_t expected_bytes() const = 0;
  virtual int64_t received_bytes() const = 0;  // written, in any range

  // The next bytes of the first range.
  absl::Status Write(std::span<const std::byte> bytes) {
    const absl::StatusOr<int64_t> place = Place(kFirstRange, {&bytes, 1});
    return place.ok() ? WriteAt(*place, {&bytes, 1}) : place.status();
  }
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_UPLOAD_H_
