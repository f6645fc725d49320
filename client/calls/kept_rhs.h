// The right-hand sides of a call that may be sent more than once. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_KEPT_RHS_H_
#define BLOCKD_CLIENT_CALLS_KEPT_RHS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "client/wire/wire.h"

namespace blockd::client {

// A copy, where an attempt may write a solution over them and another attempt may follow.
class KeptRhs {
 public:
  KeptRhs(Bytes rhs, std::span<std::byte> solution, bool another_may_follow) : rhs_(rhs) {
    if (!another_may_follow || !Overlap(rhs, solution)) return;
    copy_.assign(rhs.begin(), rhs.end());
    rhs_ = copy_;
  }
  KeptRhs(const KeptRhs&) = delete;
  KeptRhs& operator=(const KeptRhs&) = delete;

  Bytes get() const { return rhs_; }

 private:
  Bytes rhs_;
  std::vector<std::byte> copy_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_KEPT_RHS_H_
