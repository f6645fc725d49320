// Who sends which bytes of a matrix that goes over several connections. Internal to the client.
#ifndef BLOCKD_CLIENT_UPLOAD_UPLOAD_RANGES_H_
#define BLOCKD_CLIENT_UPLOAD_UPLOAD_RANGES_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::client {

// The stream that began the upload takes ranges from the front of what is left, those that joined
// from its back: most of their share at first, then ever less, so that all come to their end
// together, whatever each connection carries (guided self-scheduling: Polychronopoulos and Kuck,
// IEEE Transactions on Computers C-36 (1987), 1425-1439). Thread-safe.
class UploadRanges {
 public:
  static constexpr int kMostJoins = 63;  // the server's limit, for all streams together
  // Joined ranges begin at pages of the matrix, as the server's copies do.
  static constexpr int64_t kPageBytes = 4096;
  // But for what is left at last, and of small matrices: less is not worth a message.
  static constexpr int64_t kLeastBytes = int64_t{4} << 20;

  struct Range {
    int64_t first = 0, bytes = 0;  // 0 bytes: none
  };

  // Divides the bytes from `first` on up to `end` among so many streams.
  UploadRanges(int64_t first, int64_t end, int streams);

  // The next one, behind the one before.
  Range TakeFront() ABSL_LOCKS_EXCLUDED(mutex_);
  // For a stream that joined, or is to.
  Range TakeBack() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The bytes of what is left that any stream but a new one takes.
  int64_t Share() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int streams_;
  const int64_t first_share_;  // of a stream that joins
  const int64_t least_;
  absl::Mutex mutex_;
  int64_t front_ ABSL_GUARDED_BY(mutex_), back_ ABSL_GUARDED_BY(mutex_);
  int joins_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_UPLOAD_UPLOAD_RANGES_H_
