// Numbers with units, for people.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_TEXT_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace blockd::blockctl {

std::string BytesText(double bytes);      // "1.5 GiB"
std::string SecondsText(double seconds);  // "3.20 ms"
// "[####------]  41%  1.2 GiB of 2.9 GiB, 410 MiB/s"
std::string ProgressLine(int64_t sent_bytes, int64_t total_bytes, absl::Duration elapsed);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_TEXT_H_
