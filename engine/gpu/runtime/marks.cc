#include "engine/gpu/runtime/marks.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/gpu/runtime/pinned_ring.h"

namespace blockd::gpu {
namespace {

// Looks at memory before the driver is asked, which takes some hundred times as long and would be
// in the way of those who launch.
constexpr int64_t kLooksAQuery = 1 << 14;
// Looks before another thread may have the processor.
constexpr int64_t kLooksAYield = 1 << 8;

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

// The device's clock may be read by two multiprocessors in another order than it seems.
double Seconds(uint64_t begin, uint64_t end) {
  return end > begin ? 1e-9 * static_cast<double>(end - begin) : 0;
}

}  // namespace

// Errors here have nobody to hear them.
Marks::~Marks() {
  for (Slot& slot : slots_) {
    if (slot.event) (void)BLOCKD_GPU(EventDestroy)(slot.event);
  }
  if (memory_) (void)FreePinned(memory_);
}

absl::Status Marks::Init() {
  absl::Status status =
      ToStatus(AllocatePinned(&memory_, slots_.size() * sizeof(Told)), "pinned memory");
  if (!status.ok()) return status;
  Told* told = static_cast<Told*>(memory_);
  for (Slot& slot : slots_) {
    slot.told = new (told++) Told;
    status = ToStatus(BLOCKD_GPU(EventCreateWithFlags)(&slot.event, BLOCKD_GPU(EventDisableTiming)),
                      "event");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Marks::Close(Stream stream, const std::vector<const char*>& launched) {
  Slot& slot = slots_[Turn()];
  slot.launched = launched;
  absl::Status status = ToStatus(BLOCKD_GPU(EventRecord)(slot.event, stream), "a mark");
  if (!status.ok()) return status;
  const auto mark = static_cast<int64_t>(number_++);
  slots_[Turn()].packs = slots_[Turn()].unpacks = false;
  return mark;
}

bool Marks::IsTold(const Slot& slot, uint64_t number) {
  return slot.unpacks && Load(slot.told->unpack.done) == number;
}

absl::StatusOr<std::optional<TrackTimes>> Marks::Await(int64_t mark) {
  const auto number = static_cast<uint64_t>(mark);
  const Slot& slot = slots_[number % slots_.size()];
  for (int64_t looks = 1; !IsTold(slot, number); ++looks) {
    if (looks % kLooksAYield == 0) std::this_thread::yield();
    // A kernel that fails says nothing.
    if (slot.unpacks && looks % kLooksAQuery != 0) continue;
    const Error error = BLOCKD_GPU(EventQuery)(slot.event);
    if (error == kSuccess) break;
    if (error != BLOCKD_GPU(ErrorNotReady)) {
      return absl::InternalError(
          absl::StrCat(ToStatus(error, "kernels").message(),
                       "; launched since all was well: ", absl::StrJoin(slot.launched, ", ")));
    }
    (void)BLOCKD_GPU(GetLastError)();  // or the next launch would seem not to be ready
  }
  if (!slot.unpacks || !slot.packs) return std::nullopt;
  const MoveTimes pack = slot.told->pack, unpack = slot.told->unpack;
  return TrackTimes{.pack_seconds = Seconds(pack.begin, pack.end),
                    .compute_seconds = Seconds(pack.end, unpack.begin),
                    .unpack_seconds = Seconds(unpack.begin, unpack.end)};
}

}  // namespace blockd::gpu
