#include "server/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/descriptors.h"
#include "tests/support/eventually.h"

namespace blockd::server {
namespace {

int NewSocket() { return socket(AF_INET, SOCK_STREAM, 0); }

TEST(ConnectionTableTest, WhatIsClosedIsNotCounted) {
  ConnectionTable table;
  EXPECT_EQ(table.Count(), 0);
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 5; ++i) {
    sockets.emplace_back(NewSocket());
    table.Add(sockets.back().get(), "");
  }
  EXPECT_EQ(table.AtMost(), 5);
  EXPECT_EQ(table.Count(), 5);
  sockets.pop_back();
  sockets.pop_back();
  EXPECT_EQ(table.AtMost(), 5);
  EXPECT_EQ(table.Count(), 3);
  EXPECT_EQ(table.AtMost(), 3);
}

TEST(ConnectionTableTest, AnotherFileOfTheSameNumberIsNotTheConnection) {
  ConnectionTable table;
  FileDescriptor socket_fd(NewSocket());
  const int number = socket_fd.get();
  table.Add(number, "");
  {
    const FileDescriptor other(dup(STDERR_FILENO));
    ASSERT_EQ(dup2(other.get(), number), number);
    EXPECT_EQ(table.Count(), 0);
  }
  const FileDescriptor other(NewSocket());
  table.Add(other.get(), "");
  ASSERT_EQ(dup2(other.get(), number), number);
  EXPECT_EQ(table.Count(), 1);
  table.Add(number, "");
  EXPECT_EQ(table.Count(), 2);
}

TEST(ConnectionTableTest, EndsTheConnectionOfAPeerAndNoOther) {
  ConnectionTable table;
  int first[2], second[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, first), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
  table.Add(first[0], "127.0.0.1:1");
  table.Add(second[0], "127.0.0.1:2");
  EXPECT_TRUE(table.End("127.0.0.1:1"));
  EXPECT_FALSE(table.End("127.0.0.1:3"));
  table.Add(second[0], "");
  EXPECT_FALSE(table.End(""));
  char byte = 'x';
  EXPECT_EQ(read(first[1], &byte, 1), 0);
  EXPECT_EQ(write(second[0], &byte, 1), 1);
  EXPECT_EQ(read(second[1], &byte, 1), 1);
  // A number that another file has got since.
  ASSERT_EQ(dup2(second[1], first[0]), first[0]);
  EXPECT_FALSE(table.End("127.0.0.1:1"));
  EXPECT_EQ(write(second[0], &byte, 1), 1);
  for (const int fd : {first[0], first[1], second[0], second[1]}) close(fd);
}

// A connection over loopback: the end that a table has, its peer's name, and the other end.
struct Loopback {
  Loopback() {
    const FileDescriptor listener(NewSocket());
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), any, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), any, &size), 0);
    EXPECT_EQ(connect(client.get(), any, size), 0);
    sockaddr_storage name{};
    size = sizeof(name);
    served = FileDescriptor(accept(listener.get(), reinterpret_cast<sockaddr*>(&name), &size));
    peer = PeerName(name);
  }
  // Returns once all of it has been read.
  void Send(size_t bytes) const {
    std::string text(bytes, 'x');
    EXPECT_EQ(send(client.get(), text.data(), bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_EQ(recv(served.get(), text.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }
  // Returns once it has arrived.
  void Answer() const {
    EXPECT_EQ(send(served.get(), "x", 1, 0), 1);
    int left = 1;
    EXPECT_TRUE(
        test::Eventually([&] { return ioctl(served.get(), SIOCOUTQ, &left) == 0 && left == 0; }));
  }
  FileDescriptor client{NewSocket()}, served;
  std::string peer;
};

TEST(ConnectionTableTest, EndsWhoBringsMoreThanIsAnswered) {
  ConnectionTable table;
  const Loopback busy, slow, flood;
  for (const Loopback* one : {&busy, &slow, &flood}) table.Add(one->served.get(), one->peer);
  const absl::flat_hash_map<std::string, int64_t> calls = {{busy.peer, 2}, {slow.peer, 100}};
  const UnansweredLimit limit = {.bytes = 1000,
                                 .bytes_with_call = 2000,
                                 .bytes_per_call = 500,
                                 .most_bytes = 4000,
                                 .open_calls = [&calls] { return calls; }};
  using Peers = std::vector<std::string>;
  Peers ended;
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      for (std::string& peer : table.EndUnanswered(limit)) ended.push_back(std::move(peer));
    }
  };
  constexpr int kLooks = ConnectionTable::kLooks;
  busy.Send(3000);
  slow.Send(4000);
  flood.Send(1000);
  look(2 * kLooks);
  flood.Send(1);
  look(kLooks - 1);  // a call may be about to begin
  EXPECT_EQ(ended, Peers());
  look(1);
  EXPECT_EQ(ended, Peers({flood.peer}));
  char byte = 0;
  EXPECT_EQ(recv(flood.client.get(), &byte, 1, 0), 0);
  // What is answered is not counted any more.
  for (int i = 0; i < 3; ++i) {
    busy.Answer();
    look(1);
    busy.Send(3000);
    look(kLooks);
  }
  EXPECT_EQ(ended, Peers({flood.peer}));
  slow.Send(1);  // however many calls there are
  look(kLooks);
  EXPECT_EQ(ended, Peers({flood.peer, slow.peer}));
}

TEST(ConnectionTableTest, APeerHasTheNameThatGrpcGivesIt) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(7117);
  inet_pton(AF_INET, "127.0.0.1", &v4.sin_addr);
  EXPECT_EQ(PeerName(address), "127.0.0.1:7117");
  EXPECT_EQ(PeerName("ipv4:127.0.0.1:7117"), PeerName(address));
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v6.sin6_family = AF_INET6;
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &v6.sin6_addr);
  EXPECT_EQ(PeerName(address), "127.0.0.1:7117");
  inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
  EXPECT_EQ(PeerName(address), "[2001:db8::1]:7117");
  EXPECT_EQ(PeerName("ipv6:%5B2001:db8::1%5D:7117"), PeerName(address));
  EXPECT_EQ(PeerName("unix:"), "");
}

}  // namespace
}  // namespace blockd::server
