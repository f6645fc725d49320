// A bar on standard error while something long is sent; nothing where that is no terminal.
#ifndef BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_
#define BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace blockd::blockctl {

// "[####------]  41%  1.2 GiB of 2.9 GiB, 410 MiB/s"
std::string ProgressLine(int64_t sent_bytes, int64_t total_bytes, absl::Duration elapsed);

// For FactorOptions::progress; empty where no bar should be drawn. The bar appears after half a
// second and vanishes at the end.
std::function<void(int64_t sent_bytes, int64_t total_bytes)> MakeProgressBar();

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_
