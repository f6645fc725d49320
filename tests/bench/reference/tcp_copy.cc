#include "tests/bench/reference/tcp_copy.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/bench/must.h"

namespace blockd::bench {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

std::pair<int, int> Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    Die("cannot listen on loopback");
  }
  const int sender = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(sender, reinterpret_cast<sockaddr*>(&address), length) != 0) Die("cannot connect");
  const int receiver = accept(listener, nullptr, nullptr);
  close(listener);
  return {sender, receiver};
}

void CopyThrough(std::pair<int, int> sockets, std::span<const char> from, std::span<char> to) {
  std::thread reader([&] {
    for (size_t done = 0; done < to.size();) {
      const ssize_t got =
          read(sockets.second, to.data() + done, std::min(kPieceBytes, to.size() - done));
      if (got <= 0) Die("cannot read");
      done += static_cast<size_t>(got);
    }
  });
  for (size_t done = 0; done < from.size();) {
    const ssize_t put =
        write(sockets.first, from.data() + done, std::min(kPieceBytes, from.size() - done));
    if (put <= 0) Die("cannot write");
    done += static_cast<size_t>(put);
  }
  reader.join();
}

}  // namespace

TcpConnections::TcpConnections(int count) {
  for (int i = 0; i < count; ++i) sockets_.push_back(Connect());
}

TcpConnections::~TcpConnections() {
  for (const auto& [sender, receiver] : sockets_) {
    close(sender);
    close(receiver);
  }
}

void TcpConnections::Copy(std::span<const char> from, std::span<char> to) const {
  const size_t share = from.size() / sockets_.size();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sockets_.size(); ++i) {
    const size_t first = i * share;
    const size_t bytes = i + 1 < sockets_.size() ? share : from.size() - first;
    threads.emplace_back([this, i, from, to, first, bytes] {
      CopyThrough(sockets_[i], from.subspan(first, bytes), to.subspan(first, bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace blockd::bench
