#include "blockd/client/factor_handle.h"

#include <utility>

#include "client/connection.h"
#include "client/release.h"

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
  Connection::ReleaseLater(connection_, factorization_.handle);
  connection_.reset();
}

absl::Status FactorHandle::Release() {
  if (empty()) return absl::OkStatus();
  const std::shared_ptr<Connection> connection = std::move(connection_);
  return ReleaseNow(*connection, {&factorization_.handle, 1}).status();
}

Factorization FactorHandle::Detach() {
  connection_.reset();
  return std::exchange(factorization_, {});
}

}  // namespace blockd::client
