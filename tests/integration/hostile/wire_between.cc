#include "tests/integration/hostile/wire_between.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace blockd::test {
namespace {

sockaddr_in Loopback(int port, const char* host = "127.0.0.1") {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = inet_addr(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Moves what has come from one end to the other and returns it; empty once an end is closed.
std::string Move(int from, int to) {
  char buffer[65536];
  const ssize_t came = read(from, buffer, sizeof(buffer));
  if (came <= 0) return "";
  for (ssize_t sent = 0; sent < came;) {
    const ssize_t now = send(to, buffer + sent, static_cast<size_t>(came - sent), MSG_NOSIGNAL);
    if (now <= 0) return "";
    sent += now;
  }
  return {buffer, static_cast<size_t>(came)};
}

}  // namespace

int ConnectTo(int port, const char* from) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in here = Loopback(0, from), there = Loopback(port);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof(here)) == 0 &&
      connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

std::string Ask(int port, const std::string& request) {
  const int fd = ConnectTo(port);
  const timeval limit{60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    close(fd);
    return "";
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, got);
  close(fd);
  return text;
}

std::string HttpGet(int port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

WireBetween::WireBetween(int server_port, bool keep) : keep_(keep) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0) return;
  if (listen(listener_, 1) != 0) return;
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  if (pipe(cut_) != 0) return;
  thread_ = std::thread([this, server_port] { Run(server_port); });
}

WireBetween::~WireBetween() {
  Cut();
  if (thread_.joinable()) thread_.join();
  close(listener_);
  close(cut_[0]);
  close(cut_[1]);
}

void WireBetween::Cut() {
  const char byte = 'x';
  [[maybe_unused]] const ssize_t written = write(cut_[1], &byte, 1);
}

std::string WireBetween::sent() const {
  absl::MutexLock lock(&mutex_);
  return sent_;
}

void WireBetween::Run(int server_port) {
  pollfd first[] = {{listener_, POLLIN, 0}, {cut_[0], POLLIN, 0}};
  if (poll(first, 2, -1) < 0 || first[1].revents != 0) return;
  const int client = accept(listener_, nullptr, nullptr);
  const int server = ConnectTo(server_port);
  pollfd ends[] = {{client, POLLIN, 0}, {server, POLLIN, 0}, {cut_[0], POLLIN, 0}};
  while (poll(ends, 3, -1) > 0 && ends[2].revents == 0) {
    if (ends[0].revents != 0) {
      const std::string moved = Move(client, server);
      if (moved.empty()) break;
      absl::MutexLock lock(&mutex_);
      if (keep_) sent_ += moved;
    }
    if (ends[1].revents != 0 && Move(server, client).empty()) break;
  }
  close(client);
  close(server);
}

}  // namespace blockd::test
