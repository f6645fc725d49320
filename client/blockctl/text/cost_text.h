// The server's cost of a call, as text for people and for scripts.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_COST_TEXT_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_COST_TEXT_H_

#include <string>

#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/blockctl/text/json.h"

namespace blockd::blockctl {

// "queue 10 us, upload 1.2 ms, compute 3.4 ms, download 20 us"
std::string CostText(const v1::Cost& cost);
void WriteCost(const v1::Cost& cost, JsonWriter& json);
std::string ScalarText(client::Scalar scalar);
std::string ScalarText(v1::ScalarType scalar);
std::string BorderText(int64_t arrow_size);  // " p=4", or nothing

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_COST_TEXT_H_
