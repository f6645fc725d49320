// --devices: which lists are one, what they mean together with --backend, and what CPUs share.
#include "server/options/device_options.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/machine_limits.h"
#include "server/core/common/handle.h"

namespace blockd::server {
namespace {

using Choices = std::vector<DeviceChoice>;

DeviceOptions Options(const std::string& backend, const std::string& devices) {
  DeviceOptions options;
  options.backend = backend;
  options.devices = devices;
  options.device.memory_bytes = int64_t{8} << 20;
  return options;
}

TEST(DeviceOptionsTest, AListNamesIndicesOrBackendsOrBoth) {
  const struct {
    std::string backend, devices;
    Choices expected;
  } cases[] = {
      {"auto", "0", {{"auto", 0}}},
      {"auto", "2,0", {{"auto", 2}, {"auto", 0}}},
      {"auto", "all", {{"auto", 0}}},
      {"cuda", "all", {{"cuda", 0}}},
      {"cuda", "0,1,7", {{"cuda", 0}, {"cuda", 1}, {"cuda", 7}}},
      {"cuda", "cuda:1,0", {{"cuda", 1}, {"cuda", 0}}},
      {"auto", "cuda:0,cuda:1,cpu", {{"cuda", 0}, {"cuda", 1}, {"cpu", 0}}},
      {"auto", "rocm", {{"rocm", 0}}},
      {"auto", "cpu,cpu", {{"cpu", 0}, {"cpu", 0}}},
      {"cpu", "cpu,cpu,cpu", {{"cpu", 0}, {"cpu", 0}, {"cpu", 0}}},
      {"cpu", "0,1", {{"cpu", 0}, {"cpu", 1}}},
      {"auto", "1024", {{"auto", 1024}}},
  };
  for (const auto& [backend, devices, expected] : cases) {
    const auto parsed = ParseDevices(Options(backend, devices));
    ASSERT_TRUE(parsed.ok()) << devices << ": " << parsed.status();
    EXPECT_EQ(*parsed, expected) << devices;
  }
}

TEST(DeviceOptionsTest, WhatIsNoListIsRefusedAndSaysWhatIsExpected) {
  for (const std::string devices : {"",
                                    ",",
                                    "0,",
                                    ",0",
                                    "0,,1",
                                    "-1",
                                    "+1",
                                    "1.5",
                                    "0x1",
                                    "1025",
                                    "99999999999999999999",
                                    "one",
                                    "gpu",
                                    "gpu:0",
                                    "cuda:",
                                    "cuda:-1",
                                    "cuda:1:2",
                                    ":1",
                                    "All",
                                    "all,0",
                                    "0 ,1",
                                    " 0",
                                    "0;1"}) {
    const absl::Status status = ParseDevices(Options("auto", devices)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << devices;
    EXPECT_TRUE(absl::StrContains(status.message(),
                                  absl::StrCat("--devices=", devices, ": expected all, or a list")))
        << status;
  }
}

TEST(DeviceOptionsTest, ADeviceIsNamedOnceButForTheCpuWithoutAnIndex) {
  for (const std::string devices : {"0,0", "0,1,0", "cuda:1,cuda:1", "cuda,cuda:0", "cuda,cuda",
                                    "cpu:0,cpu:0", "auto,auto", "auto,0"}) {
    const absl::Status status = ParseDevices(Options("auto", devices)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << devices;
    EXPECT_TRUE(absl::EndsWith(status.message(), " once")) << status;
  }
}

TEST(DeviceOptionsTest, ABackendThatContradictsTheListIsRefused) {
  for (const auto& [backend, devices] :
       {std::pair("cpu", "cuda:0"), std::pair("cuda", "cuda:0,cpu"), std::pair("rocm", "cuda"),
        std::pair("cuda", "auto:0")}) {
    const absl::Status status = ParseDevices(Options(backend, devices)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << devices;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("--backend=", backend))) << status;
  }
}

TEST(DeviceOptionsTest, AsManyAsAHandleCanTell) {
  std::string devices = "cpu";
  for (size_t i = 1; i < kMaxShards; ++i) absl::StrAppend(&devices, ",cpu");
  EXPECT_EQ(ParseDevices(Options("cpu", devices))->size(), kMaxShards);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseDevices(Options("cpu", devices + ",cpu")).status()));
}

TEST(DeviceOptionsTest, CpusShareTheThreadsAndHaveTheSamePlans) {
  DeviceOptions options = Options("auto", "cpu,cpu,cpu");
  options.device.cpu_threads = 5;
  ASSERT_TRUE(CheckDevices(&options).ok());
  EXPECT_EQ(options.device.cpu_lanes, std::max(1, MachineProcessors() / 3));
  auto opened = OpenDevices(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->backends.size(), 3u);
  EXPECT_EQ(opened->passed_over, "");
  int32_t threads = 0;
  for (const auto& backend : opened->backends) {
    EXPECT_EQ(backend->device().backend, "cpu");
    EXPECT_EQ(backend->pool().stats().capacity_bytes, int64_t{8} << 20);  // of each
    EXPECT_GE(backend->device().parallelism, 1);
    threads += backend->device().parallelism;
  }
  EXPECT_EQ(threads, 5);
  // There is a thread for each, whatever is asked for.
  options.device.cpu_threads = 1;
  opened = OpenDevices(options);
  ASSERT_TRUE(opened.ok());
  for (const auto& backend : opened->backends) EXPECT_EQ(backend->device().parallelism, 1);
}

TEST(DeviceOptionsTest, CpusShareTheMemoryWhereItsSizeIsNotSaid) {
  DeviceOptions one = Options("cpu", "all"), two = Options("cpu", "0,1");
  one.device.memory_bytes = two.device.memory_bytes = 0;
  ASSERT_TRUE(CheckDevices(&one).ok());
  ASSERT_TRUE(CheckDevices(&two).ok());
  auto alone = OpenDevices(one);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_EQ(alone->backends.size(), 1u);
  const int64_t all = alone->backends[0]->pool().stats().capacity_bytes;
  alone->backends.clear();
  const auto both = OpenDevices(two);
  ASSERT_TRUE(both.ok()) << both.status();
  ASSERT_EQ(both->backends.size(), 2u);
  int64_t sum = 0;
  for (const auto& backend : both->backends) sum += backend->pool().stats().capacity_bytes;
  EXPECT_LT(sum, all / 4 * 5);  // others of this machine take and give meanwhile
}

TEST(DeviceOptionsTest, ADeviceThatIsNotThereIsNotFound) {
  for (const std::string backend : {"cuda", "rocm"}) {
    if (CountDevices(backend).ok()) continue;
    for (const std::string devices : {"0", "all", "0,1"}) {
      const absl::Status status = OpenDevices(Options(backend, devices)).status();
      EXPECT_TRUE(absl::IsNotFound(status)) << status;
    }
  }
  EXPECT_EQ(*CountDevices("cpu"), 1);
  EXPECT_TRUE(absl::IsNotFound(CountDevices("fpga").status()));
}

TEST(DeviceOptionsTest, MemoryThatIsNotThereNamesTheFlag) {
  DeviceOptions options = Options("cpu", "cpu,cpu");
  options.device.memory_bytes = int64_t{1} << 50;
  const absl::Status status = OpenDevices(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--device_memory=")) << status;
}

}  // namespace
}  // namespace blockd::server
