#include "engine/gpu/runtime/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace blockd::gpu {
namespace {

TEST(StreamingCopyTest, CopiesTheseBytesAndNoOthers) {
  constexpr std::byte kOther{0xee};
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{4095}, size_t{4096},
                             size_t{4097}, size_t{4159}, size_t{65536}, size_t{70001}}) {
    for (const size_t to_offset : {0, 1, 16, 63}) {
      for (const size_t from_offset : {0, 1, 8}) {
        std::vector<std::byte> from(bytes + 64), to(bytes + 192, kOther);
        for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
        std::byte* const target = to.data() + 64 + to_offset;
        StreamingCopy(target, from.data() + from_offset, bytes);
        EXPECT_TRUE(std::equal(target, target + bytes, from.data() + from_offset))
            << bytes << " bytes from " << from_offset << " to " << to_offset;
        EXPECT_EQ(std::count(to.data(), target, kOther), target - to.data());
        EXPECT_EQ(std::count(target + bytes, to.data() + to.size(), kOther),
                  to.data() + to.size() - (target + bytes));
      }
    }
  }
}

}  // namespace
}  // namespace blockd::gpu
