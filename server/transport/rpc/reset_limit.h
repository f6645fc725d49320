// Which connections reset calls as fast as they make them.
//
// gRPC 1.51 has no bound for that (CVE-2023-44487): it may be busy with one such connection for as
// long as that goes on, and leave another one's call where it is for all that time.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_RESET_LIMIT_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_RESET_LIMIT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

// Thread-safe.
class ResetLimit {
 public:
  // Ends the connection to this peer.
  using End = std::function<void(const std::string& peer)>;

  // `per_second`: of one connection; 0: no limit.
  ResetLimit(int64_t per_second, End end) : per_second_(per_second), end_(std::move(end)) {}

  // A call from there was reset before its message came.
  void OnReset(const std::string& peer, absl::Time now) {
    if (per_second_ == 0 || !IsOver(peer, now)) return;
    end_(peer);
  }

 private:
  // Once for each time that it is.
  bool IsOver(const std::string& peer, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (now - since_ >= absl::Seconds(1) || now < since_) {
      since_ = now;
      resets_.clear();
    }
    int64_t& count = resets_[peer];
    if (++count <= per_second_) return false;
    count = 0;
    return true;
  }

  const int64_t per_second_;
  const End end_;
  absl::Mutex mutex_;
  absl::Time since_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::flat_hash_map<std::string, int64_t> resets_ ABSL_GUARDED_BY(mutex_);  // since then
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_RESET_LIMIT_H_
