#include "server/transport/shm/shm_opening.h"

namespace blockd::server {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{16} << 20;  // made at a time

}  // namespace

void ShmOpening::Run() noexcept {
  if (!cancelled() && MakeSome()) return makers_->Post(shared_from_this());
  if (cancelled()) mapping_ = absl::CancelledError("the caller has gone");
  done_.store(true, std::memory_order_release);
  on_done_();
}

bool ShmOpening::MakeSome() {
  if (!mapping_.has_value()) mapping_ = ShmMapping::Create(asked.slots, asked.data_bytes);
  if (!mapping_->ok()) return false;
  const absl::StatusOr<bool> whole = (*mapping_)->Populate(kPieceBytes);
  if (!whole.ok()) {
    mapping_ = whole.status();
    return false;
  }
  if (!*whole) return true;
  if (for_devices_) registered_ = (*mapping_)->RegisterWithDevices();
  return false;
}

}  // namespace blockd::server
