#include "server/transport/upload/open_upload.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace blockd::server {
namespace {

const UploadLimits kUploadLimits = {.idle_timeout = absl::Seconds(10)};
const absl::Time kNow = absl::UnixEpoch();
const absl::Status kLate = absl::DeadlineExceededError("late");

class FakeUpload final : public FactorUpload {
 public:
  explicit FakeUpload(int* alive) : alive_(alive) { ++*alive_; }
  ~FakeUpload() override { --*alive_; }
  absl::StatusOr<int> Join(int64_t, int64_t) override { return 1; }
  absl::StatusOr<int64_t> Place(int, std::span<const std::span<const std::byte>>) override {
    return 0;
  }
  absl::Status WriteAt(int64_t, std::span<const std::span<const std::byte>>) override {
    return absl::OkStatus();
  }
  bool staged() const override { return true; }
  int64_t expected_bytes() const override { return 8; }
  int64_t received_bytes() const override { return 8; }

 private:
  int* const alive_;
};

class FakeStream final : public OpenUpload::Stream {
 public:
  void OnUploadEnded(const absl::Status& status) noexcept override { ended.push_back(status); }
  void OnUploadWhole(std::unique_ptr<FactorUpload> upload) noexcept override {
    whole = std::move(upload);
  }
  std::vector<absl::Status> ended;
  std::unique_ptr<FactorUpload> whole;
};

class OpenUploadTest : public ::testing::Test {
 protected:
  bool StartIt() {
    return upload_.Start(std::make_unique<FakeUpload>(&alive_), kUploadLimits, kNow);
  }

  int alive_ = 0;  // uploads of the core
  const std::shared_ptr<FakeStream> first_ = std::make_shared<FakeStream>();
  OpenUpload upload_{kUploadLimits, kNow, first_};
};

TEST_F(OpenUploadTest, GoesWholeToTheStreamThatBeganIt) {
  const auto joined = std::make_shared<FakeStream>();
  ASSERT_TRUE(StartIt());
  ASSERT_TRUE(upload_.Join(0, 8, joined).ok());
  {
    OpenUpload::Use use(&upload_);
    ASSERT_TRUE(use);
    upload_.Finish();
    EXPECT_EQ(first_->whole, nullptr);  // it is in use
    EXPECT_FALSE(OpenUpload::Use(&upload_));
  }
  EXPECT_NE(first_->whole, nullptr);
  EXPECT_TRUE(first_->ended.empty());
  ASSERT_EQ(joined->ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(joined->ended[0]));
}

TEST_F(OpenUploadTest, EndsOnceWithTheFirstStatusAndGivesAllBackBefore) {
  ASSERT_TRUE(StartIt());
  upload_.End(kLate);
  upload_.End(absl::CancelledError());
  EXPECT_EQ(first_->ended, std::vector<absl::Status>{kLate});
  EXPECT_EQ(alive_, 0);
  EXPECT_TRUE(absl::IsNotFound(upload_.Join(0, 8, first_).status()));
}

// The pace may end it while the core still looks at its header.
TEST_F(OpenUploadTest, ThatEndedBeforeItsHeaderCameTakesNothing) {
  EXPECT_FALSE(OpenUpload::Use(&upload_));
  EXPECT_EQ(upload_.CheckPace(kNow), absl::OkStatus());
  upload_.Wait(kNow);
  EXPECT_TRUE(absl::IsDeadlineExceeded(upload_.CheckPace(kNow + absl::Seconds(10))));
  upload_.End(kLate);
  EXPECT_EQ(first_->ended, std::vector<absl::Status>{kLate});
  EXPECT_FALSE(StartIt());
  EXPECT_EQ(alive_, 0);
}

TEST_F(OpenUploadTest, ItsStreamLeavesForAnotherUnlessItHasEnded) {
  EXPECT_TRUE(upload_.Leave());
  upload_.End(kLate);
  EXPECT_TRUE(first_->ended.empty());

  OpenUpload ending(kUploadLimits, kNow, first_);
  ASSERT_TRUE(ending.Start(std::make_unique<FakeUpload>(&alive_), kUploadLimits, kNow));
  {
    OpenUpload::Use use(&ending);
    ending.End(kLate);
    EXPECT_FALSE(ending.Leave());
  }
  EXPECT_EQ(first_->ended, std::vector<absl::Status>{kLate});
}

}  // namespace
}  // namespace blockd::server
