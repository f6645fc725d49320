// How accurate solutions are, as the server says of a factorization.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_ACCURACY_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_ACCURACY_H_

#include <string>

#include "blockd/client/results.h"
#include "client/blockctl/text/json.h"

namespace blockd::blockctl {

// "growth 3.1, backward errors of at most 7.1e-15, condition number about 1.2e+04"
std::string ConditioningText(const client::Conditioning& conditioning);
// The fields growth, backward_error_bound and, where it was asked for, condition_estimate.
void WriteConditioning(const client::Conditioning& conditioning, JsonWriter& json);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_ACCURACY_H_
