// The streams of a caller: uploads, and several requests at once.
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/soak/tenant.h"

namespace blockd::soak {
namespace {

using enum grpc::StatusCode;
using Writer = grpc::ClientWriter<v1::FactorStreamRequest>;

// Sends the header and the first `bytes` of the system in pieces; false if the server has ended it.
bool Send(Writer& writer, const System& system, size_t bytes) {
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = system.spec;
  message.mutable_header()->set_num_systems(1);
  if (!writer.Write(message)) return false;
  const std::string all = system.data.diagonal() + system.data.coupling();
  constexpr size_t kPiece = 50'000;
  for (size_t at = 0; at < bytes; at += kPiece) {
    message.set_chunk(all.substr(at, std::min(kPiece, bytes - at)));
    if (!writer.Write(message)) return false;
  }
  return true;
}

}  // namespace

void Caller::Upload() {
  const System& system = Chance(0.05) ? LargeSystem() : Systems()[Below(Systems().size())];
  v1::FactorReply reply;
  const auto writer = stub_->FactorStream(NewContext(), &reply);
  if (Send(*writer, system, system.data.diagonal().size() + system.data.coupling().size())) {
    writer->WritesDone();
  }
  const grpc::Status status = writer->Finish();
  Count("FactorStream", status, {RESOURCE_EXHAUSTED, UNAVAILABLE});
  Note(status, nullptr);
  if (status.ok()) Keep(reply, system, false);
}

void Caller::UploadBroken() {
  const System& system = LargeSystem();
  v1::FactorReply reply;
  grpc::ClientContext* context = NewContext();
  const auto writer = stub_->FactorStream(context, &reply);
  const bool goes_on = Send(*writer, system, Below(system.data.diagonal().size()));
  const bool cancels = Chance(0.5);
  if (cancels) {
    context->TryCancel();
  } else if (goes_on) {
    writer->WritesDone();  // too early
  }
  const grpc::Status status = writer->Finish();
  if (cancels) {
    Count("FactorStream that is cancelled", status, {CANCELLED, RESOURCE_EXHAUSTED, UNAVAILABLE},
          status.ok() ? "factored a half" : "");
  } else {
    Count("FactorStream that ends early", status,
          {INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE},
          status.ok() ? "factored a half" : "");
  }
  Note(status, nullptr);
}

// Some requests at once, of which some are cancelled, have no time, replace each other or are
// wrong; some streams are broken off before all is answered.
void Caller::Stream() {
  if (Any() == nullptr) return;
  struct Asked {
    Held held;
    bool cancelled = false, short_of_time = false, chunked = false;
    v1::SolveReply reply;
    std::string bytes;
  };
  std::map<uint64_t, Asked> asked;
  const bool breaks = Chance(0.2);
  grpc::ClientContext* context = NewContext();
  const auto stream = stub_->SolveStream(context);
  const size_t requests = 4 + Below(20);
  bool goes_on = true;
  for (uint64_t id = 1; id <= requests && goes_on; ++id) {
    Asked one;
    one.held = held_[Below(held_.size())];
    v1::SolveStreamRequest message;
    message.set_id(id);
    *message.mutable_request() = RequestOf(one.held, 1);
    std::string rhs;
    if (Chance(0.3)) {  // a header, then chunks
      rhs = std::move(*message.mutable_request()->mutable_rhs());
      message.mutable_request()->clear_rhs();
    }
    if (Chance(0.1)) {
      message.mutable_timeout()->set_nanos(static_cast<int32_t>(1 + Below(2'000'000)));
      one.short_of_time = true;
    }
    if (Chance(0.1)) {
      message.set_replace_last(true);
      for (auto& [other, before] : asked) {
        before.cancelled |= before.held.handle == one.held.handle;
      }
    }
    one.cancelled = Chance(0.1);
    asked[id] = one;
    goes_on = stream->Write(message);
    for (size_t at = 0; at < rhs.size() && goes_on; at += 1000) {
      v1::SolveStreamRequest chunk;
      chunk.set_id(id);
      chunk.set_chunk(rhs.substr(at, 1000));
      goes_on = stream->Write(chunk);
    }
    if (one.cancelled && goes_on) {
      v1::SolveStreamRequest cancel;
      cancel.set_id(id);
      cancel.mutable_cancel();
      goes_on = stream->Write(cancel);
    }
  }
  if (breaks) {
    context->TryCancel();
  } else if (goes_on) {
    stream->WritesDone();
  }
  std::vector<std::string> gone;
  v1::SolveStreamReply message;
  while (stream->Read(&message)) {
    const auto found = asked.find(message.id());
    if (found == asked.end()) {
      Count("Solve in a stream", grpc::Status::OK, {}, "an answer to what was not asked");
      continue;
    }
    Asked& one = found->second;
    grpc::Status status;
    std::string wrong;
    if (message.has_status()) {
      status = grpc::Status(static_cast<grpc::StatusCode>(message.status().code()),
                            message.status().message(), message.status().SerializeAsString());
      if (status.error_code() == CANCELLED && !one.cancelled) wrong = "nobody cancelled it";
      if (status.error_code() == DEADLINE_EXCEEDED && !one.short_of_time) wrong = "had time";
      if (status.error_code() == NOT_FOUND) gone.push_back(one.held.handle);
    } else {
      if (message.has_reply()) one.reply = message.reply();
      one.bytes += message.has_chunk() ? message.chunk() : one.reply.solution();
      if (one.bytes.size() < static_cast<size_t>(one.held.system->rows()) * sizeof(double))
        continue;
      wrong = one.held.system->CheckSolution(one.bytes, 1, one.reply.backward_error_bound());
    }
    Count("Solve in a stream", status,
          {CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE}, wrong);
    asked.erase(found);
  }
  const grpc::Status end = stream->Finish();
  const bool lost = end.ok() && !asked.empty();
  Count(breaks ? "SolveStream that is broken off" : "SolveStream", end,
        {breaks ? CANCELLED : RESOURCE_EXHAUSTED, UNAVAILABLE},
        lost ? absl::StrCat(asked.size(), " requests without an answer") : "");
  Note(end, nullptr);
  for (const std::string& handle : gone) {
    for (const Held& held : held_) {
      if (held.handle != handle) continue;
      Forget(&held);
      break;
    }
  }
}

}  // namespace blockd::soak
