// A session of shared memory on its way: its memory is made, which takes the longer the larger it
// is.
//
// It is made a piece at a time, and several in turn, so that a small one does not wait for a large
// one, nor anybody for one whose caller has gone. Made by the makers' threads; all else is of the
// port's.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_OPENING_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_OPENING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/descriptors.h"
#include "server/core/tenants/budget.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/shm/shm_mapping.h"

namespace blockd::server {

class ShmOpening final : public Executor::Task, public std::enable_shared_from_this<ShmOpening> {
 public:
  // The parts of the session beside its memory. `place` and `host_bytes` stand for that memory.
  struct Asked {
    std::shared_ptr<const void> place;
    ContextPtr context;
    Reservation host_bytes;
    FileDescriptor socket;
    uint32_t slots = 0;
    uint64_t data_bytes = 0;
  };
  // `makers` outlives it, but for its end. `on_done` is called by a maker, once it is done().
  ShmOpening(Asked asked, bool for_devices, Executor* makers, std::function<void()> on_done)
      : asked(std::move(asked)),
        for_devices_(for_devices),
        makers_(makers),
        on_done_(std::move(on_done)) {}

  void Start() {
    started_ = true;
    makers_->Post(shared_from_this());
  }
  bool started() const { return started_; }
  // The caller has gone: what is made so far goes back. Any thread.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Once it is done. CANCELLED; RESOURCE_EXHAUSTED if the host has not that much.
  absl::StatusOr<ShmMapping>& mapping() { return *mapping_; }
  // OK if devices reach the memory, else the driver's error; absent: no device would.
  const std::optional<absl::Status>& registered() const { return registered_; }

  void Run() noexcept override;

  Asked asked;  // first: the memory goes before it

 private:
  // False once there is nothing left to do.
  bool MakeSome();

  const bool for_devices_;
  Executor* const makers_;
  const std::function<void()> on_done_;
  bool started_ = false;
  std::atomic<bool> cancelled_{false}, done_{false};
  std::optional<absl::StatusOr<ShmMapping>> mapping_;
  std::optional<absl::Status> registered_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_OPENING_H_
