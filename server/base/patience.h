// How long it pays to look for work before one sleeps until it comes: as long as is allowed, but a
// part of it where a third or more of such looks were in vain of late. What comes within that part
// anyway says nothing. So of a caller with a period of 1 ms, whose server may look for 500 us, no
// processor is busy half of the time for nothing.
//
// Not thread-safe.
#ifndef BLOCKD_SERVER_BASE_PATIENCE_H_
#define BLOCKD_SERVER_BASE_PATIENCE_H_

#include <algorithm>

#include "absl/time/time.h"

namespace blockd::server {

class Patience {
 public:
  explicit Patience(absl::Duration most) : most_(most) {}
  // Work has come so long after there was none, looked for or not.
  void Came(absl::Duration after) {
    if (after >= most_) {
      vain_ = std::min(vain_ + kVain, kWorst);
    } else if (after >= most_ / kPart) {
      vain_ = std::max(vain_ - 1, 0);
    }
  }
  absl::Duration left() const { return vain_ < kEnough ? most_ : most_ / kPart; }

 private:
  static constexpr int kPart = 8, kVain = 2, kEnough = 6, kWorst = 8;

  const absl::Duration most_;
  int vain_ = 0;  // kVain for each look in vain, less one for each that was not
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_PATIENCE_H_
