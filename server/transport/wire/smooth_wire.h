// Smooth between the wire and the core: what a header says of the chunks behind it, and what a
// reply says of its own.
//
// Errors are INVALID_ARGUMENT with the field's path, what came and what was expected. Pure
// functions, thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_SMOOTH_WIRE_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_SMOOTH_WIRE_H_

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/common/smooth_request.h"

namespace blockd::server {

// The chunks of one Smooth: arrays of doubles, one after another.
class SmoothLayout {
 public:
  // Sizes are checked so far as the header alone says them: they are positive and nothing
  // overflows. Whether the core takes so much is the core's to say.
  static absl::StatusOr<SmoothLayout> Of(const v1::SmoothHeader& header);

  int64_t bytes() const { return total_ * static_cast<int64_t>(sizeof(double)); }
  int64_t num_steps() const { return params_.num_steps; }
  int64_t state_size() const { return params_.state_size; }
  int64_t num_series() const { return params_.num_series; }
  const SmoothParams& params() const { return params_; }  // without its arrays
  const KeepModel& kept() const { return kept_; }
  // The parameters with their arrays, which lie in the bytes() bytes of `values`.
  SmoothParams Bind(std::span<const double> values) const;

 private:
  static constexpr size_t kArrays = 10;  // F, Q, H, R, c, d, m, P, G, y

  SmoothParams params_;
  KeepModel kept_;
  std::array<int64_t, kArrays> sizes_{};  // in doubles
  int64_t total_ = 0;
};

// Cuts `values`, which have sizes.total(), into the results, in the order of the chunks.
SmoothResults CutResults(const SmoothSizes& sizes, std::span<double> values);

void ToWire(const SmoothReply& reply, const SmoothSizes& sizes, v1::SmoothHead* wire);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_SMOOTH_WIRE_H_
