// Copies to the card that no track waits for, from any thread, several at a time.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_CARD_WRITES_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_CARD_WRITES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

class ReportedEnds;

// Pieces of pinned memory go round in a queue. A thread takes the oldest, waits until the card has
// read it, fills it, puts the copy on the writes' own stream, and gives the piece back with an
// event behind the copy. The lock is held to take and to give back, never while bytes move. So what
// is under way at any time is at most the pieces' bytes: that much Await waits for.
//
// Thread-safe after Init; each thread has chosen the device.
class CardWrites {
 public:
  // A small write waits for some 40 us at most for the large one before it.
  static constexpr int64_t kPieceBytes = int64_t{2} << 20;
  static constexpr size_t kPieces = 16;

  explicit CardWrites(ReportedEnds* ends) : ends_(ends) {}
  ~CardWrites();  // nobody writes any more
  CardWrites(const CardWrites&) = delete;

  absl::Status Init();
  // As Backend says them.
  absl::Status Write(std::byte* device, std::span<const Backend::HostPiece> pieces)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Await();

 private:
  class HostPieces;
  struct Piece {
    void* data = nullptr;
    Event read = nullptr;  // by the card
  };

  Piece* Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(Piece* piece) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes what fits, and moves both on.
  absl::Status WritePiece(const Piece& piece, std::byte** device, HostPieces* left)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Enqueue(const Piece& piece, std::byte* device, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

  ReportedEnds* const ends_;
  Stream stream_ = nullptr;
  std::array<Piece, kPieces> pieces_;  // as they are after Init
  absl::Mutex mutex_;
  std::deque<Piece*> free_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  int64_t ends_seen_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_CARD_WRITES_H_
