// A factorization on the server that is given back when nobody holds it any more.
#ifndef BLOCKD_CLIENT_FACTOR_HANDLE_H_
#define BLOCKD_CLIENT_FACTOR_HANDLE_H_

#include <memory>

#include "absl/status/status.h"
#include "blockd/client/results.h"

namespace blockd::client {

class Connection;

// Move-only. Not thread-safe itself, but what it names may be used from any thread. The destructor
// starts the release and returns at once; it never blocks and never throws.
class FactorHandle {
 public:
  FactorHandle() = default;  // empty
  FactorHandle(FactorHandle&& other) noexcept;
  FactorHandle& operator=(FactorHandle&& other) noexcept;
  ~FactorHandle();

  bool empty() const { return connection_ == nullptr; }
  // The factorization that this handle stands for now. A copy of a healing one
  // (FactorOptions::restore) heals as long as this handle exists. Thread-safe while no thread
  // moves, releases or detaches the handle.
  Factorization get() const;
  operator Factorization() const { return get(); }  // NOLINT: where one is expected
  // Counts of what healing has done so far; zero for a handle that does not heal.
  RestoreCounters restore_counters() const;

  // Releases now and waits for the answer, retrying; empty afterwards. OK if it was empty.
  absl::Status Release();
  // Forgets it without releasing: it stays on the server until its lease is over or it is evicted.
  Factorization Detach();

 private:
  friend class SolverClient;
  FactorHandle(std::shared_ptr<Connection> connection, Factorization factorization);
  void ReleaseLater();
  Factorization Take();  // what is to be released, or detached

  std::shared_ptr<Connection> connection_;
  Factorization factorization_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_FACTOR_HANDLE_H_
