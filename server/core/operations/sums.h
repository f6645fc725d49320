// Sums of the costs of a request's parts. Private to the operations.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_SUMS_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_SUMS_H_

#include <algorithm>

#include "blockd/engine/solver.h"
#include "server/core/common/request.h"

namespace blockd::server {

// The longest wait in the queue, and the sums of the rest.
inline void AddTo(Cost& sum, const Cost& more) {
  sum.queue = std::max(sum.queue, more.queue);
  sum.batch_requests += more.batch_requests;
  sum.batch_items += more.batch_items;
  sum.upload += more.upload;
  sum.compute += more.compute;
  sum.download += more.download;
}

inline void AddTo(Phases& sum, const Phases& more) {
  sum.upload_seconds += more.upload_seconds;
  sum.compute_seconds += more.compute_seconds;
  sum.download_seconds += more.download_seconds;
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_SUMS_H_
