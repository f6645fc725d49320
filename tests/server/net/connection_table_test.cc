#include "server/net/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "server/base/descriptors.h"

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
