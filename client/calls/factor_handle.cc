#include "blockd/client/factor_handle.h"

#include <utility>

#include "client/calls/healer.h"
#include "client/calls/release.h"
#include "client/rpc/connection.h"

namespace blockd::client {

FactorHandle::FactorHandle(std::shared_ptr<Connection> connection, Factorization factorization)
    : connection_(std::move(connection)), factorization_(std::move(factorization)) {}

FactorHandle::FactorHandle(FactorHandle&& other) noexcept
    : connection_(std::move(other.connection_)),
      factorization_(std::exchange(other.factorization_, {})) {}

FactorHandle& FactorHandle::operator=(FactorHandle&& other) noexcept {
  if (this != &other) {
    ReleaseLater();
    connection_ = std::move(other.connection_);
    factorization_ = std::exchange(other.factorization_, {});
  }
  return *this;
}

FactorHandle::~FactorHandle() { ReleaseLater(); }

void FactorHandle::ReleaseLater() {
  if (empty()) return;
  Connection::ReleaseLater(connection_, Take());
  connection_.reset();
}

Factorization FactorHandle::Take() {
  Factorization taken = std::exchange(factorization_, {});
  if (taken.healer == nullptr) return taken;
  return taken.healer->Retire();
}

Factorization FactorHandle::get() const {
  if (factorization_.healer == nullptr) return factorization_;
  Factorization now = factorization_.healer->current().factorization;
  now.healer = factorization_.healer;
  return now;
}

RestoreCounters FactorHandle::restore_counters() const {
  return factorization_.healer == nullptr ? RestoreCounters() : factorization_.healer->counters();
}

absl::Status FactorHandle::Release() {
  if (empty()) return absl::OkStatus();
  const std::shared_ptr<Connection> connection = std::move(connection_);
  const Factorization held = Take();
  return ReleaseNow(*connection, {&held.handle, 1}, held.route).status();
}

Factorization FactorHandle::Detach() {
  connection_.reset();
  return Take();
}

}  // namespace blockd::client
