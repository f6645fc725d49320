// A caller may write anything into shared memory at any time: it harms its own session alone.
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/shm/shm_fixture.h"

namespace blockd::test {
namespace {

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

class ShmHostileTest : public ShmTest {
 protected:
  void SetUp() override {
    Start(options_);
    handle_ = Factor(Matrix());
    refactored_ = Factor(Matrix());
    kept_ = Factor(Matrix());
    good_ = std::make_unique<RawShm>(path_);
    ASSERT_EQ(good_->Open(RawShm::Hello()).code(), 0);
    bad_ = std::make_unique<RawShm>(path_);
    ASSERT_EQ(bad_->Open(RawShm::Hello()).code(), 0);
  }
  void TearDown() override {
    // Whatever happened, others are served, and nothing is left behind.
    EXPECT_TRUE(good_ != nullptr && SolvesRight(*good_, kept_));
    good_.reset();
    bad_.reset();
    EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
    IntegrationTest::TearDown();
  }
  v1::ShmRequest Good(uint64_t id = 1) { return bad_->Solve(handle_, kRows, id); }
  // A SolveMany of one handle, whose places are as given, from 64 KiB on.
  v1::ShmRequest Many(const std::string& handle, const std::vector<v1::ShmPlace>& places) {
    v1::SolveManyRequest message;
    for (size_t i = 0; i < places.size(); i += 2) *message.mutable_handles() += handle;
    return bad_->Request(v1::ShmOperation::kSolveMany, message, places, 1, 64 << 10);
  }
  v1::ShmPlace Columns(uint64_t offset, uint64_t bytes = kRows * sizeof(double)) const {
    return {.offset = bad_->data() + offset, .bytes = bytes};
  }
  // A request of each operation, any of whose bytes may be scribbled on.
  v1::ShmRequest Any(v1::ShmOperation operation, uint64_t id) {
    constexpr uint64_t kAt = 32 << 10;
    const HostMatrix matrix = Matrix();
    const std::vector<v1::ShmPlace> blocks = bad_->PutMatrix(DataOf(matrix), 128 << 10);
    const std::vector<v1::ShmPlace> system = {blocks[0], blocks[1], Columns(0), Columns(0)};
    switch (operation) {
      case v1::ShmOperation::kSolveMany: {
        v1::SolveManyRequest message;
        std::vector<v1::ShmPlace> places;
        for (uint64_t i = 0; i < 40; ++i) {
          *message.mutable_handles() += handle_;
          places.insert(places.end(), 2, Columns((64 << 10) + i * 512));
        }
        return bad_->Request(operation, message, places, id, kAt);
      }
      case v1::ShmOperation::kFactor: {
        v1::FactorRequest message;
        *message.mutable_spec() = SpecOf(matrix);
        return bad_->Request(operation, message, blocks, id, kAt);
      }
      case v1::ShmOperation::kFactorSolve: {
        v1::FactorSolveRequest message;
        *message.mutable_spec() = SpecOf(matrix);
        message.set_num_rhs(1);
        return bad_->Request(operation, message, system, id, kAt);
      }
      case v1::ShmOperation::kFactorSolveMany: {
        v1::FactorSolveManyRequest message;
        *message.mutable_spec() = SpecOf(matrix);
        message.add_handle(refactored_);
        return bad_->Request(operation, message, system, id, kAt);
      }
      case v1::ShmOperation::kRelease: {
        v1::ReleaseRequest message;
        message.add_handle(std::string(24, 'x'));
        return bad_->Request(operation, message, {}, id, kAt);
      }
      default: {
        v1::ShmRequest request = bad_->Solve(handle_, kRows, id);
        request.operation = operation;
        return request;
      }
    }
  }
  // The bad session is told which field it is, and goes on.
  void ExpectRefused(const v1::ShmRequest& request, const std::string& field) {
    const v1::ShmReply reply = bad_->Ask(request);
    ASSERT_EQ(reply.code, grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(reply.id, request.id);
    if (reply.message_bytes == 0) return;  // there was no room for it
    EXPECT_EQ(DetailOf<v1::InvalidField>(bad_->StatusOf(request, reply))->field(), field);
  }

  // The bad session knows the first two: its memory may say at any time that they be released. Only
  // the good one knows the third.
  std::string handle_, refactored_, kept_;
  std::unique_ptr<RawShm> good_, bad_;
};

// -----------------------------------------------------------------------------------------------------
// The rings

TEST_F(ShmHostileTest, APositionFarAheadEndsTheSession) {
  bad_->Publish(17);
  EXPECT_TRUE(bad_->EndsSoon());
  EXPECT_NE(std::string(bad_->header().end_reason), "");
}

TEST_F(ShmHostileTest, APositionThatGoesBackEndsTheSession) {
  EXPECT_EQ(bad_->Ask(Good()).code, 0);
  bad_->Publish(0);
  EXPECT_TRUE(bad_->EndsSoon());
}

TEST_F(ShmHostileTest, APositionAtTheEndOfNumbersEndsTheSession) {
  bad_->Publish(kHuge);
  EXPECT_TRUE(bad_->EndsSoon());
}

TEST_F(ShmHostileTest, MoreRequestsThanPlacesEndTheSession) {
  for (uint64_t i = 0; i < 16; ++i) bad_->Put(bad_->Solve(handle_, kRows, i, i * 8192));
  ASSERT_TRUE(Eventually([&] { return bad_->header().replies_end.load() == 16; }));
  bad_->Put(Good(16));  // none of the 16 replies was taken
  EXPECT_TRUE(bad_->EndsSoon());
}

TEST_F(ShmHostileTest, RepliesTakenThatNobodySentEndTheSession) {
  bad_->header().replies_taken.store(5);
  bad_->Put(Good());
  EXPECT_TRUE(bad_->EndsSoon());
}

TEST_F(ShmHostileTest, RepliesTakenThatGoBackEndTheSession) {
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(bad_->Ask(Good(i)).code, 0);
  bad_->header().replies_taken.store(1);
  bad_->Put(Good(4));
  EXPECT_TRUE(bad_->EndsSoon());
}

TEST_F(ShmHostileTest, FlagsAndReasonsAreOnlyItsOwn) {
  for (int i = 0; i < 100; ++i) {
    bad_->header().server_asleep.store(static_cast<uint32_t>(i));
    bad_->header().caller_asleep.store(~0U);
    bad_->header().replies_end.store(kHuge);
    std::memset(bad_->header().end_reason, 'x', sizeof(bad_->header().end_reason));
    bad_->Wake();
  }
  EXPECT_TRUE(SolvesRight(*good_, kept_));
}

TEST_F(ShmHostileTest, AFloodOfWakesHoldsUpNobody) {
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    while (!stop) bad_->Wake();
  });
  for (uint64_t id = 1; id < 100; ++id) EXPECT_TRUE(SolvesRight(*good_, kept_, id));
  stop = true;
  flood.join();
}

// -----------------------------------------------------------------------------------------------------
// Requests

TEST_F(ShmHostileTest, OffsetsThatAreNotItsOwnAreRefused) {
  const uint64_t end = bad_->welcome().mapping_bytes, data = bad_->data();
  for (const uint64_t offset : {uint64_t{0}, data - 8, end, end - 8, kHuge, kHuge - 7,
                                kHuge / 2 + 1, uint64_t{1} << 40, data + 1, data + 4}) {
    for (const size_t i : {0, 1}) {
      const v1::ShmRequest request = Good();
      bad_->place(request, i).offset = offset;
      ExpectRefused(request, absl::StrCat("places[", i, "]"));
    }
    v1::ShmRequest request = Good();
    request.reply_offset = offset;
    ExpectRefused(request, "reply_offset");
    request = Good();
    request.message_offset = offset;
    ExpectRefused(request, "message_offset");
    request = Good();
    request.places_offset = offset;
    ExpectRefused(request, "places_offset");
  }
}

TEST_F(ShmHostileTest, BytesThatOverflowAreRefused) {
  for (const uint64_t bytes : {kHuge, kHuge - 7, uint64_t{1} << 63, uint64_t{1} << 40}) {
    const v1::ShmRequest request = Good();
    bad_->place(request, 0).bytes = bytes;
    ExpectRefused(request, "places[0]");
  }
  for (const uint32_t bytes : {~0U, 1U << 31}) {
    v1::ShmRequest request = Good();
    request.reply_bytes = bytes;
    ExpectRefused(request, "reply_offset");
    request = Good();
    request.message_bytes = bytes;
    ExpectRefused(request, "message_offset");
  }
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{8}, uint64_t{279}, uint64_t{288}}) {
    const v1::ShmRequest request = Good();
    bad_->place(request, 0).bytes = bad_->place(request, 1).bytes = bytes;
    ExpectRefused(request, "rhs");
    bad_->place(request, 1).bytes = bytes + 8;
    ExpectRefused(request, "places[1]");
  }
}

