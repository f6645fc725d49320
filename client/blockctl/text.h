// Numbers with units, for people.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_H_

#include <string>

namespace blockd::blockctl {

std::string BytesText(double bytes);      // "1.5 GiB"
std::string SecondsText(double seconds);  // "3.20 ms"

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_H_
