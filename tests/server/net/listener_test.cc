#include "server/net/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  const std::string path = folder / "socket";
  {
    const absl::StatusOr<Listener> listener = ListenOnUnixSocket(path, 0660);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ(listener->sockets.size(), 1u);
    EXPECT_EQ(listener->port, -1);
    EXPECT_TRUE(std::filesystem::is_socket(path));
    EXPECT_EQ(ListenOnUnixSocket(path, 0660).status(),
              absl::UnavailableError("Address already in use"));
    EXPECT_TRUE(std::filesystem::is_socket(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenerTest, AUnixSocketTakesThePlaceOfOneThatNobodyListensOn) {
  const test::TempFolder folder;
  const std::string path = folder / "socket";
  absl::StatusOr<Listener> first = ListenOnUnixSocket(path, 0600);
  ASSERT_TRUE(first.ok());
  first->sockets.clear();  // as if its process had been killed
  ASSERT_TRUE(std::filesystem::is_socket(path));
  const absl::StatusOr<Listener> second = ListenOnUnixSocket(path, 0600);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(ListenerTest, AUnixSocketRemovesNoOthersFile) {
  const test::TempFolder folder;
  const std::string path = folder / "socket";
  absl::StatusOr<Listener> first = ListenOnUnixSocket(path, 0600);
  ASSERT_TRUE(first.ok());
  std::filesystem::remove(path);
  const absl::StatusOr<Listener> second = ListenOnUnixSocket(path, 0600);
  ASSERT_TRUE(second.ok()) << second.status();
  first->file = SocketFile();
  EXPECT_TRUE(std::filesystem::is_socket(path));
}

TEST(ListenerTest, AUnixSocketHasItsModeWhateverTheUmask) {
  const test::TempFolder folder;
  for (const mode_t mask : {0000, 0022, 0777}) {
    for (const mode_t mode : {0600, 0660, 0666}) {
      const mode_t before = umask(mask);
      const absl::StatusOr<Listener> listener = ListenOnUnixSocket(folder / "socket", mode);
      umask(before);
      ASSERT_TRUE(listener.ok()) << listener.status();
      struct stat file {};
      ASSERT_EQ(lstat((folder / "socket").c_str(), &file), 0);
      EXPECT_EQ(file.st_mode & 07777, mode) << mask;
    }
  }
}

TEST(ListenerTest, OfManyServersOnOneUnixSocketOneListens) {
  const test::TempFolder folder;
  const std::string path = folder / "socket";
  for (int round = 0; round < 20; ++round) {
    std::vector<absl::StatusOr<Listener>> tried(8);
    std::vector<std::thread> servers;
    {  // what a killed server left
      absl::StatusOr<Listener> left = ListenOnUnixSocket(path, 0600);
      ASSERT_TRUE(left.ok()) << left.status();
      left->sockets.clear();
      std::filesystem::rename(path, path + ".left");
    }
    std::filesystem::rename(path + ".left", path);
    for (auto& one : tried) {
      servers.emplace_back([&one, &path] { one = ListenOnUnixSocket(path, 0600); });
    }
    for (std::thread& server : servers) server.join();
    EXPECT_EQ(std::count_if(tried.begin(), tried.end(), [](const auto& t) { return t.ok(); }), 1);
    // It is the one that is reached.
    const server::FileDescriptor caller(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, path.size());
    EXPECT_EQ(connect(caller.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  }
}

TEST(ListenerTest, AFolderThatAnotherProgramLocksIsNotWaitedForForEver) {
  const test::TempFolder folder;
  const FileDescriptor lock(open(folder.path().c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  EXPECT_EQ(ListenOnUnixSocket(folder / "socket", 0600).status(),
            absl::UnavailableError("another program locks its folder"));
}

TEST(ListenerTest, AUnixSocketTakesThePlaceOfNothingElse) {
  const test::TempFolder folder;
  const std::string file = folder / "file";
  std::ofstream(file) << "kept";
  EXPECT_TRUE(absl::IsUnavailable(ListenOnUnixSocket(file, 0600).status()));
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
  for (const std::string& path :
       {std::string(), folder.path(), folder / "none/socket", folder / std::string(108, 's')}) {
    EXPECT_TRUE(absl::IsUnavailable(ListenOnUnixSocket(path, 0600).status())) << path;
  }
}

TEST(ListenerTest, AnAddressOfIpv6IsWrittenInBrackets) {
  EXPECT_EQ(HostPort("127.0.0.1", 7117), "127.0.0.1:7117");
  EXPECT_EQ(HostPort("::1", 7117), "[::1]:7117");
  EXPECT_EQ(HostPort("[::1]", 7117), "[::1]:7117");
}

}  // namespace
}  // namespace blockd::server
