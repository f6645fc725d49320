#include "server/log/log_buffer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

constexpr absl::Duration kFlushTime = absl::Minutes(1);

class LogBufferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);  // one line that nobody reads fills it
    read_end_ = FileDescriptor(ends[0]);
    write_end_ = FileDescriptor(ends[1]);
    buffer_ = std::make_unique<LogBuffer>(write_end_.get(), 64 << 10, [](int64_t dropped) {
      return dropped > 0 ? absl::StrCat("dropped ", dropped, "\n") : std::string();
    });
  }
  // A line of so many bytes, its end included.
  static std::string Line(char letter, size_t bytes) {
    return std::string(bytes - 1, letter) + "\n";
  }
  // Reads until `last` has come.
  std::string ReadUntil(const std::string& last) {
    std::string text;
    char bytes[4096];
    for (ssize_t got; !absl::EndsWith(text, last);) {
      if ((got = read(read_end_.get(), bytes, sizeof(bytes))) <= 0) break;
      text.append(bytes, static_cast<size_t>(got));
    }
    return text;
  }
  // As many lines of 1 KiB as are taken, while nobody reads; the first one is in the pipe.
  int Fill(bool essential) {
    int taken = 0;
    const int64_t before = buffer_->dropped();
    while (buffer_->dropped() == before) {
      buffer_->Append(Line(essential ? 'e' : 'o', 1024), essential);
      ++taken;
    }
    return taken - 1;
  }

  FileDescriptor read_end_, write_end_;
  std::unique_ptr<LogBuffer> buffer_;
};

TEST_F(LogBufferTest, LinesComeInTheirOrder) {
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    buffer_->Append(line, i % 2 == 0);
    expected += line;
  }
  EXPECT_EQ(ReadUntil("line 99\n"), expected);
  EXPECT_TRUE(buffer_->Flush(kFlushTime));
  EXPECT_EQ(buffer_->dropped(), 0);
}

TEST_F(LogBufferTest, NobodyReadsAndNobodyWaits) {
  buffer_->Append(Line('a', 4096), true);
  EXPECT_TRUE(buffer_->Flush(kFlushTime));         // into the pipe, which is full now
  buffer_->Append(Line('b', 4096), true);          // what is being written, sooner or later
  EXPECT_FALSE(buffer_->Flush(absl::Seconds(1)));  // time enough to have it taken
  const int ordinary = Fill(false);
  EXPECT_GE(ordinary, 20);  // of a buffer's half, 32 KiB, less a quarter
  EXPECT_LE(ordinary, 24);
  const int essential = Fill(true);
  EXPECT_GE(essential, 8);
  for (int i = 0; i < 1000; ++i) buffer_->Append(Line('x', 1024), i % 2 == 0);
  EXPECT_EQ(buffer_->dropped(), 1002);
  EXPECT_FALSE(buffer_->Flush(absl::Milliseconds(20)));
  const std::string text = ReadUntil("dropped 1002\n");
  EXPECT_EQ(text.size(), 8192u + 1024 * (ordinary + essential) + sizeof("dropped 1002"));
  EXPECT_FALSE(absl::StrContains(text, "x"));
  EXPECT_TRUE(buffer_->Flush(kFlushTime));
}

TEST_F(LogBufferTest, ItEndsThoughNobodyReads) {
  for (int i = 0; i < 100; ++i) buffer_->Append(Line('a', 4096), true);
  buffer_.reset();
}

TEST_F(LogBufferTest, WithoutAReaderLinesAreDropped) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  read_end_.Reset(-1);
  buffer_->Append("one\n", true);
  buffer_->Append("two\n", true);
  EXPECT_FALSE(buffer_->Flush(absl::Milliseconds(20)));  // that it dropped them is not said
  buffer_.reset();
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace blockd::server
