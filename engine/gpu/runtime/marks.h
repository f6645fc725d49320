// Marks, which tell the host that a track's batches are over, and when their columns were moved.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_MARKS_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_MARKS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/arch/vendor.h"
#include "engine/gpu/runtime/move_times.h"

namespace blockd::gpu {

// Work between two marks has a slot in pinned memory, which its kernels write. From one thread at a
// time, but for Await.
class Marks {
 public:
  Marks() = default;
  ~Marks();  // nothing writes to them any more
  Marks(const Marks&) = delete;

  absl::Status Init();
  // The next mark's memory, where kernels that pack and unpack report their times. The last kernel
  // that unpacks also reports number(), which says that all is over. The code that launches these
  // kernels calls PackLaunched and UnpackLaunched.
  MoveTimes* pack() const { return &slots_[Turn()].told->pack; }
  MoveTimes* unpack() const { return &slots_[Turn()].told->unpack; }
  uint64_t number() const { return number_; }
  void PackLaunched() { slots_[Turn()].packs = true; }
  void UnpackLaunched() { slots_[Turn()].unpacks = true; }

  // Marks what is on the stream, on which these kernels were launched, by them if there were any.
  absl::StatusOr<int64_t> Close(Stream stream, const std::vector<const char*>& launched);
  // Waits until that is over. Any thread; INTERNAL with the kernels that were launched.
  absl::StatusOr<std::optional<TrackTimes>> Await(int64_t mark);

 private:
  struct Told {
    MoveTimes pack, unpack;
  };
  struct Slot {
    Told* told = nullptr;
    Event event = nullptr;
    bool packs = false, unpacks = false;
    std::vector<const char*> launched;
  };

  size_t Turn() const { return number_ % slots_.size(); }
  static bool IsTold(const Slot& slot, uint64_t number);

  std::array<Slot, Backend::kMostMarks + 1> slots_;  // one is open
  void* memory_ = nullptr;
  uint64_t number_ = 1;  // of the next mark; what nobody has written is 0
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_MARKS_H_
