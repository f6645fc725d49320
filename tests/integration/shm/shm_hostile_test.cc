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
  // A SolveMany whose descriptors come first, and the reply, in the least room, from 64 KiB on.
  v1::ShmRequest Many(int solves) {
    v1::ShmRequest request{};
    request.id = 1;
    request.operation = v1::ShmOperation::kSolveMany;
    request.num_rhs = solves;
    request.rhs_offset = bad_->data();
    request.reply_offset = bad_->data() + 65536;
    request.reply_bytes = v1::kShmReplyBytes + solves * v1::kShmReplyBytesEach;
    return request;
  }
  // A one-off, or a refactor of the handle, whose message and descriptor are scribbled on.
  void PutFactorSolve(v1::ShmRequest& request, const HostMatrix& matrix) {
    v1::FactorSolveRequest one;
    *one.mutable_spec() = SpecOf(matrix);
    one.set_num_rhs(1);
    v1::FactorSolveManyRequest many;
    *many.mutable_spec() = one.spec();
    many.add_handle(refactored_);
    const bool is_one = request.operation == v1::ShmOperation::kFactorSolve;
    const std::string text = is_one ? one.SerializeAsString() : many.SerializeAsString();
    const uint64_t data = bad_->data();
    const auto diagonal_bytes = static_cast<uint64_t>(matrix.form().diagonal_bytes());
    v1::ShmFactorSolve system{
        .diagonal_offset = data + (128 << 10),
        .diagonal_bytes = diagonal_bytes,
        .coupling_offset = data + (128 << 10) + diagonal_bytes,
        .coupling_bytes = static_cast<uint64_t>(matrix.form().coupling_bytes()),
        .rhs_offset = data,
        .solution_offset = data,
        .bytes = kRows * sizeof(double)};
    request.num_rhs = 1;
    request.rhs_offset = data + 4096;
    request.message_offset = data + 32768;
    request.message_bytes = text.size();
    std::memcpy(bad_->at(request.rhs_offset), &system, sizeof(system));
    std::memcpy(bad_->at(request.message_offset), text.data(), text.size());
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
    v1::ShmRequest request = Good();
    request.reply_offset = data + 8192;
    request.rhs_offset = offset;
    ExpectRefused(request, "rhs_offset");
    request = Good();
    request.reply_offset = data + 8192;
    request.solution_offset = offset;
    ExpectRefused(request, "solution_offset");
    request = Good();
    request.reply_offset = offset;
    ExpectRefused(request, "reply_offset");
  }
}

TEST_F(ShmHostileTest, BytesThatOverflowAreRefused) {
  for (const uint64_t bytes : {kHuge, kHuge - 7, uint64_t{1} << 63, uint64_t{1} << 40}) {
    v1::ShmRequest request = Good();
    request.bytes = bytes;
    ExpectRefused(request, "rhs_offset");
    request = Good();
    request.reply_bytes = bytes;
    ExpectRefused(request, "reply_offset");
  }
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{8}, uint64_t{279}, uint64_t{288}}) {
    v1::ShmRequest request = Good();
    request.bytes = bytes;
    ExpectRefused(request, "rhs");
  }
}

TEST_F(ShmHostileTest, RightHandSidesAndSolutionsDoNotOverlapInPart) {
  v1::ShmRequest request = Good();
  request.reply_offset = bad_->data() + 8192;
  request.solution_offset = request.rhs_offset + 8;
  ExpectRefused(request, "solution_offset");
  std::swap(request.solution_offset, request.rhs_offset);
  ExpectRefused(request, "solution_offset");
}

TEST_F(ShmHostileTest, NumbersOfRightHandSidesAreChecked) {
  for (const int64_t num_rhs : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                                std::numeric_limits<int64_t>::max(), int64_t{1} << 40}) {
    v1::ShmRequest request = Good();
    request.num_rhs = num_rhs;
    ExpectRefused(request, "num_rhs");
    request.operation = v1::ShmOperation::kSolveMany;
    ExpectRefused(request, "num_rhs");
  }
  v1::ShmRequest two = Good();
  two.num_rhs = 2;
  ExpectRefused(two, "rhs");
}

