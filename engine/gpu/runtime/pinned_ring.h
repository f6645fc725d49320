// Pinned memory in pieces that take turns, so that the host fills one while a stream reads another.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_PINNED_RING_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_PINNED_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

// INTERNAL, with what was being done and what the driver says.
absl::Status ToStatus(Error error, absl::string_view what);

// From one thread at a time, with the device chosen.
class PinnedRing {
 public:
  // Pieces of 0 bytes have no memory: they say how far behind the host is.
  explicit PinnedRing(int64_t piece_bytes, size_t pieces = 2)
      : piece_bytes_(piece_bytes), pieces_(pieces) {}
  ~PinnedRing();  // nothing uses it any more
  PinnedRing(const PinnedRing&) = delete;

  absl::Status Init();
  // The next piece; waits until what a stream last did with it is over.
  absl::StatusOr<void*> Next();
  // The piece is in use until all that is on the stream now has ended.
  absl::Status Mark(Stream stream);
  // The event behind all that uses the piece that was marked last, and behind all before that on
  // its stream.
  Event last() const { return pieces_[turn_ % pieces_.size()].done; }

 private:
  struct Piece {
    void* data = nullptr;
    Event done = nullptr;
  };

  const int64_t piece_bytes_;
  std::vector<Piece> pieces_;
  size_t turn_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_PINNED_RING_H_
