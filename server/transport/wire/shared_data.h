// The data of a request in shared memory: blocks, right-hand sides and the places of solutions,
// taken one after another in the order that shared_memory.h gives for the request's operation.
//
// Another process may write the memory at any time. Each place is read once, into a copy, and only
// the copy is checked (CopyOnce). Matrices and right-hand sides are read, and solutions written,
// where they lie. Errors are INVALID_ARGUMENT and name the field of shared_memory.h. One thread at
// a time.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_DATA_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_DATA_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/core/common/request.h"

namespace blockd::server {

// A copy of `from` that later writes to it do not reach: the compiler may not read it again.
template <typename T>
T CopyOnce(const T& from) {
  T copy;
  std::memcpy(&copy, &from, sizeof(T));
  asm volatile("" ::: "memory");
  return copy;
}

// The mapping of a session.
struct SharedMemory {
  std::span<std::byte> mapping;
  uint64_t data_offset = 0;  // where the caller's data begin

  // True if this is a part of the data, and aligned.
  bool Has(uint64_t offset, uint64_t bytes) const {
    return offset % v1::kShmAlignment == 0 && offset >= data_offset && offset <= mapping.size() &&
           bytes <= mapping.size() - offset;
  }
  // A part of the data. INVALID_ARGUMENT with InvalidField, for the field `name`, if it is none.
  absl::StatusOr<std::span<std::byte>> Data(std::string_view name, uint64_t offset,
                                            uint64_t bytes) const;
};

inline constexpr int64_t kPlacesOfMatrix = 2, kPlacesOfColumns = 2;

class SharedData {
 public:
  // The data that the slot, a copy, names.
  static absl::StatusOr<SharedData> Of(const v1::ShmRequest& slot, const SharedMemory& memory);

  size_t num_places() const { return places_.size(); }
  // OK if the request has so many places.
  absl::Status CheckCount(int64_t places) const;
  // The blocks of a matrix of the view's form, which is looked through for NaN, or not.
  absl::Status TakeMatrix(BlockTridiagonalView* matrix, bool check_finite);
  // The right-hand sides of a solve, and where its solution goes.
  absl::Status TakeColumns(SolveManyParams::Columns* columns);
  // Once the request is read: it took all places, and solutions, and matrices that are looked
  // through, do not overlap so that the server would clear or read more than the memory.
  absl::Status CheckTaken() const;
  // The bytes of these matrices and of right-hand sides.
  uint64_t bytes_to_check() const { return blocks_ + columns_; }

 private:
  SharedData(const SharedMemory& memory, std::span<const v1::ShmPlace> places)
      : memory_(memory), places_(places) {}
  // The next place.
  absl::StatusOr<std::span<std::byte>> Take();
  // An error of the place that was taken last.
  absl::Status Invalid(const std::string& came, const std::string& expected) const;
  // A place of so many bytes.
  absl::StatusOr<const std::byte*> TakeBlocks(int64_t bytes);

  SharedMemory memory_;
  std::span<const v1::ShmPlace> places_;  // in the memory
  size_t taken_ = 0;
  uint64_t blocks_ = 0, columns_ = 0;  // bytes of these; no more than the places times the memory
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_DATA_H_
