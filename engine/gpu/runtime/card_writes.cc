#include "engine/gpu/runtime/card_writes.h"

#include <algorithm>
#include <utility>

#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/pinned_ring.h"
#include "engine/gpu/runtime/streaming_copy.h"

namespace blockd::gpu {

// The part of some pieces that is still to be copied.
class CardWrites::HostPieces {
 public:
  explicit HostPieces(std::span<const Backend::HostPiece> pieces) : pieces_(pieces) { SkipEmpty(); }
  bool empty() const { return pieces_.empty(); }
  // As much as there is, and `most` at most; says how much.
  int64_t Copy(std::byte* to, int64_t most) {
    int64_t copied = 0;
    while (!empty() && copied < most) {
      const auto part = pieces_.front().subspan(
          at_, std::min(pieces_.front().size() - at_, static_cast<size_t>(most - copied)));
      StreamingCopy(to + copied, part.data(), part.size());
      copied += std::ssize(part);
      at_ += part.size();
      SkipEmpty();
    }
    return copied;
  }

 private:
  void SkipEmpty() {
    while (!pieces_.empty() && at_ == pieces_.front().size()) {
      pieces_ = pieces_.subspan(1);
      at_ = 0;
    }
  }

  std::span<const Backend::HostPiece> pieces_;
  size_t at_ = 0;  // in the first one
};

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

absl::Status CardWrites::Write(std::byte* device, std::span<const Backend::HostPiece> pieces) {
  HostPieces left(pieces);
  absl::Status status;
  while (status.ok() && !left.empty()) {
    Piece* const piece = Take();
    status = WritePiece(*piece, &device, &left);
    GiveBack(piece);
  }
  return status;
}

absl::Status CardWrites::WritePiece(const Piece& piece, std::byte** device, HostPieces* left) {
  absl::Status status = ToStatus(BLOCKD_GPU(EventSynchronize)(piece.read), "pinned memory");
  if (!status.ok()) return status;
  const int64_t bytes = left->Copy(static_cast<std::byte*>(piece.data), kPieceBytes);
  status = Enqueue(piece, std::exchange(*device, *device + bytes), bytes);
  // The copy may be under way, with no event behind it.
  if (!status.ok()) (void)BLOCKD_GPU(StreamSynchronize)(stream_);
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
