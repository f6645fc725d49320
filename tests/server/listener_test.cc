#include "server/listener.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/status/status.h"

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

TEST(ListenerTest, AnAddressOfIpv6IsWrittenInBrackets) {
  EXPECT_EQ(HostPort("127.0.0.1", 7117), "127.0.0.1:7117");
  EXPECT_EQ(HostPort("::1", 7117), "[::1]:7117");
  EXPECT_EQ(HostPort("[::1]", 7117), "[::1]:7117");
}

}  // namespace
}  // namespace blockd::server
