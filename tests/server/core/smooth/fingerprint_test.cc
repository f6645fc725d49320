#include "server/core/smooth/fingerprint.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

using server::ModelFingerprint;

TEST(SmoothFingerprintTest, IsTheSameForAnyNumberOfThreads) {
  const SmoothModel model({.steps = 1500, .states = 30, .observations = 4, .series = 2});
  StepPool one(1), five(5);
  const std::string name = ModelFingerprint(model.params, one);
  EXPECT_EQ(name.size(), 32);
  EXPECT_EQ(ModelFingerprint(model.params, five), name);
}

}  // namespace
}  // namespace blockd::test
