#include "client/session/solve_stream.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/calls/solve_many.h"
#include "client/wire/requests.h"

namespace blockd::client {
std::shared_ptr<SolveStream> SolveStream::Start(std::shared_ptr<Connection> connection,
                                                grpc::GenericStub& stub, absl::Time deadline,
                                                const std::string& route) {
  std::shared_ptr<SolveStream> stream(new SolveStream(std::move(connection)));
  stream->self_ = stream;
  stream->connection_->Prepare(stream->context_, deadline, route);
  KeepCallbackThreads();
  stub.PrepareBidiStreamingCall(&stream->context_, "/blockd.v1.Solver/SolveStream", {},
                                stream.get());
  stream->AddHold();  // until reading ends, because Send writes from outside of the reactions
  stream->StartRead(&stream->read_);
  stream->StartCall();
  return stream;
}

absl::Status SolveStream::Send(v1::SolveStreamRequest first, Bytes rhs,
                               std::span<std::byte> solution, MemoryLoan* loan, Done done) {
  const size_t chunk_bytes = connection_->options().chunk_bytes;
  const uint64_t id = first.id();
  const bool whole = rhs.size() <= chunk_bytes;
  if (whole) first.mutable_request()->set_rhs(rhs.data(), rhs.size());
  std::vector<Outgoing> messages = {{id, true, Serialize(first)}};
  if (!whole) {
    v1::SolveStreamRequest prefix;
    prefix.set_id(id);
    Chunker chunker({rhs}, chunk_bytes, v1::SolveStreamRequest::kChunkFieldNumber,
                    prefix.SerializeAsString(), loan);
    while (!chunker.done()) messages.push_back({id, false, chunker.Next()});
  }
  auto pending = std::make_unique<Pending>();
  pending->solution = solution;
  pending->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckOpen(); !status.ok()) return status;
    Enqueue(id, std::move(pending), std::move(messages));
  }
  WriteNext();
  return absl::OkStatus();
}

absl::Status SolveStream::CheckOpen() const {
  if (!end_.ok()) return end_;
  if (!broken_ && !closing_) return absl::OkStatus();
  return absl::UnavailableError("the stream to the server has ended");
}

void SolveStream::Enqueue(uint64_t id, std::unique_ptr<Pending> pending,
                          std::vector<Outgoing> messages) {
  pending_.emplace(id, std::move(pending));
  for (Outgoing& message : messages) outgoing_.push_back(std::move(message));
}

absl::Status SolveStream::SendFrame(v1::SolveStreamRequest first, size_t solves, Bytes rhs,
                                    std::span<std::byte> solution, Done done) {
  const uint64_t id = first.id();
  const BytesField copy = {v1::SolveManyRequest::kRhsFieldNumber,
                           grpc::Slice(rhs.data(), rhs.size())};
  auto pending = std::make_unique<Pending>();
  pending->solution = solution;
  pending->solves = solves;
  pending->done = std::move(done);
  v1::SolveManyRequest many;
  many.Swap(first.mutable_many());
  first.clear_many();
  return SendWhole(
      id, std::move(pending),
      SerializeFrame(first, v1::SolveStreamRequest::kManyFieldNumber, many, {&copy, 1}));
}

absl::Status SolveStream::SendRefactors(v1::SolveStreamRequest first, const grpc::Slice& matrix,
                                        const grpc::Slice& rhs, std::span<std::byte> solution,
                                        Done done) {
  const uint64_t id = first.id();
  v1::FactorSolveManyRequest refactor;
  refactor.Swap(first.mutable_refactor());
  first.clear_refactor();
  auto pending = std::make_unique<Pending>();
  pending->solution = solution;
  pending->solves = static_cast<size_t>(refactor.handle_size());
  pending->done = std::move(done);
  const BytesField bytes[] = {{v1::FactorSolveManyRequest::kMatrixFieldNumber, matrix},
                              {v1::FactorSolveManyRequest::kRhsFieldNumber, rhs}};
  return SendWhole(
      id, std::move(pending),
      SerializeFrame(first, v1::SolveStreamRequest::kRefactorFieldNumber, refactor, bytes));
}

