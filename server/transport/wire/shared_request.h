// A request of a shared-memory session: its slot, and the parts of the session's memory that it
// names.
//
// Another process may write the memory at any time. Whatever decides something is read once, into a
// copy, and only the copy is checked (CopyOnce). Right-hand sides and matrices are read, and
// solutions written, where they lie. Errors are INVALID_ARGUMENT and name the field of
// shared_memory.h, but for those of Take. One thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_REQUEST_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/core/common/handle.h"
#include "server/core/common/request.h"
#include "server/core/common/tenant.h"
#include "server/core/solver_core.h"
#include "server/core/tenants/budget.h"

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

  // A part of the data. INVALID_ARGUMENT with InvalidField, for the field `name`, if it is not
  // aligned or not all of it lies there.
  absl::StatusOr<std::span<std::byte>> Data(std::string_view name, uint64_t offset,
                                            uint64_t bytes) const;
};

class SharedRequest {
 public:
  // The slot is a copy. It and the others outlive this.
  SharedRequest(const v1::ShmRequest& slot, const SharedMemory& memory, SolverCore* core,
                const TenantPtr& tenant, Reservation* host_bytes)
      : slot_(slot), memory_(memory), core_(core), tenant_(tenant), host_bytes_(host_bytes) {}

  const v1::ShmRequest& slot() const { return slot_; }
  // Takes so many bytes of the host's budget for the request, until it is answered.
  absl::Status Take(int64_t bytes) const {
    return core_->host().Extend(tenant_, bytes, host_bytes_);
  }
  int64_t max_systems() const { return core_->limits().max_systems; }
  bool has_flag(uint32_t flag) const { return (slot_.flags & flag) != 0; }
  Handle handle() const { return HandleOf(slot_.handle); }
  absl::StatusOr<std::span<std::byte>> Data(std::string_view name, uint64_t offset,
                                            uint64_t bytes) const {
    return memory_.Data(name, offset, bytes);
  }
  // The columns of a Solve; those of each of `count` solves, with their handles; and, for systems
  // of the forms that `matrices` have, where blocks and columns lie. Solutions that fit one by one
  // fit together too, and so do blocks that are looked at for NaN: otherwise they overlap, and no
  // request has the server read or clear more than the memory.
  absl::StatusOr<SolveManyParams::Columns> Columns() const;
  absl::Status ReadSolves(int64_t count, std::vector<Handle>* handles,
                          std::vector<SolveManyParams::Columns>* solves) const;
  absl::Status ReadSystems(std::span<BlockTridiagonalView> matrices, bool check_finite,
                           std::span<SolveManyParams::Columns> solves) const;
  // The reply's message has room for what is said of so many systems or solves.
  absl::Status CheckReplyRoom(int64_t items) const;

 private:
  static Handle HandleOf(const uint8_t (&bytes)[Handle::kBytes]) {
    Handle handle;
    std::memcpy(handle.bytes.data(), bytes, Handle::kBytes);
    return handle;
  }
  absl::StatusOr<SolveManyParams::Columns> ColumnsAt(int64_t num_rhs, uint64_t rhs_offset,
                                                     uint64_t solution_offset,
                                                     uint64_t bytes) const;
  absl::Status ReadMatrix(const v1::ShmFactorSolve& places, BlockTridiagonalView* matrix) const;
  absl::Status CheckTogether(std::span<const SolveManyParams::Columns> solves) const;

  const v1::ShmRequest& slot_;
  const SharedMemory memory_;
  SolverCore* const core_;
  const TenantPtr& tenant_;
  Reservation* const host_bytes_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_SHARED_REQUEST_H_
