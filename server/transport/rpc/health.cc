#include "server/transport/rpc/health.h"

#include <optional>
#include <utility>
#include <vector>

#include "google/protobuf/wrappers.pb.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr size_t kMostBytes = 4096;  // of a request

// HealthCheckRequest has the service's name as its field 1: its bytes are those of a StringValue.
std::optional<std::string> ServiceOf(const grpc::ByteBuffer& message) {
  google::protobuf::StringValue request;
  if (message.Length() > kMostBytes || !ParseMessage(message, &request)) return std::nullopt;
  return std::move(*request.mutable_value());
}

// HealthCheckResponse has the status as its field 1.
grpc::ByteBuffer ReplyOf(HealthBoard::Status status) {
  google::protobuf::Int32Value reply;
  reply.set_value(static_cast<int32_t>(status));
  return SerializeMessage(reply);
}

grpc::Status NoRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "no HealthCheckRequest, or a very long one"};
}

}  // namespace

class HealthBoard::CheckCall final : public ServerCall {
 public:
  CheckCall(HealthBoard* board, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&board->calls_, std::move(incoming)), board_(board) {}

 private:
  void OnBegin() override { Read(); }
  void OnRead(bool ok) override {
    const std::optional<std::string> service = ok ? ServiceOf(message()) : std::nullopt;
    message().Clear();
    if (!service) return Finish(NoRequest());
    const Status status = board_->StatusOf(*service);
    if (status == Status::kServiceUnknown) {
      return Finish({grpc::StatusCode::NOT_FOUND, "service name unknown"});
    }
    WriteAndFinish(ReplyOf(status));
  }
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override {}
  void OnFailure(const absl::Status& status) override { Finish(ToGrpcStatus(status)); }

  HealthBoard* const board_;
};

// Says the status, and each one after it that it finds once the last is written.
class HealthBoard::WatchCall final : public ServerCall {
 public:
  WatchCall(HealthBoard* board, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&board->calls_, std::move(incoming)), board_(board) {}

  void Look() {
    Guard([this] {
      absl::MutexLock lock(&mutex_);
      if (ended_ || writing_ || !service_) return;
      const Status status = board_->StatusOf(*service_);
      if (status == said_) return;
      said_ = status;
      writing_ = true;
      Write(ReplyOf(status));
    });
  }

 private:
  void OnBegin() override { Read(); }
  void OnRead(bool ok) override {
    std::optional<std::string> service = ok ? ServiceOf(message()) : std::nullopt;
    message().Clear();
    if (!service) return End(NoRequest());
    {
      absl::MutexLock lock(&mutex_);
      service_ = std::move(service);
    }
    {
      absl::MutexLock lock(&board_->mutex_);
      board_->watching_.emplace(this, std::static_pointer_cast<WatchCall>(shared_from_this()));
    }
    StayWaiting();
    Look();
  }
  void OnWritten(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) return End(grpc::Status::CANCELLED);
    Look();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    absl::MutexLock lock(&board_->mutex_);
    board_->watching_.erase(this);
  }
  void OnFailure(const absl::Status& status) override { End(ToGrpcStatus(status)); }

  void End(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    Finish(status);
  }

  HealthBoard* const board_;
  absl::Mutex mutex_;
  std::optional<std::string> service_ ABSL_GUARDED_BY(mutex_);
  std::optional<Status> said_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

void HealthBoard::Set(const std::string& service, bool serving) {
  std::vector<std::shared_ptr<WatchCall>> watching;
  {
    absl::MutexLock lock(&mutex_);
    statuses_[service] = serving ? Status::kServing : Status::kNotServing;
    for (const auto& [key, weak] : watching_) {
      if (auto call = weak.lock()) watching.push_back(std::move(call));
    }
  }
  for (const auto& call : watching) call->Look();
}

HealthBoard::Status HealthBoard::StatusOf(const std::string& service) {
  absl::MutexLock lock(&mutex_);
  const auto found = statuses_.find(service);
  return found == statuses_.end() ? Status::kServiceUnknown : found->second;
}

std::shared_ptr<ServerCall> HealthBoard::MakeCall(std::string_view method,
                                                  std::unique_ptr<IncomingCall>* incoming) {
  if (method == "/grpc.health.v1.Health/Check") {
    return std::make_shared<CheckCall>(this, std::move(*incoming));
  }
  if (method == "/grpc.health.v1.Health/Watch") {
    return std::make_shared<WatchCall>(this, std::move(*incoming));
  }
  return nullptr;
}

}  // namespace blockd::server
