#include "server/transport/shm/shm_call.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"
#include "server/transport/wire/wire_scan.h"

namespace blockd::server {
namespace {

// More of either keep the session's other requests waiting.
constexpr uint32_t kFewPlaces = 256 * kPlacesOfColumns;
constexpr uint32_t kShortMessage = 8 << 10;  // with so many handles
// The host bytes of what a place stands for: a view of a matrix, a solve, its handle and its
// status.
constexpr int64_t kHostBytesPerPlace = 256;

}  // namespace

ShmCall::ShmCall(std::shared_ptr<ShmSession> session, const v1::ShmRequest& request,
                 ContextPtr context)
    : active_(&session->state()->tracker),
      session_(std::move(session)),
      request_(request),
      kind_(FindOperation(request.operation)),
      record_(session_->state(), kind_ == nullptr ? Method::kSolve : kind_->method,
              std::move(context)),
      call_(kind_ == nullptr ? nullptr : kind_->make()) {}

void ShmCall::Start() {
  if (request_.operation == v1::ShmOperation::kCancel) {
    session_->Cancel(request_.other_id);
    v1::ShmReply reply{};
    reply.id = request_.id;
    return session_->Answer(reply);
  }
  if (IsLong()) return session_->state()->work.Post(shared_from_this());
  Run();
}

bool ShmCall::IsLong() const {
  return call_ != nullptr &&
         (request_.message_bytes > std::min<size_t>(kShortMessage, call_->ShortBytes()) ||
          request_.num_places > kFewPlaces || call_->IsLong(nullptr));
}

void ShmCall::Run() noexcept {
  bool has_turn = false;
  try {
    if (next_ == Step::kReply) return Reply();
    if (next_ == Step::kRead) {
      const absl::Status status = Read();
      if (!status.ok()) return Fail(status);
      next_ = scans_ ? Step::kAwaitScan : Step::kAsk;
      if (scans_ && !IsLong()) return session_->state()->work.Post(shared_from_this());
    }
    if (next_ == Step::kAwaitScan) {
      next_ = Step::kAsk;
      // Another thread may have it from here on.
      if (!session_->AwaitScan(shared_from_this())) return;
    }
    has_turn = scans_;
    Ask();
  } catch (const std::bad_alloc&) {
    if (!replied_) {
      Fail(absl::ResourceExhaustedError("the server's host has no memory for the request"));
    }
  }
  if (has_turn) session_->EndScan();
}

absl::Status ShmCall::Read() {
  const SharedMemory memory = session_->mapping().memory();
  if (request_.reply_bytes > 0) {
    const auto room = memory.Data("reply_offset", request_.reply_offset, request_.reply_bytes);
    if (!room.ok()) return room.status();
    room_ = *room;
  }
  if (call_ == nullptr) {
    return InvalidFieldError("operation", absl::StrCat(static_cast<uint32_t>(request_.operation)),
                             "an operation of shared memory");
  }
  if (const uint64_t least = v1::ShmReplyRoom(request_.num_places); room_.size() < least) {
    return InvalidFieldError("reply_bytes", absl::StrCat(room_.size()), absl::StrCat(">= ", least));
  }
  absl::Status status;
  if (call_->is_work()) status = session_->state()->CheckAcceptsWork();
  if (status.ok()) status = ReadMessage();
  if (status.ok()) status = ReadData();
  return status;
}

absl::Status ShmCall::ReadMessage() {
  ServiceState* const state = session_->state();
  const auto bytes = session_->mapping().memory().Data("message_offset", request_.message_offset,
                                                       request_.message_bytes);
  if (!bytes.ok()) return bytes.status();
  absl::Status status = state->CheckMessageSize(bytes->size());
  if (!status.ok()) return status;
  if (bytes->size() <= kTinyMessageBytes) {
    std::array<std::byte, kTinyMessageBytes> own;
    std::ranges::copy(*bytes, own.begin());
    if (call_->message().ParseFromArray(own.data(), static_cast<int>(bytes->size()))) return status;
  }
  // The copy, while it is parsed.
  const absl::StatusOr<Reservation> copied =
      state->core->host().Reserve(record_.context()->tenant, static_cast<int64_t>(bytes->size()));
  if (!copied.ok()) return copied.status();
  // Not in memory of gRPC's, which ends the process where there is none.
  const std::vector<std::byte> own(bytes->begin(), bytes->end());
  const std::string_view text(reinterpret_cast<const char*>(own.data()), own.size());
  return state->Parse(AsBuffer(text), *record_.context(), &call_->message(), &host_bytes_);
}

absl::Status ShmCall::ReadData() {
  ServiceState* const state = session_->state();
  absl::Status status;
  if (request_.num_places > kPlacesOfColumns) {
    status = state->core->host().Extend(record_.context()->tenant,
                                        request_.num_places * kHostBytesPerPlace, &host_bytes_);
    if (!status.ok()) return status;
  }
  absl::StatusOr<SharedData> data = SharedData::Of(request_, session_->mapping().memory());
  if (!data.ok()) return data.status();
  status = call_->Read({.shared = &*data, .max_systems = state->core->limits().max_systems});
  call_->Describe(&record_);
  if (status.ok()) status = data->CheckTaken();
  if (status.ok()) {
    status = ReadPriority("options.priority", call_->priority(), record_.context().get());
  }
  scans_ = call_->checks_finite() && data->bytes_to_check() > kShortMessageBytes;
  return status;
}

void ShmCall::Ask() {
  call_->Ask(*session_->state()->core, record_.context(),
             [self = shared_from_this()](const absl::Status& answer) mutable {
               std::exchange(self, nullptr)->OnAnswered(answer);
             });
}

// On a thread of the core, or on the poller's.
void ShmCall::OnAnswered(const absl::Status& status) {
  if (!status.ok()) return Fail(status);
  next_ = Step::kReply;
  ServiceState* const state = session_->state();
  if (call_->BytesToClear() > kShortMessageBytes) return state->work.Post(shared_from_this());
  if (call_->has_long_reply()) return state->replies.Post(shared_from_this());
  Run();
}

void ShmCall::Reply() {
  record_.SetCost(call_->cost());
  Answer(absl::OkStatus(), call_->Reply(room_.size()).get());
}

void ShmCall::Fail(const absl::Status& status) {
  const v1::RpcStatus wire = ToRpcStatus(status);
  Answer(status, &wire);
}

void ShmCall::Answer(const absl::Status& status, const google::protobuf::Message* message) {
  v1::ShmReply reply{};
  reply.id = request_.id;
  reply.code = static_cast<int32_t>(status.code());
  if (const size_t bytes = message->ByteSizeLong(); bytes <= room_.size()) {
    reply.message_bytes = static_cast<uint32_t>(bytes);
    message->SerializeToArray(room_.data(), static_cast<int>(bytes));
  }
  record_.SetOutcome(status);
  host_bytes_.Reset();  // whoever is told of the answer finds everything back
  replied_ = true;
  session_->Answer(reply);
  record_.Publish();
}

}  // namespace blockd::server
