// SelectedInverse and Sample, each as one call. Internal to the client.
#ifndef BLOCKD_CLIENT_CALLS_INVERSE_CALL_H_
#define BLOCKD_CLIENT_CALLS_INVERSE_CALL_H_

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/rpc/connection.h"

namespace blockd::client {

// INVALID_ARGUMENT where the memory does not have the bytes of what is asked for.
// Where its parts go.
struct InversePlaces {
  std::span<std::byte> diagonal, coupling, border, corner;
};

absl::StatusOr<v1::Cost> CallSelectedInverse(const Connection& connection,
                                             const Factorization& factorization, Scalar scalar,
                                             const InversePlaces& places,
                                             const InverseOptions& options);
absl::StatusOr<v1::Cost> CallSample(const Connection& connection,
                                    const Factorization& factorization, Scalar scalar,
                                    std::span<std::byte> samples, const SampleOptions& options);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_INVERSE_CALL_H_
