// How sessions of shared memory begin, with callers who say nothing, too much, or what nobody
// wants.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/integration/shm/shm_fixture.h"

namespace blockd::test {
namespace {

class ShmHelloTest : public ShmTest {};

TEST_F(ShmHelloTest, WhoSaysNothingMakesRoomForWhoDoes) {
  Start(options_);
  const std::string handle = Factor(Matrix());
  std::vector<std::unique_ptr<RawShm>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<RawShm>(path_));
  RawShm caller(path_);
  EXPECT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  EXPECT_TRUE(SolvesRight(caller, handle));
}

// As many as one user likes take no place of another one's. Only root may be two users; with one,
// the guest that came first is sent away.
TEST_F(ShmHelloTest, AnotherUsersGuestsDoNotSendOneAway) {
  options_.access.unix_socket_mode = "0666";
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  Start(options_);
  std::unique_ptr<RawShm> other;
  std::thread([&] {
    constexpr uid_t kSame = ~uid_t{0}, kNobody = 65534;
    syscall(SYS_setresuid, kSame, kNobody, kSame);  // of this thread alone
    other = std::make_unique<RawShm>(path_);
  }).join();
  ASSERT_TRUE(other->connected());
  std::vector<std::unique_ptr<RawShm>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<RawShm>(path_));
  // All but the last 64 are sent away.
  EXPECT_TRUE(Eventually([&] { return silent[100]->HasAnswer(); }));
  EXPECT_EQ(other->Open(RawShm::Hello()).code() == 0, geteuid() == 0);
}

// One that lingers at its end would have the thread that receives it wait.
TEST_F(ShmHelloTest, DescriptorsAreNotTaken) {
  Start(options_);
  const std::string handle = Factor(Matrix());
  RawShm good(path_), greeted(path_), silent(path_);
  ASSERT_EQ(good.Open(RawShm::Hello()).code(), 0);
  ASSERT_EQ(greeted.Open(RawShm::Hello()).code(), 0);
  for (RawShm* const bad : {&greeted, &silent}) {
    EXPECT_NE(bad->SendLingering(), RawShm::MayBeRefusedDescriptors());
  }
  EXPECT_TRUE(SolvesRight(good, handle));
}

// No message of a session is longer than one over gRPC may be, and none is copied to find that out.
TEST_F(ShmHelloTest, AMessageOverTheLimitIsRefusedBeforeItIsCopied) {
  options_.max_message_bytes = 64 << 10;
  Start(options_);
  RawShm caller(path_);
  ASSERT_EQ(caller.Open(RawShm::Hello()).code(), 0);
  v1::ShmRequest request =
      caller.Request(v1::ShmOperation::kFactor, v1::FactorRequest(), {}, 1, 128 << 10);
  request.message_offset = caller.data();
  request.message_bytes = static_cast<uint32_t>(options_.max_message_bytes) + 1;
  const v1::ShmReply reply = caller.Ask(request);
  EXPECT_EQ(reply.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf<v1::LimitExceeded>(caller.StatusOf(request, reply))->limit(),
            "max_message_bytes");
}

TEST_F(ShmHelloTest, WhoSaysNothingIsTurnedAwayAndHoldsUpNobody) {
  options_.handshake_timeout = absl::Seconds(1);
  Start(options_);
  const std::string handle = Factor(Matrix());
  std::vector<std::unique_ptr<RawShm>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<RawShm>(path_));
    if (i % 2 == 0) silent.back()->SendBytes("blockdsh", 8);
  }
  EXPECT_NE(silent[0]->TakeWelcome().code(), 0);
  EXPECT_TRUE(Eventually([&] {
    RawShm caller(path_);
    return caller.Open(RawShm::Hello()).code() == 0 && SolvesRight(caller, handle);
  }));
  for (int i = 1; i < 100; ++i) EXPECT_TRUE(silent[i]->EndsSoon());
}

}  // namespace
}  // namespace blockd::test
