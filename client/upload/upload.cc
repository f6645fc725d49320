#include "client/upload/upload.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/base/random.h"
#include "client/upload/upload_ranges.h"
#include "client/upload/upload_stream.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

// Bytes that are worth a connection of their own, where the client chooses.
constexpr int64_t kBytesPerConnection = int64_t{64} << 20;
constexpr int64_t kMostChosen = 4;
constexpr int64_t kUploadIdBytes = 16;

// `bytes` of the regions from `first` on.
std::vector<Bytes> Cut(std::span<const Bytes> regions, int64_t first, int64_t bytes) {
  std::vector<Bytes> cut;
  for (const Bytes region : regions) {
    const int64_t size = std::ssize(region);
    const int64_t from = std::min(first, size), taken = std::min(bytes, size - from);
    if (taken > 0) {
      cut.push_back(region.subspan(static_cast<size_t>(from), static_cast<size_t>(taken)));
    }
    first -= from;
    bytes -= taken;
  }
  return cut;
}

// One attempt. The thread of the caller drives the stream that begins the upload; each further
// connection has a thread of its own.
class Upload {
 public:
  Upload(const Connection& connection, absl::Time deadline, const v1::FactorStreamHeader& header,
         std::span<const SystemView> systems, const std::function<void(int64_t, int64_t)>& progress)
      : connection_(connection), deadline_(deadline), progress_(progress) {
    for (const SystemView& system : systems) {
      for (const Bytes part : system.parts()) regions_.push_back(part);
      total_ += system.bytes();
    }
    *first_.mutable_header() = header;
  }

  absl::Status Run(int connections, const std::string& sent_route, v1::FactorReply* reply,
                   std::string* route) {
    if (connections > 1) first_.mutable_header()->set_upload_id(RandomBytes(kUploadIdBytes));
    grpc::CompletionQueue queue;
    MemoryLoan loan;
    absl::Status status;
    {
      // The call goes before the memory is awaited, because it holds what it could not send.
      UploadStream stream(connection_, 0, deadline_, sent_route, &queue);
      bool writing = stream.Write(Serialize(first_));
      Chunker chunker = ChunkerOf({0, total_}, &loan);
      bool alone = connections > 1;
      while (writing && others_status().ok()) {
        if (alone && stream.open()) {
          alone = false;
          // Before the others begin, who count what they send there too.
          ranges_.emplace(sent_bytes_, total_, connections);
          BeginOthers(connections, stream.route());
          chunker = ChunkerOf(ranges_->TakeFront(), &loan);
        } else if (chunker.done() && ranges_) {
          chunker = ChunkerOf(ranges_->TakeFront(), &loan);
        }
        if (chunker.done()) break;
        writing = SendNext(stream, chunker);
        Report();
      }
      AwaitOthers(stream, writing);
      status = stream.Finish(reply, route);
      // Why this end cancelled it.
      if (absl::IsCancelled(status) && !others_status().ok()) status = others_status();
    }
    AwaitReturn(loan, queue);
    return status;
  }

 private:
  // A stream that joined over a connection of its own.
  struct Other {
    std::thread thread;
    UploadStream* stream = nullptr;  // while it may be cancelled
  };

  Chunker ChunkerOf(const UploadRanges::Range& range, MemoryLoan* loan) const {
    return Chunker(Cut(regions_, range.first, range.bytes),
                   static_cast<size_t>(connection_.options().chunk_bytes),
                   v1::FactorStreamRequest::kChunkFieldNumber, "", loan);
  }

  // As UploadStream::Write.
  bool SendNext(UploadStream& stream, Chunker& chunker) {
    const int64_t before = chunker.sent_bytes();
    const bool writing = stream.Write(chunker.Next());
    sent_bytes_ += chunker.sent_bytes() - before;
    return writing;
  }

  void BeginOthers(int connections, const std::string& route) {
    absl::MutexLock lock(&mutex_);
    for (int channel = 1; channel < connections; ++channel) {
      Other& other = others_.emplace_back();
      ++running_;
      other.thread = std::thread([this, &other, channel, route] {
        const UploadRanges::Range range = ranges_->TakeBack();
        if (range.bytes > 0) Bring(other, range, channel, route);
        absl::MutexLock lock(&mutex_);
        --running_;
      });
    }
  }

