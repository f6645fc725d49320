#include "engine/gpu/runtime/card_writes.h"

#include <algorithm>
#include <cstring>

#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/pinned_ring.h"

namespace blockd::gpu {

// Errors here have nobody to hear them.
CardWrites::~CardWrites() {
  if (stream_) {
    (void)BLOCKD_GPU(StreamSynchronize)(stream_);
    (void)BLOCKD_GPU(StreamDestroy)(stream_);
  }
  for (Piece& piece : pieces_) {
    if (piece.read) (void)BLOCKD_GPU(EventDestroy)(piece.read);
    if (piece.data) (void)FreePinned(piece.data);
  }
}

absl::Status CardWrites::Init() {
  // Without a priority of its own: behind solves and factorizations where they copy too.
  absl::Status status = ToStatus(
      BLOCKD_GPU(StreamCreateWithFlags)(&stream_, BLOCKD_GPU(StreamNonBlocking)), "stream");
  for (Piece& piece : pieces_) {
    if (!status.ok()) return status;
    status =
        ToStatus(AllocatePinned(&piece.data, static_cast<size_t>(kPieceBytes)), "pinned memory");
    if (!status.ok()) return status;
    // Threads that wait for the card leave the processors to those that have something to copy.
    status =
        ToStatus(BLOCKD_GPU(EventCreateWithFlags)(
                     &piece.read, BLOCKD_GPU(EventDisableTiming) | BLOCKD_GPU(EventBlockingSync)),
                 "event");
    GiveBack(&piece);
  }
  return status;
}

CardWrites::Piece* CardWrites::Take() {
  const auto is_one_free = [this]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); };
  absl::MutexLock lock(&mutex_, absl::Condition(&is_one_free));
  Piece* const piece = free_.front();
  free_.pop_front();
  return piece;
}

void CardWrites::GiveBack(Piece* piece) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(piece);
}

absl::Status CardWrites::Enqueue(const Piece& piece, std::byte* device, int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    absl::Status status = ends_->Await(stream_, &ends_seen_);
    if (!status.ok()) return status;
  }
  absl::Status status =
      ToStatus(BLOCKD_GPU(MemcpyAsync)(device, piece.data, static_cast<size_t>(bytes),
                                       BLOCKD_GPU(MemcpyHostToDevice), stream_),
               "upload");
  // A copy of another thread may come between the two: the event then says a little more.
  if (status.ok()) status = ToStatus(BLOCKD_GPU(EventRecord)(piece.read, stream_), "upload");
  return status;
}

absl::Status CardWrites::WritePiece(const Piece& piece, std::byte* device, const std::byte* host,
                                    int64_t bytes) {
  absl::Status status = ToStatus(BLOCKD_GPU(EventSynchronize)(piece.read), "pinned memory");
  if (!status.ok()) return status;
  std::memcpy(piece.data, host, static_cast<size_t>(bytes));
  status = Enqueue(piece, device, bytes);
  // The copy may be under way, with no event behind it.
  if (!status.ok()) (void)BLOCKD_GPU(StreamSynchronize)(stream_);
  return status;
}

absl::Status CardWrites::Write(std::byte* device, const std::byte* host, int64_t bytes) {
  absl::Status status;
  for (int64_t at = 0; status.ok() && at < bytes; at += kPieceBytes) {
    Piece* const piece = Take();
    status = WritePiece(*piece, device + at, host + at, std::min(kPieceBytes, bytes - at));
    GiveBack(piece);
  }
  return status;
}

absl::Status CardWrites::Await() {
  absl::Status status;
  for (const Piece& piece : pieces_) {
    status.Update(ToStatus(BLOCKD_GPU(EventSynchronize)(piece.read), "upload"));
  }
  return status;
}

}  // namespace blockd::gpu
