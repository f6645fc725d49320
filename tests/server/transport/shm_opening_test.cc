#include "server/transport/shm/shm_opening.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"

namespace blockd::server {
namespace {

constexpr uint64_t kLarge = uint64_t{100} << 20;  // of many pieces

struct Step final : Executor::Task {
  explicit Step(std::function<void()> run) : run(std::move(run)) {}
  void Run() noexcept override { run(); }
  const std::function<void()> run;
};

// One thread, which a test holds until everything has been posted: then all goes in one order.
class ShmOpeningTest : public testing::Test {
 protected:
  ShmOpeningTest() {
    Post([this] { all_posted_.WaitForNotification(); });
  }
  void Post(std::function<void()> run) { makers_->Post(std::make_shared<Step>(std::move(run))); }
  std::shared_ptr<ShmOpening> Open(uint64_t bytes) {
    ShmOpening::Asked asked;
    asked.place = std::make_shared<int>();
    asked.slots = v1::kShmMinSlots;
    asked.data_bytes = bytes;
    const size_t index = opened_++;
    auto opening =
        std::make_shared<ShmOpening>(std::move(asked), /*for_devices=*/false, makers_.get(),
                                     [this, index] { done_.push_back(index); });
    opening->Start();
    return opening;
  }
  // Runs all of it.
  std::vector<size_t> OrderOfEnds() {
    all_posted_.Notify();
    makers_.reset();
    return done_;
  }

 private:
  absl::Notification all_posted_;
  std::unique_ptr<Executor> makers_ = std::make_unique<Executor>("test", 1);
  size_t opened_ = 0;
  std::vector<size_t> done_;
};

TEST_F(ShmOpeningTest, AllOfTheMemoryIsThereInTheEnd) {
  const auto opening = Open(kLarge);
  EXPECT_EQ(OrderOfEnds().size(), 1u);
  ASSERT_TRUE(opening->done());
  ASSERT_TRUE(opening->mapping().ok());
  EXPECT_EQ(opening->mapping()->bytes(), ShmMapping::BytesFor(v1::kShmMinSlots, kLarge));
  const auto data =
      opening->mapping()->memory().Data("", opening->mapping()->data_offset(), kLarge);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->front(), std::byte{0});
  EXPECT_EQ(data->back(), std::byte{0});
  EXPECT_FALSE(opening->registered().has_value());
}

TEST_F(ShmOpeningTest, ASmallOneDoesNotWaitForALargeOne) {
  const auto large = Open(kLarge), small = Open(1), other = Open(kLarge / 2);
  EXPECT_EQ(OrderOfEnds(), (std::vector<size_t>{1, 2, 0}));
}

TEST_F(ShmOpeningTest, OneWhoseCallerHasGoneIsNotMadeToItsEnd) {
  auto gone = Open(kLarge);
  Post([&] { gone->Cancel(); });  // its first piece is there
  const auto other = Open(kLarge / 2);
  EXPECT_EQ(OrderOfEnds(), (std::vector<size_t>{0, 1}));
  EXPECT_TRUE(absl::IsCancelled(gone->mapping().status()));
  EXPECT_TRUE(other->mapping().ok());
  const std::weak_ptr<const void> place = gone->asked.place;
  gone.reset();
  EXPECT_TRUE(place.expired());
}

}  // namespace
}  // namespace blockd::server