TEST_F(ShmHostileTest, OtherFieldsAreChecked) {
  v1::ShmRequest request = Good();
  for (const uint32_t operation : {0U, 8U, ~0U}) {
    request.operation = static_cast<v1::ShmOperation>(operation);
    ExpectRefused(request, "operation");
  }
  request = Good();
  request.priority = 77;
  ExpectRefused(request, "priority");
  request = Good();
  request.max_refinements = -5;
  ExpectRefused(request, "options.max_refinements");
  request = Good();
  request.flags = ~0U;  // unknown ones do nothing; the matrix was not kept
  EXPECT_EQ(bad_->Ask(request).code, grpc::StatusCode::FAILED_PRECONDITION);
  request = Good();
  for (const int64_t over : {std::numeric_limits<int64_t>::min(), int64_t{-1}}) {
    request.timeout_nanoseconds = over;
    EXPECT_EQ(bad_->Ask(request).code, grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  request.timeout_nanoseconds = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(bad_->Ask(request).code, 0);
  request = Good();
  request.reply_bytes = 1;  // no room for words
  request.num_rhs = 0;
  const v1::ShmReply reply = bad_->Ask(request);
  EXPECT_EQ(reply.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reply.message_bytes, 0U);
}

// Many that name the same memory would have the server clear, or look at, more than there is.
TEST_F(ShmHostileTest, SolutionsOfManySolvesLieApart) {
  constexpr int kSolves = 256;
  v1::ShmRequest request = Many(kSolves);
  const uint64_t all = bad_->welcome().mapping_bytes - bad_->data();
  std::vector<v1::ShmSolve> solves(kSolves);
  for (v1::ShmSolve& solve : solves) {
    solve.num_rhs = std::numeric_limits<int64_t>::max();  // the handle is unknown
    solve.bytes = all;
    solve.rhs_offset = solve.solution_offset = bad_->data();
  }
  std::memcpy(bad_->at(request.rhs_offset), solves.data(), solves.size() * sizeof(solves[0]));
  ExpectRefused(request, "bytes");
  request.num_rhs = 1;  // fits, and fails alone
  EXPECT_EQ(bad_->Ask(request).code, 0);
}

TEST_F(ShmHostileTest, FailuresOfManySolvesSayAsMuchAsThereIsRoomFor) {
  constexpr int kSolves = 256;
  v1::ShmRequest request = Many(kSolves);
  std::vector<v1::ShmSolve> solves(kSolves);
  for (size_t i = 0; i < solves.size(); ++i) {
    const uint64_t at = bad_->data() + 32768 + 8 * i;
    solves[i] = {{}, /*num_rhs=*/1, at, at, /*bytes=*/8};  // the handle is unknown
  }
  std::memcpy(bad_->at(request.rhs_offset), solves.data(), solves.size() * sizeof(solves[0]));
  for (const bool has_room : {false, true}) {
    if (has_room) request.reply_bytes *= 8;
    const v1::ShmReply reply = bad_->Ask(request);
    ASSERT_EQ(reply.code, 0);
    v1::SolveManyReply many;
    ASSERT_TRUE(
        many.ParseFromArray(bad_->at(request.reply_offset), static_cast<int>(reply.message_bytes)));
    ASSERT_EQ(many.failure_size(), kSolves);
    for (const v1::SolveFailure& failure : many.failure()) {
      EXPECT_EQ(failure.status().code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_EQ(failure.status().message().empty(), !has_room);
      EXPECT_EQ(failure.status().details().empty(), !has_room);
    }
  }
}

TEST_F(ShmHostileTest, DescriptorsOfManySolvesAreChecked) {
  v1::ShmRequest request = Many(2);
  v1::ShmSolve solves[2] = {};
  for (v1::ShmSolve& solve : solves) {
    std::memcpy(solve.handle, handle_.data(), sizeof(solve.handle));
    solve.num_rhs = 1;
    solve.bytes = kRows * sizeof(double);
    solve.rhs_offset = solve.solution_offset = bad_->data() + 4096;
  }
  solves[1].rhs_offset = solves[1].solution_offset = bad_->data() + 8192;
  const auto ask = [&](const std::string& field) {
    std::memcpy(bad_->at(request.rhs_offset), solves, sizeof(solves));
    if (!field.empty()) return ExpectRefused(request, field);
    EXPECT_EQ(bad_->Ask(request).code, 0);
  };
  ask("");
  solves[1].rhs_offset = kHuge - 7;
  ask("rhs_offset");
  solves[1].rhs_offset = solves[1].solution_offset + 16;
  ask("solution_offset");
  solves[1].rhs_offset = solves[1].solution_offset;
  solves[1].num_rhs = -1;  // fails alone
  ask("");
  v1::SolveManyReply reply;
  request.reply_bytes = 64;
  ask("reply_bytes");
  request.reply_bytes = v1::kShmReplyBytes + 2 * v1::kShmReplyBytesEach;
  request.num_rhs = 65536;
  ask("reply_bytes");
}

TEST_F(ShmHostileTest, HeadersOfFactorsAreChecked) {
  const HostMatrix matrix = Matrix();
  v1::FactorStreamHeader header;
  *header.mutable_spec() = SpecOf(matrix);
  header.set_num_systems(1);
  v1::ShmRequest request{};
  request.id = 1;
  request.operation = v1::ShmOperation::kFactor;
  request.rhs_offset = bad_->data() + (128 << 10);
  request.bytes = static_cast<uint64_t>(matrix.form().bytes());
  request.message_offset = bad_->data();
  request.reply_offset = bad_->data() + (64 << 10);
  request.reply_bytes = v1::kShmReplyBytes + v1::kShmReplyBytesEach;
  const v1::SystemData data = DataOf(matrix);
  std::memcpy(bad_->at(request.rhs_offset), data.diagonal().data(), data.diagonal().size());
  std::memcpy(bad_->at(request.rhs_offset + data.diagonal().size()), data.coupling().data(),
              data.coupling().size());
  const auto ask = [&](const std::string& field) {
    const std::string text = header.SerializeAsString();
    std::memcpy(bad_->at(request.message_offset), text.data(), text.size());
    request.message_bytes = text.size();
    if (!field.empty()) return ExpectRefused(request, field);
    EXPECT_EQ(bad_->Ask(request).code, 0);
  };
  ask("");
  request.bytes += 8;
  ask("bytes");
  request.bytes = kHuge;
  ask("bytes");
  request.bytes = static_cast<uint64_t>(matrix.form().bytes());
  for (const int64_t systems : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    header.set_num_systems(systems);
    ask("num_systems");
  }
  header.set_num_systems(4096);
  ask("reply_bytes");
  header.set_num_systems(1);
  header.mutable_spec()->set_block_size(1 << 30);
  ask("spec.block_size");
  header.mutable_spec()->set_block_size(7);
  v1::Palette& palette = *header.mutable_spec()->mutable_palette();
  palette.set_num_diagonal(1);
  palette.set_num_coupling(1);
  for (int i = 0; i < 5; ++i) palette.add_diagonal_index(i == 4 ? 1000 : 0);
  ask("spec.palette.diagonal_index[4]");
  request.rhs_offset = bad_->welcome().mapping_bytes - 8;
  *header.mutable_spec() = SpecOf(matrix);
  ask("rhs_offset");
  request.message_offset = kHuge - 7;
  request.message_bytes = 64;
  ExpectRefused(request, "message_offset");
  request.message_offset = bad_->data();
  std::memset(bad_->at(bad_->data()), 0xff, 64);
  ExpectRefused(request, "");
}

// -----------------------------------------------------------------------------------------------------
// Memory that changes while it is read

TEST_F(ShmHostileTest, ScribblingWhileTheServerReadsHarmsNobodyElse) {
  v1::FactorStreamHeader header;
  const HostMatrix matrix = Matrix();
  *header.mutable_spec() = SpecOf(matrix);
  header.set_num_systems(1);
  const std::string text = header.SerializeAsString();
  std::atomic<bool> stop{false};
  // Bytes of requests, descriptors, headers, right-hand sides and matrices, all the time; as
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
    v1::ShmRequest request = Good(round);
    const auto operation = static_cast<uint32_t>(random() % 7 + 1);
    request.operation = static_cast<v1::ShmOperation>(operation);
    request.reply_offset = bad_->data() + (256 << 10);
    request.reply_bytes = 64 << 10;
    if (request.operation == v1::ShmOperation::kSolveMany) {
      request.num_rhs = 40;
      auto* const solves = reinterpret_cast<v1::ShmSolve*>(bad_->at(bad_->data() + 4096));
      for (int i = 0; i < 40; ++i) {
        std::memcpy(solves[i].handle, handle_.data(), sizeof(solves[i].handle));
        solves[i].num_rhs = 1;
        solves[i].bytes = kRows * sizeof(double);
        solves[i].rhs_offset = solves[i].solution_offset = bad_->data() + 65536 + i * 512;
      }
      request.rhs_offset = bad_->data() + 4096;
    }
    if (request.operation == v1::ShmOperation::kFactor) {
      request.message_offset = bad_->data() + 32768;
      request.message_bytes = text.size();
      std::memcpy(bad_->at(request.message_offset), text.data(), text.size());
      request.rhs_offset = bad_->data() + (128 << 10);
      request.bytes = static_cast<uint64_t>(matrix.form().bytes());
    }
    if (request.operation == v1::ShmOperation::kFactorSolve ||
        request.operation == v1::ShmOperation::kFactorSolveMany) {
      PutFactorSolve(request, matrix);
    }
    if (request.operation == v1::ShmOperation::kRelease) request.handle[0] ^= 1;
    bad_->Put(request);
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
  hello.version = 2;
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