TEST_F(ShmHostileTest, RightHandSidesAndSolutionsDoNotOverlapInPart) {
  const v1::ShmRequest request = Good();
  for (const size_t later : {1, 0}) {
    bad_->place(request, later).offset = bad_->data() + 8;
    bad_->place(request, 1 - later).offset = bad_->data();
    ExpectRefused(request, "places[1]");
  }
}

TEST_F(ShmHostileTest, PlacesAreAsManyAsTheRequestNeeds) {
  for (const uint32_t places : {0U, 1U, 3U, 100U}) {
    v1::ShmRequest request = Good();
    request.num_places = places;
    request.reply_bytes = static_cast<uint32_t>(v1::ShmReplyRoom(places));
    ExpectRefused(request, "num_places");
  }
}

TEST_F(ShmHostileTest, FieldsOfMessagesAreChecked) {
  const auto refused = [&](const std::string& field, auto change) {
    v1::SolveRequest message;
    message.set_handle(handle_);
    message.set_num_rhs(1);
    change(message);
    ExpectRefused(bad_->Solve(message, kRows, 1), field);
  };
  for (const int64_t num_rhs : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                                std::numeric_limits<int64_t>::max(), int64_t{1} << 40}) {
    refused("num_rhs", [num_rhs](auto& m) { m.set_num_rhs(num_rhs); });
  }
  refused("rhs", [](auto& m) { m.set_num_rhs(2); });
  refused("rhs", [](auto& m) { m.set_rhs("12345678"); });
  refused("handle", [](auto& m) { m.set_handle("short"); });
  refused("options.priority",
          [](auto& m) { m.mutable_options()->set_priority(static_cast<v1::PriorityClass>(77)); });
  refused("options.max_refinements", [](auto& m) { m.mutable_options()->set_max_refinements(-5); });
}

