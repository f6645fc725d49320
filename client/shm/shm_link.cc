#include "client/shm/shm_link.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/base/check_options.h"
#include "client/shm/shm_request.h"

namespace blockd::client {
namespace {

absl::Status CheckSharing(const std::string& target, const ClientOptions& options) {
  if (!absl::StartsWith(target, "unix:")) {
    return InvalidFieldError("shared_memory_bytes", absl::StrCat("given for ", target),
                             "a target unix:PATH");
  }
  const v1::ShmHello* const hello = nullptr;
  if (options.caller.size() > sizeof(hello->caller)) {
    return InvalidFieldError("caller", absl::StrCat(options.caller.size(), " bytes"),
                             absl::StrCat("at most ", sizeof(hello->caller)));
  }
  if (options.token.size() > sizeof(hello->token)) {
    return InvalidFieldError("token", absl::StrCat(options.token.size(), " bytes"),
                             absl::StrCat("at most ", sizeof(hello->token)));
  }
  return absl::OkStatus();
}

// gRPC's names: unix:PATH and unix:///PATH.
std::string PathOf(std::string_view target) {
  target.remove_prefix(std::string_view("unix:").size());
  if (target.starts_with("//")) target.remove_prefix(2);
  return absl::StrCat(absl::string_view(target.data(), target.size()), v1::kShmSocketSuffix);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmLink>> ShmLink::Open(const std::string& target,
                                                       const ClientOptions& options) {
  if (absl::Status status = CheckSharing(target, options); !status.ok()) return status;
  auto link = std::unique_ptr<ShmLink>(
      new ShmLink({.path = PathOf(target),
                   .bytes = static_cast<uint64_t>(options.shared_memory_bytes),
                   .caller = options.caller,
                   .token = options.token,
                   .poll = PollOf(options),
                   .timeout = options.timeout}));
  const auto session = link->session(absl::Now() + options.timeout);
  if (!session.ok()) return session.status();
  return link;
}

ShmLink::~ShmLink() {
  absl::MutexLock lock(&mutex_);
  if (session_ != nullptr) session_->LetGo();
}

std::shared_ptr<ShmSession> ShmLink::current() {
  if (!mutex_.TryLock()) return nullptr;
  std::shared_ptr<ShmSession> session = session_;
  mutex_.Unlock();
  return session == nullptr || session->ended() ? nullptr : session;
}

absl::StatusOr<std::shared_ptr<ShmSession>> ShmLink::session(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    const auto is_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !opening_; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&is_free), deadline)) {
      return absl::DeadlineExceededError("another call still waits for a session");
    }
    if (session_ != nullptr && !session_->ended()) return session_;
    opening_ = true;
  }
  ShmSession::Options options = options_;
  options.timeout = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), options_.timeout);
  absl::StatusOr<std::shared_ptr<ShmSession>> opened = ShmSession::Open(options);
  absl::MutexLock lock(&mutex_);
  opening_ = false;
  if (!opened.ok()) return opened.status();
  session_ = *std::move(opened);
  return session_;
}

bool ShmLink::ReleaseLater(const std::string& handle, absl::Time deadline,
                           std::function<void()> done) {
  const std::shared_ptr<ShmSession> session = current();
  if (session == nullptr) return false;
  v1::ReleaseRequest message;
  message.add_handle(handle);
  auto made = SharedRequest::Make(*session->memory(), v1::ShmOperation::kRelease, message, {});
  if (!made) return false;
  const auto asked = std::make_shared<const SharedRequest>(*std::move(made));
  return session
      ->CallLater(asked->request(), deadline,
                  [asked, done = std::move(done)](const absl::StatusOr<v1::ShmReply>&) { done(); })
      .ok();
}

}  // namespace blockd::client
