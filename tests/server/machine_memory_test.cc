#include "server/machine_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.h"

namespace blockd::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class MachineMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int64_t Bytes() const { return MachineMemoryBytes(root_.path()); }

  const test::TempFolder root_;
  const int64_t machine_ = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
};

TEST_F(MachineMemoryTest, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(Bytes(), machine_);
  EXPECT_GT(MachineMemoryBytes(), 0);
}

TEST_F(MachineMemoryTest, AContainerSeesItsOwnGroupAsTheFirst) {
  Write("proc/self/cgroup", "0::/");
  Write("sys/fs/cgroup/memory.max", "33554432");
  EXPECT_EQ(Bytes(), 32 * kMiB);
  Write("sys/fs/cgroup/memory.max", "max");
  EXPECT_EQ(Bytes(), machine_);
}

TEST_F(MachineMemoryTest, OfNestedGroupsTheSmallestLimitCounts) {
  Write("proc/self/cgroup", "0::/system.slice/blockd.service");
  Write("sys/fs/cgroup/system.slice/blockd.service/memory.max", "max");
  Write("sys/fs/cgroup/system.slice/memory.max", "67108864");
  EXPECT_EQ(Bytes(), 64 * kMiB);
  Write("sys/fs/cgroup/system.slice/blockd.service/memory.max", "33554432");
  EXPECT_EQ(Bytes(), 32 * kMiB);
}

TEST_F(MachineMemoryTest, VersionOneHasAFolderForMemory) {
  Write("proc/self/cgroup", "11:cpu,cpuacct:/a\n4:hugetlb,memory:/docker/0123\n0::/a");
  Write("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(Bytes(), machine_);
  Write("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "33554432");
  EXPECT_EQ(Bytes(), 32 * kMiB);
}

// A container of version 1 is told its path outside, and sees its own group as the first.
TEST_F(MachineMemoryTest, AGroupThatIsNotSeenSaysNothing) {
  Write("proc/self/cgroup", "4:memory:/docker/0123");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "33554432");
  EXPECT_EQ(Bytes(), 32 * kMiB);
}

TEST_F(MachineMemoryTest, LinesThatAreNoneArePassedOver) {
  Write("proc/self/cgroup", "\n:\n0:\nx:memory:/../../..\n0::/");
  Write("sys/fs/cgroup/memory.max", "33554432");
  EXPECT_EQ(Bytes(), 32 * kMiB);
}

}  // namespace
}  // namespace blockd::server
