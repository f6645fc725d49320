#include "server/base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

namespace blockd::server {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(FileDescriptorTest, TheOwnerClosesIt) {
  const int first = dup(STDERR_FILENO), second = dup(STDERR_FILENO);
  {
    FileDescriptor owner(first);
    FileDescriptor next(std::move(owner));
    EXPECT_EQ(owner.get(), -1);  // NOLINT(bugprone-use-after-move): it says so itself
    EXPECT_EQ(next.get(), first);
    EXPECT_TRUE(IsOpen(first));
    next = FileDescriptor(second);
    EXPECT_FALSE(IsOpen(first));
    EXPECT_TRUE(IsOpen(second));
  }
  EXPECT_FALSE(IsOpen(second));
}

TEST(FileDescriptorTest, WhatIsReleasedStaysOpen) {
  FileDescriptor owner(dup(STDERR_FILENO));
  const FileDescriptor given(owner.Release());
  owner.Reset(-1);
  EXPECT_TRUE(IsOpen(given.get()));
}

TEST(DescriptorsTest, OpenOnesAreCounted) {
  const int64_t before = OpenDescriptors();
  EXPECT_GE(before, 3);
  const FileDescriptor more(dup(STDERR_FILENO));
  EXPECT_EQ(OpenDescriptors(), before + 1);
}

// Whatever the limit, connections get the larger share of it.
TEST(DescriptorsTest, ALimitIsShared) {
  for (const int64_t limit : {16, 64, 256, 1024, 4096, 1 << 20}) {
    EXPECT_GE(SideConnections(limit), 2);
    EXPECT_GT(ReservedDescriptors(limit), 2 * SideConnections(limit));
    EXPECT_GE(2 * (limit - ReservedDescriptors(limit)), limit);
  }
  EXPECT_EQ(ReservedDescriptors(64), 24);
  EXPECT_EQ(ReservedDescriptors(1024), 192);
  EXPECT_EQ(ReservedDescriptors(1 << 20), 576);
}

}  // namespace
}  // namespace blockd::server