  // This range, and then what is left.
  void Bring(Other& other, UploadRanges::Range range, int channel, const std::string& route) {
    absl::Status status;
    grpc::CompletionQueue queue;
    MemoryLoan loan;
    {
      UploadStream stream(connection_, channel, deadline_, route, &queue);
      {
        absl::MutexLock lock(&mutex_);
        other.stream = &stream;
        if (cancelled_) stream.Cancel();
      }
      v1::FactorStreamRequest request;
      v1::UploadJoin& join = *request.mutable_join();
      join.set_upload_id(first_.header().upload_id());
      bool writing = true;
      while (writing && range.bytes > 0) {
        join.set_first_byte(range.first);
        join.set_num_bytes(range.bytes);
        writing = stream.Write(Serialize(request));
        Chunker chunker = ChunkerOf(range, &loan);
        while (writing && !chunker.done()) writing = SendNext(stream, chunker);
        if (!others_status().ok()) break;
        range = ranges_->TakeBack();
      }
      v1::FactorReply reply;
      std::string unused;
      status = stream.Finish(&reply, &unused);
      absl::MutexLock lock(&mutex_);
      other.stream = nullptr;
    }
    AwaitReturn(loan, queue);
    // Somebody else's server, if the first stream is not at its end too.
    if (absl::IsNotFound(status)) status = absl::UnavailableError(status.message());
    absl::MutexLock lock(&mutex_);
    others_status_.Update(status);
  }

  // The first stream's end comes after theirs. Where one fails, all are cancelled.
  void AwaitOthers(UploadStream& stream, bool writing) {
    if (others_.empty()) return;
    while (Running() && writing && others_status().ok() && !stream.answered()) {
      stream.Poll(absl::Milliseconds(1));
      Report();
    }
    if (!writing || stream.answered()) CancelOthers();
    if (!others_status().ok()) {
      CancelOthers();
      if (!stream.answered()) stream.Cancel();
    }
    for (Other& other : others_) other.thread.join();
    if (!others_status().ok() && !stream.answered()) stream.Cancel();
    Report();
  }

  void CancelOthers() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (Other& other : others_) {
      if (other.stream != nullptr) other.stream->Cancel();
    }
  }

  bool Running() {
    absl::MutexLock lock(&mutex_);
    return running_ > 0;
  }

  absl::Status others_status() {
    absl::MutexLock lock(&mutex_);
    return others_status_;
  }

  void Report() {
    const int64_t sent = sent_bytes_;
    if (progress_ && sent > reported_) progress_(sent, total_);
    reported_ = sent;
  }

  const Connection& connection_;
  const absl::Time deadline_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::vector<Bytes> regions_;
  int64_t total_ = 0, reported_ = 0;
  v1::FactorStreamRequest first_;
  std::atomic<int64_t> sent_bytes_ = 0;  // on all streams
  std::optional<UploadRanges> ranges_;   // once others may join
  std::deque<Other> others_;             // changed by the caller's thread only
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status others_status_ ABSL_GUARDED_BY(mutex_);  // the first failure
};

}  // namespace

int UploadConnections(const ClientOptions& options, int64_t bytes) {
  if (options.upload_connections > 0) return options.upload_connections;
  const int64_t processors = std::thread::hardware_concurrency();
  return static_cast<int>(
      std::clamp<int64_t>(std::min(bytes / kBytesPerConnection, processors / 2), 1, kMostChosen));
}

absl::Status UploadAndFactor(const Connection& connection, int connections, absl::Time deadline,
                             const std::string& sent_route, const v1::FactorStreamHeader& header,
                             std::span<const SystemView> systems,
                             const std::function<void(int64_t, int64_t)>& progress,
                             v1::FactorReply* reply, std::string* route) {
  Upload upload(connection, deadline, header, systems, progress);
  return upload.Run(connections, sent_route, reply, route);
}

}  // namespace blockd::client
