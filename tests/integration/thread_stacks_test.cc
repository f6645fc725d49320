#include "server/thread_stacks.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>

namespace blockd::server {
namespace {

TEST(ThreadStacksTest, NobodyGetsASmallStack) {
  UseRoomyStacks();
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  for (const size_t asked : {size_t{102400}, 2 * kSmallestStack}) {
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, asked), 0);
    size_t got = 0;
    ASSERT_EQ(pthread_attr_getstacksize(&attributes, &got), 0);
    EXPECT_EQ(got, std::max(asked, kSmallestStack));
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace blockd::server
