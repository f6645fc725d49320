#include "server/transport/shm/shm_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/base/patience.h"
#include "server/base/relax.h"
#include "server/base/short_slices.h"
#include "server/base/steady_time.h"
#include "server/base/thread_name.h"
#include "server/transport/rpc/executor.h"

namespace blockd::server {
namespace {

constexpr int kTakenAtOnce = 16;  // of one session, before the next has its turn
constexpr int kEventsAtOnce = 64;
constexpr absl::Duration kLookEvery = absl::Milliseconds(1);  // at the sockets, while it is awake

}  // namespace

ShmPoller::ShmPoller(absl::Duration poll)
    : poll_(poll),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = std::thread([this] {
    NameThread("shm");
    AskForShortSlices();
    MarkTransportThread();
    Loop();
  });
}

ShmPoller::~ShmPoller() {
  stop_ = true;
  Wake();
  thread_.join();
  TakeIn();  // what came too late
  for (const auto& session : sessions_) session->End("the server shuts down");
}

void ShmPoller::Add(std::shared_ptr<ShmSession> session) {
  {
    absl::MutexLock lock(&mutex_);
    added_.push_back(std::move(session));
  }
  Wake();
}

void ShmPoller::CancelAll() {
  Sessions all;
  {
    absl::MutexLock lock(&mutex_);
    all = known_;
  }
  for (const auto& session : all) session->CancelAll();
}

void ShmPoller::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void ShmPoller::TakeIn() {
  absl::MutexLock lock(&mutex_);
  for (std::shared_ptr<ShmSession>& session : added_) {
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.ptr = session.get()}};
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->socket(), &event);
    sessions_.push_back(std::move(session));
  }
  added_.clear();
  std::erase_if(sessions_, [this](const std::shared_ptr<ShmSession>& session) {
    if (!session->ended()) return false;
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->socket(), nullptr);
    return true;
  });
  known_ = sessions_;
}

bool ShmPoller::TakeSome(bool idle) {
  bool any = false;
  for (const auto& session : sessions_) any |= session->Take(kTakenAtOnce, idle && !any);
  return any;
}

void ShmPoller::Look(int timeout) {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, timeout);
  bool changed = false;
  for (int i = 0; i < count; ++i) {
    auto* const session = static_cast<ShmSession*>(events[static_cast<size_t>(i)].data.ptr);
    if (session != nullptr) {
      session->ReadSocket();
      changed |= session->ended();
      continue;
    }
    uint64_t times;
    (void)!read(wake_.get(), &times, sizeof(times));
    changed = true;
  }
  if (changed) TakeIn();
}

void ShmPoller::Sleep() {
  bool came = false;
  for (const auto& session : sessions_) came |= session->FallAsleep();
  if (!came) Look(-1);
  for (const auto& session : sessions_) session->WakeUp();
}

void ShmPoller::Loop() {
  Patience patience(poll_);
  absl::Time last = SteadyNow(), looked = last;
  bool idle = false;  // has looked and found nothing
  while (!stop_) {
    const bool any = TakeSome(idle);
    idle = !any;
    const absl::Time now = SteadyNow();
    if (any) {
      patience.Came(now - last);
      last = now;
    }
    if (any || now - last < patience.left()) {
      if (now - looked > kLookEvery) {
        Look(0);
        looked = now;
      }
      if (!any) Relax();
      continue;
    }
    Sleep();
    looked = SteadyNow();
  }
}

}  // namespace blockd::server
