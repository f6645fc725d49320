#include "engine/gpu/runtime/pinned_ring.h"

#include "absl/strings/str_cat.h"

namespace blockd::gpu {

absl::Status ToStatus(Error error, absl::string_view what) {
  if (error == kSuccess) return absl::OkStatus();
  (void)BLOCKD_GPU(GetLastError)();  // or the next launch would seem to have failed so
  return absl::InternalError(
      absl::StrCat(what, ": ", kBackendName, " error ", BLOCKD_GPU(GetErrorString)(error)));
}

// Errors here have nobody to hear them.
PinnedRing::~PinnedRing() {
  for (Piece& piece : pieces_) {
    if (piece.done) (void)BLOCKD_GPU(EventDestroy)(piece.done);
    if (piece.data) (void)FreePinned(piece.data);
  }
}

absl::Status PinnedRing::Init() {
  for (Piece& piece : pieces_) {
    absl::Status status;
    if (piece_bytes_ > 0) {
      status =
          ToStatus(AllocatePinned(&piece.data, static_cast<size_t>(piece_bytes_)), "pinned memory");
    }
    if (!status.ok()) return status;
    status = ToStatus(BLOCKD_GPU(EventCreateWithFlags)(&piece.done, BLOCKD_GPU(EventDisableTiming)),
                      "event");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> PinnedRing::Next() {
  const Piece& piece = pieces_[++turn_ % pieces_.size()];
  absl::Status status = ToStatus(BLOCKD_GPU(EventSynchronize)(piece.done), "pinned memory");
  if (!status.ok()) return status;
  return piece.data;
}

absl::Status PinnedRing::Mark(Stream stream) {
  return ToStatus(BLOCKD_GPU(EventRecord)(pieces_[turn_ % pieces_.size()].done, stream),
                  "pinned memory");
}

}  // namespace blockd::gpu
