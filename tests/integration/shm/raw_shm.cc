#include "tests/integration/shm/raw_shm.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

// Bytes, with room for one descriptor.
struct WithDescriptor {
  WithDescriptor(void* bytes, size_t size) : part{.iov_base = bytes, .iov_len = size} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  WithDescriptor(const WithDescriptor&) = delete;
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

}  // namespace

v1::ShmHello RawShm::Hello(uint64_t data_bytes, uint32_t slots, const std::string& caller) {
  v1::ShmHello hello{};
  std::memcpy(hello.magic, v1::kShmMagic, sizeof(hello.magic));
  hello.version = v1::kShmVersion;
  hello.slots = slots;
  hello.data_bytes = data_bytes;
  hello.caller_bytes = static_cast<uint32_t>(caller.size());
  std::copy(caller.begin(), caller.end(), hello.caller);
  return hello;
}

RawShm::RawShm(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  (path + v1::kShmSocketSuffix).copy(name.sun_path, sizeof(name.sun_path) - 1);
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    const timeval limit = absl::ToTimeval(kGenerous);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return;
  }
  close(socket_);
  socket_ = -1;
}

RawShm::~RawShm() {
  if (base_ != nullptr) munmap(base_, welcome_.mapping_bytes);
  if (memory_ >= 0) close(memory_);
  if (socket_ >= 0) close(socket_);
}

std::span<std::byte> RawShm::MapAgain() const {
  const size_t size = welcome_.mapping_bytes;
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (base == MAP_FAILED) return {};
  return {static_cast<std::byte*>(base), size};
}

void RawShm::SendBytes(const void* bytes, size_t size) {
  (void)!send(socket_, bytes, size, MSG_NOSIGNAL);
}

bool RawShm::SendLingering() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const linger kLinger{.l_onoff = 1, .l_linger = 60};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &kLinger, sizeof(kLinger));
  char byte = 0;
  WithDescriptor sent(&byte, 1);
  cmsghdr* const head = CMSG_FIRSTHDR(&sent.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  const bool is_sent = sendmsg(socket_, &sent.message, MSG_NOSIGNAL) == 1;
  close(fd);
  return is_sent;
}

bool RawShm::MayBeRefusedDescriptors() {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int passes = 0;
  socklen_t size = sizeof(passes);
  const bool known = getsockopt(fd, SOL_SOCKET, kPassRights, &passes, &size) == 0;
  close(fd);
  return known;
}

