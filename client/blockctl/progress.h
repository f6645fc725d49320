// A bar on standard error while something long is sent; nothing where that is no terminal.
#ifndef BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_
#define BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_

#include <cstdint>
#include <functional>

namespace blockd::blockctl {

// For FactorOptions::progress; empty where no bar should be drawn. The bar appears after half a
// second and vanishes at the end.
std::function<void(int64_t sent_bytes, int64_t total_bytes)> MakeProgressBar();

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_PROGRESS_H_