absl::Status SolveStream::SendWhole(uint64_t id, std::unique_ptr<Pending> pending,
                                    const grpc::ByteBuffer& message) {
  std::vector<Outgoing> messages;
  messages.push_back({id, true, message});
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckOpen(); !status.ok()) return status;
    Enqueue(id, std::move(pending), std::move(messages));
  }
  WriteNext();
  return absl::OkStatus();
}

bool SolveStream::IsUnsent(uint64_t id) const {
  return std::ranges::any_of(outgoing_,
                             [id](const Outgoing& out) { return out.first && out.id == id; });
}

void SolveStream::TakeBack(uint64_t id) {
  std::erase_if(outgoing_, [id](const Outgoing& out) { return out.id == id; });
}

bool SolveStream::CancelRequest(uint64_t id) {
  bool unsent = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!pending_.contains(id)) return false;
    unsent = IsUnsent(id);
    TakeBack(id);
    if (!unsent && !closed_ && !broken_) {
      v1::SolveStreamRequest cancel;
      cancel.set_id(id);
      cancel.mutable_cancel();
      // Before what others send, but after its own.
      const auto own = std::ranges::find(outgoing_, id, &Outgoing::id);
      const auto place = own == outgoing_.end() ? outgoing_.begin() : own + 1;
      outgoing_.insert(place, Outgoing{id, false, Serialize(cancel)});
    }
  }
  if (unsent) {
    Finish(id, absl::CancelledError("cancelled before it was sent"));
  } else {
    WriteNext();
  }
  return true;
}

void SolveStream::Abandon(uint64_t id) {
  Done done;  // destroyed after the lock
  absl::MutexLock lock(&mutex_);
  const auto elsewhere = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return placing_ != id; };
  mutex_.Await(absl::Condition(&elsewhere));
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  done = std::move(it->second->done);
  it->second->done = nullptr;
  it->second->abandoned = true;
  // The rest of what has begun to be sent follows: the server waits for it.
  if (IsUnsent(id)) {
    TakeBack(id);
    pending_.erase(it);
  }
}

void SolveStream::CloseSending() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  WriteNext();
}

bool SolveStream::open() {
  absl::MutexLock lock(&mutex_);
  return end_.ok() && !broken_ && !closing_;
}

void SolveStream::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  context_.TryCancel();
}

void SolveStream::AwaitEnd() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done_));
}

bool SolveStream::AwaitEnd(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&done_), limit);
}

void SolveStream::WriteNext() {
  bool close = false;
  {
    absl::MutexLock lock(&mutex_);
    if (writing_ || broken_ || closed_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      written_.Swap(&outgoing_.front().message);  // it has no move
      outgoing_.pop_front();
    } else if (closing_) {
      close = closed_ = true;
    } else {
      return;
    }
    AddHold();  // the call must not end between here and the start of the operation
  }
  if (close) {
    StartWritesDone();
  } else {
    StartWrite(&written_);
  }
  RemoveHold();
}

void SolveStream::OnWriteDone(bool ok) {
  written_.Clear();  // gives lent memory back
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) broken_ = true;
  }
  WriteNext();
}

void SolveStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
      outgoing_.clear();
    }
    RemoveHold();
    return;
  }
  StreamReply reply;
  const auto place = [this](uint64_t id, size_t bytes) { return Place(id, bytes); };
  if (!ParseStreamReply(read_, place, &reply)) reply.misplaced = true;
  read_.Clear();
  Handle(reply);
  StartRead(&read_);
}

