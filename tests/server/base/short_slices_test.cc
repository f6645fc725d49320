#include "server/base/short_slices.h"

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <thread>

namespace blockd::server {
namespace {

sched_attr Attributes() {
  sched_attr attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0), 0);
  return attributes;
}

bool HasSlices() {
  utsname system{};
  EXPECT_EQ(uname(&system), 0);
  int major = 0, minor = 0;
  EXPECT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2);
  return major > 6 || (major == 6 && minor >= 12);
}

TEST(ShortSlicesTest, TheyAreThoseOfTheThreadThatAsks) {
  const sched_attr before = Attributes();
  sched_attr asked{};
  std::thread([&] {
    AskForShortSlices();
    asked = Attributes();
  }).join();
  const bool may_have_them = HasSlices() && before.sched_policy == SCHED_NORMAL;
  EXPECT_EQ(asked.sched_runtime, may_have_them ? 100'000 : before.sched_runtime);
  EXPECT_EQ(asked.sched_policy, before.sched_policy);
  EXPECT_EQ(asked.sched_nice, before.sched_nice);
  EXPECT_EQ(Attributes().sched_runtime, before.sched_runtime);
}

}  // namespace
}  // namespace blockd::server
