// The load generator: callers that do one thing after another (closed loop), or arrivals at a fixed
// rate whatever the server does (open loop). Knows nothing of gRPC.
#ifndef BLOCKD_CLIENT_BLOCKCTL_LOAD_LOAD_H_
#define BLOCKD_CLIENT_BLOCKCTL_LOAD_LOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"
#include "client/blockctl/load/histogram.h"

namespace blockd::blockctl {

struct LoadOptions {
  int callers = 1;                              // in an open loop the most requests in flight
  double rate = 0;                              // arrivals a second; 0: closed loop
  absl::Duration duration = absl::Seconds(10);  // measured
  absl::Duration warmup = absl::Seconds(1);     // before it, not counted
  std::vector<double> weights = {1};            // of the operations, in any unit
  uint64_t seed = 1;
};

struct OperationReport {
  int64_t succeeded = 0;
  std::map<absl::StatusCode, int64_t> failed;
  absl::Status first_error;
  Histogram latency;                           // of those that succeeded
  Histogram queue, upload, compute, download;  // the server's own account of them
  double batch_requests = 0;                   // mean
};

struct LoadReport {
  double seconds = 0;  // measured
  std::vector<OperationReport> operations;
  int64_t not_started =
      0;  // open loop: arrivals that were due and found no free caller until the end
};

// Calls `call(caller, operation)` from `callers` threads for warmup + duration, or until `stop`. In
// an open loop a request's latency counts from its scheduled arrival, so that a server which falls
// behind cannot hide it.
LoadReport RunLoad(const LoadOptions& options,
                   const std::function<absl::StatusOr<v1::Cost>(int caller, int operation)>& call,
                   const std::atomic<bool>& stop);

// Starts a request and has `done` called with what became of it, once, on any thread.
using StartRequest = std::function<void(int caller, int operation,
                                        std::function<void(const absl::StatusOr<v1::Cost>&)> done)>;
// The same for callers that no thread waits for, in a closed loop: where one request ends the
// caller's next starts.
LoadReport RunAsyncLoad(const LoadOptions& options, const StartRequest& start,
                        const std::atomic<bool>& stop);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_LOAD_LOAD_H_