void SolveStream::OnDone(const grpc::Status& status) {
  absl::Status end = ToStatus(status);
  std::shared_ptr<SolveStream> self;
  {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
    outgoing_.clear();
    if (!cancelled_) end = connection_->EndOf(end);
    if (!violation_.ok()) end = violation_;
    if (end.ok()) end = absl::UnavailableError("the server ended the stream");
    end_ = end;
  }
  FailAll(end);
  absl::MutexLock lock(&mutex_);
  done_ = true;
  self = std::move(self_);
  // `self` may be the last to hold this object, and is destroyed after the lock.
}

std::byte* SolveStream::Place(uint64_t id, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto it = pending_.find(id);
  if (it == pending_.end() || !it->second->answered) return nullptr;
  Pending& pending = *it->second;
  if (bytes > pending.solution.size() - pending.received) return nullptr;
  std::byte* place = pending.solution.data() + pending.received;
  pending.received += bytes;
  if (pending.abandoned) return nullptr;
  placing_ = id;
  return place;
}

void SolveStream::Handle(StreamReply& reply) {
  const uint64_t id = reply.message.id();
  const bool has_answer = reply.message.has_reply() || reply.message.has_many();
  std::string solution;
  absl::StatusOr<SolveResult> answer;
  if (reply.message.has_reply()) {
    solution.swap(*reply.message.mutable_reply()->mutable_solution());
    answer = ToResult(*reply.message.mutable_reply());
  } else if (reply.message.has_many()) {
    solution.swap(*reply.message.mutable_many()->mutable_solution());
    answer = ToResult(reply.message.many(),
                      static_cast<size_t>(reply.message.many().backward_error_bound_size()));
  }
  std::string wrong;
  bool finished = false;
  absl::StatusOr<SolveResult> result;
  {
    absl::MutexLock lock(&mutex_);
    placing_.reset();
    const auto it = pending_.find(id);
    if (it == pending_.end() || (reply.misplaced && !it->second->abandoned)) {
      wrong = absl::StrCat("a reply that does not belong to any request (id ", id, ")");
    } else if (Pending& pending = *it->second; reply.is_chunk) {
      finished = pending.received == pending.solution.size();
      if (finished) result = std::move(pending.result);
    } else if (reply.message.has_status()) {
      const absl::Status failure = ToStatus(reply.message.status());
      finished = !failure.ok();
      if (finished) {
        result = failure;
      } else {
        wrong = "a failure with the code OK";
      }
    } else if (!has_answer || pending.answered) {
      wrong = "a reply without a part";
    } else if (!answer.ok() || answer->solves.size() != pending.solves) {
      wrong = "an answer to another number of solves";
    } else if (solution.empty() &&
               reply.message.solution_bytes() == static_cast<int64_t>(pending.solution.size())) {
      pending.answered = true;
      pending.result = *std::move(answer);
    } else if (solution.size() == pending.solution.size()) {
      if (!pending.abandoned) {
        std::copy_n(reinterpret_cast<const std::byte*>(solution.data()), pending.solution.size(),
                    pending.solution.data());
      }
      finished = true;
      result = *std::move(answer);
    } else {
      wrong = absl::StrCat("a solution of ", solution.size(), " + ", reply.message.solution_bytes(),
                           " bytes, expected ", pending.solution.size());
    }
    if (!wrong.empty()) {
      violation_ = absl::InternalError(absl::StrCat("the server sent ", wrong));
    }
  }
  if (!wrong.empty()) {
    Cancel();
  } else if (finished) {
    Finish(id, std::move(result));
  }
}

void SolveStream::Finish(uint64_t id, absl::StatusOr<SolveResult> result) {
  std::unique_ptr<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = pending_.find(id);
    if (it == pending_.end()) return;
    pending = std::move(it->second);
    pending_.erase(it);
  }
  if (pending->done) pending->done(std::move(result));
}

void SolveStream::FailAll(const absl::Status& status) {
  std::vector<uint64_t> ids;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, pending] : pending_) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) Finish(id, status);
}

}  // namespace blockd::client
