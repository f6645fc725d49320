// The server's metrics page, fetched and thinned out for a person.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_METRICS_PAGE_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_METRICS_PAGE_H_

#include <string>

#include "absl/status/statusor.h"

namespace blockd::blockctl {

// The body of http://address/metrics; `address` is host:port. UNAVAILABLE if nobody answers within
// five seconds.
absl::StatusOr<std::string> FetchMetrics(const std::string& address);

// The lines of blockd's own metrics whose value is not zero, without histograms.
std::string MetricsSummary(const std::string& page);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_METRICS_PAGE_H_