TEST_F(ShmHostileTest, OtherFieldsAreChecked) {
  v1::ShmRequest request = Good();
  for (const uint32_t operation : {0U, 8U, ~0U}) {
    request.operation = static_cast<v1::ShmOperation>(operation);
    ExpectRefused(request, "operation");
  }
  request = Good();
  for (const int64_t over : {std::numeric_limits<int64_t>::min(), int64_t{-1}}) {
    request.timeout_nanoseconds = over;
    EXPECT_EQ(bad_->Ask(request).code, grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  request.timeout_nanoseconds = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(bad_->Ask(request).code, 0);
  request = Good();
  request.message_bytes = 0;
  ExpectRefused(request, "handle");
  request = Good();
  std::memset(bad_->at(request.message_offset), 0xff, request.message_bytes);
  ExpectRefused(request, "");
  for (const uint32_t room : {0U, 1U, request.reply_bytes - 1}) {
    request = Good();
    request.reply_bytes = room;
    const v1::ShmReply reply = bad_->Ask(request);
    EXPECT_EQ(reply.code, grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(reply.message_bytes != 0, room > 1);  // no room for words
  }
}

// Many that name the same memory would have the server clear, or look at, more than there is.
TEST_F(ShmHostileTest, SolutionsOfManySolvesLieApart) {
  const v1::ShmPlace all = Columns(0, bad_->welcome().mapping_bytes - bad_->data());
  const std::string unknown(24, 'x');
  ExpectRefused(Many(unknown, std::vector<v1::ShmPlace>(512, all)), "places");
  EXPECT_EQ(bad_->Ask(Many(unknown, {all, all})).code, 0);  // fits, and fails alone
}

TEST_F(ShmHostileTest, FailuresOfManySolvesSayAsMuchAsThereIsRoomFor) {
  constexpr int kSolves = 256;
  std::vector<v1::ShmPlace> places;
  for (uint64_t i = 0; i < kSolves; ++i) places.insert(places.end(), 2, Columns(8 * i, 8));
  v1::ShmRequest request = Many(std::string(24, 'x'), places);
  for (const bool has_room : {false, true}) {
    if (has_room) request.reply_bytes *= 8;
    v1::SolveManyReply many;
    ASSERT_TRUE(bad_->ReadReply(request, bad_->Ask(request), &many));
    ASSERT_EQ(many.failure_size(), kSolves);
    for (const v1::SolveFailure& failure : many.failure()) {
      EXPECT_EQ(failure.status().code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_EQ(failure.status().message().empty(), !has_room);
      EXPECT_EQ(failure.status().details().empty(), !has_room);
    }
  }
}

TEST_F(ShmHostileTest, PlacesOfManySolvesAreChecked) {
  const v1::ShmPlace one = Columns(0), other = Columns(512);
  const auto ask = [&](const std::vector<v1::ShmPlace>& places, const std::string& field) {
    const v1::ShmRequest request = Many(handle_, places);
    if (!field.empty()) return ExpectRefused(request, field);
    EXPECT_EQ(bad_->Ask(request).code, 0);
  };
  ask({one, one, other, other}, "");
  ask({one, one, {kHuge - 7, one.bytes}, other}, "places[2]");
  ask({one, one, Columns(512 + 16), other}, "places[3]");
  ask({one, one, other}, "num_places");
  v1::ShmRequest request = Many(handle_, {one, one});
  request.num_places = 4;
  ExpectRefused(request, "reply_bytes");
  v1::SolveManyRequest message;
  message.set_handles(handle_);
  message.add_num_rhs(-1);  // fails alone
  request = bad_->Request(v1::ShmOperation::kSolveMany, message, {one, one}, 1, 64 << 10);
  EXPECT_EQ(bad_->Ask(request).code, 0);
  message.add_rhs_bytes(8);
  request = bad_->Request(v1::ShmOperation::kSolveMany, message, {one, one}, 1, 64 << 10);
  ExpectRefused(request, "rhs, rhs_bytes");
}

TEST_F(ShmHostileTest, AsManyPlacesAsTheHandlesNeed) {
  v1::SolveManyRequest message;
  for (int i = 0; i < 20000; ++i) *message.mutable_handles() += handle_;
  ExpectRefused(
      bad_->Request(v1::ShmOperation::kSolveMany, message, {Columns(0), Columns(0)}, 1, 64 << 10),
      "num_places");
  message.clear_handles();
  ExpectRefused(bad_->Request(v1::ShmOperation::kSolveMany, message, {}, 1, 64 << 10), "handles");
}

TEST_F(ShmHostileTest, AFactorHasNoMoreSystemsThanOverThePort) {
  options_.core.max_systems = 8;
  server_->Drain();
  Start(options_);
  bad_ = std::make_unique<RawShm>(path_);
  ASSERT_EQ(bad_->Open(RawShm::Hello()).code(), 0);
  const HostMatrix matrix = Matrix();
  const std::vector<v1::ShmPlace> one = bad_->PutMatrix(DataOf(matrix), 128 << 10);
  v1::FactorRequest message;
  *message.mutable_spec() = SpecOf(matrix);
  std::vector<v1::ShmPlace> places;
  for (int i = 0; i < 8; ++i) places.insert(places.end(), one.begin(), one.end());
  EXPECT_EQ(bad_->Ask(bad_->Request(v1::ShmOperation::kFactor, message, places, 1, 0)).code, 0);
  places.insert(places.end(), one.begin(), one.end());
  ExpectRefused(bad_->Request(v1::ShmOperation::kFactor, message, places, 2, 0), "system");
  good_ = std::make_unique<RawShm>(path_);
  ASSERT_EQ(good_->Open(RawShm::Hello()).code(), 0);
  kept_ = Factor(matrix);
}

TEST_F(ShmHostileTest, MessagesOfFactorsAreChecked) {
  const HostMatrix matrix = Matrix();
  const std::vector<v1::ShmPlace> good = bad_->PutMatrix(DataOf(matrix), 128 << 10);
  v1::FactorRequest message;
  *message.mutable_spec() = SpecOf(matrix);
  const auto ask = [&](const std::vector<v1::ShmPlace>& places, const std::string& field) {
    const v1::ShmRequest request = bad_->Request(v1::ShmOperation::kFactor, message, places, 1, 0);
    if (!field.empty()) return ExpectRefused(request, field);
    EXPECT_EQ(bad_->Ask(request).code, 0);
  };
  ask(good, "");
  ask({good[0], good[1], good[0], good[1]}, "");  // the same one twice
  ask({}, "system");
  ask({good[0]}, "system");
  ask({good[0], good[1], good[0]}, "num_places");
  for (const uint64_t bytes : {good[1].bytes + 8, uint64_t{0}}) {
    ask({good[0], {good[1].offset, bytes}}, "places[1]");
  }
  ask({{bad_->welcome().mapping_bytes - 8, good[0].bytes}, good[1]}, "places[0]");
  message.add_system();
  ask(good, "system");
  message.clear_system();
  message.mutable_spec()->set_block_size(1 << 30);
  ask(good, "spec.block_size");
  message.mutable_spec()->set_block_size(7);
  v1::Palette& palette = *message.mutable_spec()->mutable_palette();
  palette.set_num_diagonal(1);
  palette.set_num_coupling(1);
  for (int i = 0; i < 5; ++i) palette.add_diagonal_index(i == 4 ? 1000 : 0);
  ask(good, "spec.palette.diagonal_index[4]");
}

// -----------------------------------------------------------------------------------------------------
// Memory that changes while it is read

TEST_F(ShmHostileTest, ScribblingWhileTheServerReadsHarmsNobodyElse) {
  std::atomic<bool> stop{false};
  // Bytes of requests, places, messages, right-hand sides and matrices, all the time; as
  // another process of the caller would.
  const auto scribble = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    const uint64_t from = bad_->welcome().requests_offset;
    const std::span<std::byte> memory = bad_->MapAgain();
    EXPECT_FALSE(memory.empty());
    while (!stop && !memory.empty()) {
      volatile std::byte& byte = memory[from + random() % ((256 << 10) - from)];
      byte = static_cast<std::byte>(random());
    }
    munmap(memory.data(), memory.size());
  };
  std::thread scribbler(scribble, 7);
  std::mt19937_64 random(11);
  for (uint64_t round = 1; round <= 300; ++round) {
    bad_->Put(Any(static_cast<v1::ShmOperation>(random() % 7 + 1), round));
    if (!bad_->Take().has_value()) {  // it has ended its session: another one
      stop = true;
      scribbler.join();
      stop = false;
      bad_ = std::make_unique<RawShm>(path_);
      ASSERT_EQ(bad_->Open(RawShm::Hello()).code(), 0);
      scribbler = std::thread(scribble, round);
    }
    EXPECT_TRUE(round % 10 != 0 || SolvesRight(*good_, kept_, round));
  }
  stop = true;
  scribbler.join();
}

// -----------------------------------------------------------------------------------------------------
// The hello

TEST_F(ShmHostileTest, HellosThatAreNoneAreRefused) {
  const auto refused = [&](const v1::ShmHello& hello) {
    return RawShm(path_).Open(hello).code() == grpc::StatusCode::INVALID_ARGUMENT;
  };
  v1::ShmHello hello = RawShm::Hello();
  hello.magic[0] = 'x';
  EXPECT_TRUE(refused(hello));
  hello = RawShm::Hello();
  hello.version = v1::kShmVersion - 1;
  EXPECT_TRUE(refused(hello));
  for (const uint32_t slots : {0U, 1U, 4U, 12U, 8192U, ~0U}) {
    EXPECT_TRUE(refused(RawShm::Hello(1 << 20, slots))) << slots;
  }
  for (const uint64_t bytes : {uint64_t{0}, kHuge, kHuge - 4096, uint64_t{1} << 60}) {
    EXPECT_TRUE(refused(RawShm::Hello(bytes))) << bytes;
  }
  hello = RawShm::Hello();
  hello.caller_bytes = 129;
  EXPECT_TRUE(refused(hello));
  hello = RawShm::Hello();
  hello.token_bytes = ~0U;
  EXPECT_TRUE(refused(hello));
  EXPECT_EQ(RawShm(path_).Open(RawShm::Hello(uint64_t{1} << 45)).code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ShmHostileTest, AHelloThatIsTooLongIsRefused) {
  RawShm caller(path_);
  std::string bytes(sizeof(v1::ShmHello) + 100, 'x');
  const v1::ShmHello hello = RawShm::Hello();
  std::memcpy(bytes.data(), &hello, sizeof(hello));
  caller.SendBytes(bytes.data(), bytes.size());
  EXPECT_NE(caller.TakeWelcome().code(), 0);
}

TEST_F(ShmHostileTest, AHelloInPiecesIsHeard) {
  RawShm caller(path_);
  const v1::ShmHello hello = RawShm::Hello();
  const char* const bytes = reinterpret_cast<const char*>(&hello);
  for (size_t at = 0; at < sizeof(hello); at += 37) {
    caller.SendBytes(bytes + at, std::min<size_t>(37, sizeof(hello) - at));
  }
  EXPECT_EQ(caller.TakeWelcome().code(), 0);
  EXPECT_TRUE(SolvesRight(caller, kept_));
}

}  // namespace
}  // namespace blockd::test
