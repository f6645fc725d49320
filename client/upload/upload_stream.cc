#include "client/upload/upload_stream.h"

#include "absl/time/clock.h"

namespace blockd::client {
namespace {

enum Operation : intptr_t { kStart = 1, kGreeting, kRead, kWrite, kFinish };

void* Tag(intptr_t operation) { return reinterpret_cast<void*>(operation); }

}  // namespace

UploadStream::UploadStream(const Connection& connection, int channel, absl::Time deadline,
                           const std::string& route, grpc::CompletionQueue* queue)
    : queue_(*queue) {
  connection.Prepare(context_, deadline, route);
  call_ =
      connection.bulk(channel).PrepareCall(&context_, "/blockd.v1.Solver/FactorStream", &queue_);
  call_->StartCall(Tag(kStart));
  Await(kStart);
  // Now, to hear at once what the server says early; the answer is read after it.
  call_->ReadInitialMetadata(Tag(kGreeting));
}

bool UploadStream::Write(const grpc::ByteBuffer& message) {
  if (read_done_) return false;
  call_->Write(message, Tag(kWrite));
  return Await(kWrite) && !read_done_;
}

void UploadStream::Poll(absl::Duration limit) {
  void* tag = nullptr;
  bool ok = false;
  const auto until = absl::ToChronoTime(absl::Now() + limit);
  if (queue_.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT) Take(tag, ok);
}

absl::Status UploadStream::Finish(v1::FactorReply* reply, std::string* route) {
  if (!read_done_) {
    call_->WritesDone(Tag(kWrite));
    Await(kWrite);
  }
  if (!read_done_) Await(kRead);
  grpc::Status status;
  call_->Finish(&status, Tag(kFinish));
  Await(kFinish);
  if (!status.ok()) return ToStatus(status);
  if (!read_ok_ || !Parse(reply_, reply)) {
    return absl::InternalError("the server sent no reply to FactorStream");
  }
  *route = RouteOf(context_);
  return absl::OkStatus();
}

void UploadStream::Take(void* tag, bool ok) {
  if (tag == Tag(kGreeting)) {
    const auto& metadata = context_.GetServerInitialMetadata();
    const auto found = metadata.find("blockd-upload");
    open_ = ok && found != metadata.end() && found->second == "open";
    call_->Read(&reply_, Tag(kRead));
  } else if (tag == Tag(kRead)) {
    read_done_ = true;
    read_ok_ = ok;
  }
}

bool UploadStream::Await(intptr_t operation) {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    Take(tag, ok);
    if (tag == Tag(operation)) return ok;
  }
  return false;
}

void AwaitReturn(MemoryLoan& loan, grpc::CompletionQueue& queue) {
  while (!loan.AwaitReturn(absl::ZeroDuration())) {
    void* tag;
    bool ok;
    queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + absl::Milliseconds(1)));
  }
}

}  // namespace blockd::client
