#include "server/base/machine_limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
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

class MachineProcessorsTest : public MachineMemoryTest {
 protected:
  int32_t Processors() const { return MachineProcessors(root_.path()); }
  const int32_t allowed_ = MachineProcessors(root_.path());  // without groups
};

TEST_F(MachineProcessorsTest, AreThoseThatTheProcessMayRunOn) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(allowed_, CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(Processors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST_F(MachineProcessorsTest, AQuotaIsWorthSoMany) {
  Write("proc/self/cgroup", "0::/pod/container");
  Write("sys/fs/cgroup/pod/container/cpu.max", "max 100000");
  EXPECT_EQ(Processors(), allowed_);
  Write("sys/fs/cgroup/pod/cpu.max", "50000 100000");  // of the group around it
  EXPECT_EQ(Processors(), 1);
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000");
  EXPECT_EQ(Processors(), std::min(allowed_, 2));
  Write("sys/fs/cgroup/pod/cpu.max", "nonsense");
  EXPECT_EQ(Processors(), allowed_);
}

TEST_F(MachineProcessorsTest, VersionOneHasTwoFiles) {
  Write("proc/self/cgroup", "4:cpu,cpuacct:/pod");
  Write("sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000");
  Write("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(Processors(), allowed_);
  Write("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "10000");
  EXPECT_EQ(Processors(), 1);
}

}  // namespace
}  // namespace blockd::server
