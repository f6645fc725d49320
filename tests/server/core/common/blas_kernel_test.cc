#include "server/core/common/blas_kernel.h"

#include "gtest/gtest.h"

namespace blockd::server {
namespace {

constexpr VectorUnits kNone, kAvx2{.avx2 = true}, kAvx512{.avx2 = true, .avx512 = true};

TEST(BlasKernelTest, AsksForWhatTheProcessorHasInsteadOfAnOldKernel) {
  for (const char* const old : {"Prescott", "Core2", "Nehalem", "Sandybridge", "PRESCOTT"}) {
    EXPECT_STREQ(BetterBlasKernel(old, kAvx2), "Haswell") << old;
    EXPECT_STREQ(BetterBlasKernel(old, kAvx512), "SkylakeX") << old;
  }
}

TEST(BlasKernelTest, IsContentWithAnOldKernelOnAnOldProcessor) {
  EXPECT_EQ(BetterBlasKernel("Nehalem", kNone), nullptr);
}

TEST(BlasKernelTest, IsContentWithKernelsThatUseAvx2) {
  for (const char* const kernel :
       {"Haswell", "Zen", "Excavator", "SkylakeX", "Cooperlake", "SapphireRapids", "HASWELL"}) {
    EXPECT_EQ(BetterBlasKernel(kernel, kAvx512), nullptr) << kernel;
  }
}

TEST(BlasKernelTest, SaysNothingOfKernelsThatItDoesNotKnow) {
  EXPECT_EQ(BetterBlasKernel("Unknown", kAvx512), nullptr);
  EXPECT_EQ(BetterBlasKernel("", kAvx512), nullptr);
}

}  // namespace
}  // namespace blockd::server
