#include "server/base/short_slices.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <cstdint>
#include <cstdio>
#include <thread>

namespace blockd::server {
namespace {

bool LinuxHasSlices() {
  utsname system{};
  EXPECT_EQ(uname(&system), 0);
  int major = 0, minor = 0;
  EXPECT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2);
  return major > 6 || (major == 6 && minor >= 12);
}

TEST(ShortSlicesTest, TheyAreThoseOfTheThreadThatAsks) {
  const int64_t before = SliceNanoseconds();
  int64_t asked = 0;
  std::thread([&] {
    AskForShortSlices();
    asked = SliceNanoseconds();
  }).join();
  // A sandbox's kernel may have a number and no slices.
  if (LinuxHasSlices() && before > 0) {
    EXPECT_EQ(asked, 100'000);
  } else {
    EXPECT_EQ(asked, before);
  }
  EXPECT_EQ(SliceNanoseconds(), before);
}

}  // namespace
}  // namespace blockd::server
