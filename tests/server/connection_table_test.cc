#include "server/connection_table.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "server/descriptors.h"

namespace blockd::server {
namespace {

int NewSocket() { return socket(AF_INET, SOCK_STREAM, 0); }

TEST(ConnectionTableTest, WhatIsClosedIsNotCounted) {
  ConnectionTable table;
  EXPECT_EQ(table.Count(), 0);
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 5; ++i) {
    sockets.emplace_back(NewSocket());
    table.Add(sockets.back().get());
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
  table.Add(number);
  {
    const FileDescriptor other(dup(STDERR_FILENO));
    ASSERT_EQ(dup2(other.get(), number), number);
    EXPECT_EQ(table.Count(), 0);
  }
  const FileDescriptor other(NewSocket());
  table.Add(other.get());
  ASSERT_EQ(dup2(other.get(), number), number);
  EXPECT_EQ(table.Count(), 1);
  table.Add(number);
  EXPECT_EQ(table.Count(), 2);
}

}  // namespace
}  // namespace blockd::server
