#include "server/listener.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "tests/support/temp_folder.h"

namespace blockd::server {
namespace {

absl::StatusOr<Listener> ListenOn(const std::string& address, int port = 0) {
  return Listen(address, port, absl::InfiniteDuration());
}

TEST(ListenerTest, AnAddressIsOneSocketOnAFreePort) {
  for (const char* address : {"127.0.0.1", "0.0.0.0", "::", "[::]"}) {
    const absl::StatusOr<Listener> listener = ListenOn(address);
    ASSERT_TRUE(listener.ok()) << address << ": " << listener.status();
    EXPECT_EQ(listener->sockets.size(), 1u);
    EXPECT_GT(listener->port, 0);
  }
}

TEST(ListenerTest, EveryAddressOfANameHasTheSamePort) {
  const absl::StatusOr<Listener> listener = ListenOn("localhost");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_GE(listener->sockets.size(), 1u);
  EXPECT_EQ(ListenOn("127.0.0.1", listener->port).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ListenerTest, APortIsTakenOnceAndFreeAgain) {
  absl::StatusOr<Listener> listener = ListenOn("127.0.0.1");
  ASSERT_TRUE(listener.ok());
  const int port = listener->port;
  const absl::Status taken = ListenOn("127.0.0.1", port).status();
  EXPECT_EQ(taken, absl::UnavailableError("Address already in use"));
  EXPECT_EQ(ListenOn("0.0.0.0", port).status(), taken);
  listener->sockets.clear();
  EXPECT_TRUE(ListenOn("127.0.0.1", port).ok());
}

TEST(ListenerTest, WhatIsNoAddressOfTheMachineIsRefused) {
  for (const char* address : {"192.0.2.1", "256.0.0.1", ""}) {
    EXPECT_TRUE(absl::IsUnavailable(ListenOn(address).status())) << address;
  }
}

TEST(ListenerTest, AUnixSocketIsAFileAsLongAsItListens) {
  const test::TempFolder folder;
  const std::string path = folder / "socket", address = "unix:" + path;
  {
    const absl::StatusOr<Listener> listener = ListenOn(address, 7117);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(listener->sockets.size(), 1u);
    EXPECT_EQ(listener->port, 0);
    EXPECT_TRUE(std::filesystem::is_socket(path));
    EXPECT_EQ(ListenOn(address).status(), absl::UnavailableError("Address already in use"));
    EXPECT_EQ(ListenOn("unix://" + path).status(), ListenOn(address).status());
    EXPECT_TRUE(std::filesystem::is_socket(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenerTest, AUnixSocketTakesThePlaceOfOneThatNobodyListensOn) {
  const test::TempFolder folder;
  const std::string path = folder / "socket";
  absl::StatusOr<Listener> first = ListenOn("unix:" + path);
  ASSERT_TRUE(first.ok());
  first->sockets.clear();  // as if its process had been killed
  ASSERT_TRUE(std::filesystem::is_socket(path));
  const absl::StatusOr<Listener> second = ListenOn("unix:" + path);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(ListenerTest, AUnixSocketTakesThePlaceOfNothingElse) {
  const test::TempFolder folder;
  const std::string file = folder / "file";
  std::ofstream(file) << "kept";
  EXPECT_TRUE(absl::IsUnavailable(ListenOn("unix:" + file).status()));
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
  for (const std::string& path :
       {std::string(), folder.path(), folder / "none/socket", folder / std::string(108, 's')}) {
    EXPECT_TRUE(absl::IsUnavailable(ListenOn("unix:" + path).status())) << path;
  }
}

TEST(ListenerTest, AnAddressOfIpv6IsWrittenInBrackets) {
  EXPECT_EQ(HostPort("127.0.0.1", 7117), "127.0.0.1:7117");
  EXPECT_EQ(HostPort("::1", 7117), "[::1]:7117");
  EXPECT_EQ(HostPort("[::1]", 7117), "[::1]:7117");
  EXPECT_EQ(HostPort("unix:/run/blockd.sock", 0), "unix:/run/blockd.sock");
}

}  // namespace
}  // namespace blockd::server
