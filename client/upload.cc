#include "client/upload.h"

#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "client/wire.h"

namespace blockd::client {
namespace {

enum Operation : intptr_t { kStart = 1, kRead, kWrite, kFinish };

void* Tag(Operation operation) { return reinterpret_cast<void*>(operation); }

// The call, driven by one thread.
class Upload {
 public:
  Upload(const Connection& connection, absl::Time deadline, const std::string& route,
         grpc::CompletionQueue& queue)
      : queue_(queue) {
    connection.Prepare(context_, deadline, route);
    call_ = connection.bulk().PrepareCall(&context_, "/blockd.v1.Solver/FactorStream", &queue_);
    call_->StartCall(Tag(kStart));
    Await(kStart);
    call_->Read(&reply_, Tag(kRead));  // now, to hear at once if the server answers early
  }

  // False once the server has answered or the call is broken.
  bool Write(const grpc::ByteBuffer& message) {
    if (read_done_) return false;
    call_->Write(message, Tag(kWrite));
    return Await(kWrite) && !read_done_;
  }

  absl::Status Finish(v1::FactorReply* reply, std::string* route) {
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

 private:
  // Until this operation has ended; the read may end in between.
  bool Await(Operation operation) {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      if (tag == Tag(kRead)) {
        read_done_ = true;
        read_ok_ = ok;
      }
      if (tag == Tag(operation)) return ok;
    }
    return false;
  }

  grpc::CompletionQueue& queue_;
  grpc::ClientContext context_;
  grpc::ByteBuffer reply_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool read_done_ = false;
  bool read_ok_ = false;
};

// Polls the connection until it has let go of the memory: nobody else does.
void AwaitReturn(MemoryLoan& loan, grpc::CompletionQueue& queue) {
  while (!loan.AwaitReturn(absl::ZeroDuration())) {
    void* tag;
    bool ok;
    queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + absl::Milliseconds(1)));
  }
}

}  // namespace

absl::Status UploadAndFactor(const Connection& connection, absl::Time deadline,
                             const std::string& sent_route, const v1::FactorStreamHeader& header,
                             std::span<const SystemView> systems,
                             const std::function<void(int64_t, int64_t)>& progress,
                             v1::FactorReply* reply, std::string* route) {
  std::vector<Bytes> regions;
  int64_t total = 0;
  for (const SystemView& system : systems) {
    regions.push_back(DiagonalBytes(system));
    regions.push_back(CouplingBytes(system));
    total += system.diagonal_bytes() + system.coupling_bytes();
  }
  v1::FactorStreamRequest first;
  *first.mutable_header() = header;

  MemoryLoan loan;
  Chunker chunker(std::move(regions), connection.options().chunk_bytes,
                  v1::FactorStreamRequest::kChunkFieldNumber, "", &loan);
  grpc::CompletionQueue queue;
  absl::Status status;
  {
    // The call goes before the memory is awaited, because it holds what it could not send.
    Upload upload(connection, deadline, sent_route, queue);
    bool open = upload.Write(Serialize(first));
    while (open && !chunker.done()) {
      open = upload.Write(chunker.Next());
      if (progress) progress(chunker.sent_bytes(), total);
    }
    status = upload.Finish(reply, route);
  }
  AwaitReturn(loan, queue);
  return status;
}

}  // namespace blockd::client