v1::RpcStatus RawShm::TakeWelcome() {
  WithDescriptor came(&welcome_, sizeof(welcome_));
  v1::RpcStatus status;
  status.set_code(2);
  if (recvmsg(socket_, &came.message, MSG_WAITALL) != static_cast<ssize_t>(sizeof(welcome_))) {
    return status;
  }
  if (welcome_.status_bytes > 0) {
    std::string text(welcome_.status_bytes, '\0');
    (void)!recv(socket_, text.data(), text.size(), MSG_WAITALL);
    status.ParseFromString(text);
    return status;
  }
  const cmsghdr* const head = CMSG_FIRSTHDR(&came.message);
  if (head == nullptr) return status;
  std::memcpy(&memory_, CMSG_DATA(head), sizeof(memory_));
  void* const base =
      mmap(nullptr, welcome_.mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
  if (base == MAP_FAILED) return status;
  base_ = static_cast<std::byte*>(base);
  status.set_code(0);
  return status;
}

v1::RpcStatus RawShm::Open(const v1::ShmHello& hello) {
  SendBytes(&hello, sizeof(hello));
  return TakeWelcome();
}

bool RawShm::HasAnswer() const {
  char byte;
  return recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

void RawShm::Wake() {
  const char wake = 0;
  (void)!send(socket_, &wake, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RawShm::Put(const v1::ShmRequest& request) {
  std::memcpy(at(welcome_.requests_offset + put_ % welcome_.slots * sizeof(v1::ShmRequest)),
              &request, sizeof(request));
  Publish(put_ + 1);
}

void RawShm::Publish(uint64_t position) {
  put_ = position;
  header().requests_end.store(position);
  Wake();
}

std::optional<v1::ShmReply> RawShm::Take() {
  const absl::Time end = absl::Now() + kGenerous;
  while (header().replies_end.load() == taken_) {
    pollfd watched{.fd = socket_, .events = POLLIN, .revents = 0};
    header().caller_asleep.store(1);
    if (header().replies_end.load() != taken_) break;
    (void)poll(&watched, 1, 1000);
    char byte;
    const bool ended = recv(socket_, &byte, 1, MSG_DONTWAIT) == 0;
    if (header().replies_end.load() != taken_) break;
    if (ended || absl::Now() > end) return std::nullopt;
  }
  v1::ShmReply reply;
  std::memcpy(&reply, at(welcome_.replies_offset + taken_ % welcome_.slots * sizeof(reply)),
              sizeof(reply));
  header().replies_taken.store(++taken_);
  return reply;
}

v1::ShmReply RawShm::Ask(v1::ShmRequest request) {
  Put(request);
  const std::optional<v1::ShmReply> reply = Take();
  if (reply) return *reply;
  v1::ShmReply none{};
  none.code = -1;
  return none;
}

v1::RpcStatus RawShm::StatusOf(const v1::ShmRequest& request, const v1::ShmReply& reply) {
  v1::RpcStatus status;
  if (reply.message_bytes > 0) {
    status.ParseFromArray(at(request.reply_offset), static_cast<int>(reply.message_bytes));
  }
  return status;
}

bool RawShm::EndsSoon() {
  return Eventually([this] {
    char bytes[4096];
    return recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT) == 0;
  });
}

v1::ShmRequest RawShm::Request(v1::ShmOperation operation,
                               const google::protobuf::MessageLite& message,
                               const std::vector<v1::ShmPlace>& places, uint64_t id,
                               uint64_t offset) {
  const std::string text = message.SerializeAsString();
  v1::ShmRequest request{};
  request.id = id;
  request.operation = operation;
  request.places_offset = data() + offset;
  request.num_places = static_cast<uint32_t>(places.size());
  request.message_offset = request.places_offset + places.size() * sizeof(places[0]);
  request.message_bytes = static_cast<uint32_t>(text.size());
  request.reply_offset = request.message_offset + (text.size() + 7) / 8 * 8;
  request.reply_bytes = static_cast<uint32_t>(v1::ShmReplyRoom(places.size()));
  std::ranges::copy(places, &place(request, 0));
  std::memcpy(at(request.message_offset), text.data(), text.size());
  return request;
}

std::vector<v1::ShmPlace> RawShm::PutMatrix(const v1::SystemData& matrix, uint64_t offset) {
  std::vector<v1::ShmPlace> places;
  uint64_t to = data() + offset;
  for (const std::string& part : {matrix.diagonal(), matrix.coupling()}) {
    std::memcpy(at(to), part.data(), part.size());
    places.push_back({.offset = to, .bytes = part.size()});
    to += (part.size() + 7) / 8 * 8;
  }
  return places;
}

v1::ShmRequest RawShm::Solve(const v1::SolveRequest& message, int64_t rows, uint64_t id,
                             uint64_t offset) {
  const uint64_t bytes = static_cast<uint64_t>(rows) * sizeof(double);
  const v1::ShmPlace columns{.offset = data() + offset, .bytes = bytes};
  return Request(v1::ShmOperation::kSolve, message, {columns, columns}, id, offset + bytes);
}

v1::ShmRequest RawShm::Solve(const std::string& handle, int64_t rows, uint64_t id,
                             uint64_t offset) {
  v1::SolveRequest message;
  message.set_handle(handle);
  message.set_num_rhs(1);
  return Solve(message, rows, id, offset);
}

}  // namespace blockd::test
