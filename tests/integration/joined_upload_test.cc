// Uploads over several connections: the same bits as over one, and every way in which one of the
// streams can go wrong for the others.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "tests/integration/fixture.h"
#include "tests/integration/wire_between.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

constexpr size_t kFirstPart = 64 << 10;

class JoinedUploadTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }

  // One stream, over a connection of its own or the fixture's.
  struct Stream {
    explicit Stream(v1::Solver::Stub& stub, const std::string& caller = "")
        : context(NewContext(caller)), writer(stub.FactorStream(context.get(), &reply)) {}
    // False if it is answered already.
    bool SendChunks(std::string_view bytes, size_t size) {
      v1::FactorStreamRequest message;
      for (size_t at = 0; at < bytes.size(); at += size) {
        message.set_chunk(std::string(bytes.substr(at, size)));
        if (!writer->Write(message)) return false;
      }
      return true;
    }
    bool Join(const std::string& id, size_t first, size_t bytes) {
      v1::FactorStreamRequest message;
      message.mutable_join()->set_upload_id(id);
      message.mutable_join()->set_first_byte(static_cast<int64_t>(first));
      message.mutable_join()->set_num_bytes(static_cast<int64_t>(bytes));
      return writer->Write(message);
    }
    // Whether it says that others may join.
    bool AwaitOpen() {
      writer->WaitForInitialMetadata();
      const auto& metadata = context->GetServerInitialMetadata();
      const auto found = metadata.find("blockd-upload");
      return found != metadata.end() && found->second == "open";
    }
    grpc::Status Finish() {
      writer->WritesDone();
      return writer->Finish();
    }

    std::unique_ptr<grpc::ClientContext> context;
    v1::FactorReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::FactorStreamRequest>> writer;
  };

  std::unique_ptr<v1::Solver::Stub> NewStub() { return v1::Solver::NewStub(NewChannel()); }

  v1::FactorStreamRequest Header() const {
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
    message.mutable_header()->set_num_systems(1);
    message.mutable_header()->set_upload_id(kId);
    return message;
  }
  // An upload that may be joined: its first part is there. Null where it was refused, or too slow.
  std::unique_ptr<Stream> TryBegin() {
    auto stream = std::make_unique<Stream>(stub());
    stream->writer->Write(Header());
    stream->SendChunks(std::string_view(bytes_).substr(0, kFirstPart), kFirstPart);
    return stream->AwaitOpen() ? std::move(stream) : nullptr;
  }
  std::unique_ptr<Stream> Begin() {
    auto stream = TryBegin();
    EXPECT_NE(stream, nullptr);
    return stream;
  }
  grpc::Status JoinStatus(const std::string& id, size_t first, size_t bytes,
                          const std::string& caller = "") {
    Stream joined(stub(), caller);
    joined.Join(id, first, bytes);
    return joined.Finish();
  }
  // The rest on one joined stream, and the end of both.
  void FinishWell(Stream& began) {
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart, bytes_.size() - kFirstPart));
    EXPECT_TRUE(joined.SendChunks(std::string_view(bytes_).substr(kFirstPart), 10007));
    EXPECT_TRUE(IsOk(joined.Finish()));
    EXPECT_EQ(joined.reply.system_size(), 0);
    EXPECT_TRUE(IsOk(began.Finish()));
    ASSERT_EQ(began.reply.system_size(), 1);
    ExpectSolves(matrix_, Solve(began.reply.system(0).handle(), problem_.rhs), problem_.rhs);
  }
  void ExpectTheBitsOfOne() {
    const std::vector<double> expected = Solve(Factor(matrix_), problem_.rhs);
    for (const size_t chunk : {size_t{997}, size_t{30000}}) {
      const auto began = Begin();
      constexpr size_t kJoined = 4;
      const size_t share = (bytes_.size() - kFirstPart) / (kJoined + 1) / 8 * 8;
      std::vector<std::thread> threads;
      for (size_t k = 1; k <= kJoined; ++k) {
        threads.emplace_back([&, k] {
          const auto own_stub = NewStub();
          Stream joined(*own_stub);
          const size_t first = kFirstPart + k * share;
          const size_t bytes = k < kJoined ? share : bytes_.size() - first;
          EXPECT_TRUE(joined.Join(kId, first, bytes));
          EXPECT_TRUE(joined.SendChunks(std::string_view(bytes_).substr(first, bytes), chunk));
          EXPECT_TRUE(IsOk(joined.Finish()));
        });
      }
      EXPECT_TRUE(began->SendChunks(std::string_view(bytes_).substr(kFirstPart, share), chunk));
      for (std::thread& thread : threads) thread.join();
      ASSERT_TRUE(IsOk(began->Finish()));
      EXPECT_EQ(Solve(began->reply.system(0).handle(), problem_.rhs), expected);
    }
    EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  }
  bool AllReturns() {
    return Eventually([&] { return ReservedBytes() == 0 && HostBytes() == 0; });
  }
  static bool IsCode(const grpc::Status& status, grpc::StatusCode code) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_code() == code;
  }

  static const inline std::string kId = "sixteen bytes...";
  const problems::Problem problem_ = problems::RandomSpd(50, 16, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  const std::string bytes_ = DataOf(matrix_).diagonal() + DataOf(matrix_).coupling();
};

TEST_F(JoinedUploadTest, SeveralConnectionsGiveTheBitsOfOne) { ExpectTheBitsOfOne(); }

TEST_F(JoinedUploadTest, SoTheyDoWhereThreadsThatServeCopy) {
  server::ServerOptions options = Options();
  options.serving_threads = options.serving_queues = 3;
  options.copy_threads = -1;
  Start(options);
  ExpectTheBitsOfOne();
}

TEST_F(JoinedUploadTest, AnIdIsOfOneCallerAndOfOneUpload) {
  const auto began = Begin();
  const size_t rest = bytes_.size() - kFirstPart;
  const grpc::Status unknown = JoinStatus("another 16 bytes", kFirstPart, rest);
  const grpc::Status foreign = JoinStatus(kId, kFirstPart, rest, "mallory");
  EXPECT_TRUE(IsCode(unknown, grpc::StatusCode::NOT_FOUND));
  EXPECT_TRUE(IsCode(foreign, grpc::StatusCode::NOT_FOUND));
  EXPECT_EQ(unknown.error_message(), foreign.error_message());
  EXPECT_TRUE(IsCode(JoinStatus("", kFirstPart, rest), grpc::StatusCode::NOT_FOUND));
  Stream twin(stub());
  twin.writer->Write(Header());
  EXPECT_TRUE(IsInvalid(twin.Finish(), "upload_id"));
  // Another caller's upload may have the same id.
  Stream other(stub(), "mallory");
  other.writer->Write(Header());
  other.SendChunks(bytes_, 50000);
  EXPECT_TRUE(IsOk(other.Finish()));
  FinishWell(*began);
}

TEST_F(JoinedUploadTest, AnIdHasSixteenBytes) {
  for (const size_t bytes : {1, 15, 17, 1000}) {
    Stream stream(stub());
    v1::FactorStreamRequest header = Header();
    header.mutable_header()->set_upload_id(std::string(bytes, 'x'));
    stream.writer->Write(header);
    EXPECT_TRUE(IsInvalid(stream.Finish(), "upload_id"));
  }
}

TEST_F(JoinedUploadTest, RangesThatLieAreRefusedAndHarmNobody) {
  const auto began = Begin();
  const size_t end = bytes_.size();
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart + 1, 8), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, end, 8), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, size_t{} - 8, 16), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, 0), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, end), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, size_t{} - 8), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, 0, end), "join"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart - 8, 16), "join"));
  FinishWell(*began);
}

TEST_F(JoinedUploadTest, AStreamMayBringSeveralRanges) {
  const std::vector<double> expected = Solve(Factor(matrix_), problem_.rhs);
  const auto began = Begin();
  const std::string_view bytes = bytes_;
  const size_t third = (bytes.size() - kFirstPart) / 3 / 8 * 8;
  const size_t cuts[] = {kFirstPart, kFirstPart + third, kFirstPart + 2 * third, bytes.size()};
  Stream joined(stub());
  for (const size_t k : {2, 0, 1}) {  // from anywhere, in any order
    const size_t size = cuts[k + 1] - cuts[k];
    EXPECT_TRUE(joined.Join(kId, cuts[k], size));
    EXPECT_TRUE(joined.SendChunks(bytes.substr(cuts[k], size), 9973));
  }
  EXPECT_TRUE(IsOk(joined.Finish()));
  ASSERT_TRUE(IsOk(began->Finish()));
  EXPECT_EQ(Solve(began->reply.system(0).handle(), problem_.rhs), expected);
}

// What such a stream says then ends all of them.
TEST_F(JoinedUploadTest, AFurtherRangeIsOneOfTheSameUploadAndComesBehindTheBytesOfTheLast) {
  struct Further {
    size_t sent;  // of the 800 bytes before it
    std::string id;
    size_t first, bytes;
    grpc::StatusCode code;
  };
  const size_t next = kFirstPart + 800;
  for (const auto& [sent, id, first, bytes, code] :
       {Further{792, kId, next, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{0, kId, next, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, kFirstPart + 792, 16, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, next + 1, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, next, 0, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, "another 16 bytes", next, 8, grpc::StatusCode::NOT_FOUND}}) {
    const auto began = Begin();
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart, 800));
    EXPECT_TRUE(joined.SendChunks(std::string(sent, 'x'), 100));
    joined.Join(id, first, bytes);
    EXPECT_TRUE(IsCode(joined.Finish(), code)) << sent << " " << id << " " << first;
    EXPECT_FALSE(began->writer->Finish().ok());
    EXPECT_TRUE(AllReturns());
  }
  // Nor is one cut short.
  const auto began = Begin();
  Stream joined(stub());
  for (const size_t first : {kFirstPart, next}) {
    EXPECT_TRUE(joined.Join(kId, first, 800));
    EXPECT_TRUE(joined.SendChunks(std::string(first == next ? 799 : 800, 'x'), 100));
  }
  EXPECT_TRUE(IsInvalid(joined.Finish(), "chunk"));
  EXPECT_FALSE(began->writer->Finish().ok());
  EXPECT_TRUE(AllReturns());
  ExpectServes();
}

TEST_F(JoinedUploadTest, AJoinThatComesTwiceIsRefusedOnce) {
  const auto began = Begin();
  const size_t half = kFirstPart + 8000;
  Stream first(stub());
  EXPECT_TRUE(first.Join(kId, half, bytes_.size() - half));
  EXPECT_TRUE(first.SendChunks(std::string_view(bytes_).substr(half), 5000));
  EXPECT_TRUE(IsOk(first.Finish()));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, half, bytes_.size() - half), "join"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, bytes_.size() - 8, 8), "join"));
  EXPECT_TRUE(began->SendChunks(std::string_view(bytes_).substr(kFirstPart, 8000), 3000));
  EXPECT_TRUE(IsOk(began->Finish()));
}

TEST_F(JoinedUploadTest, NobodyJoinsBeforeTheFirstPartIsThere) {
  Stream stream(stub());
  EXPECT_TRUE(stream.writer->Write(Header()));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(0, 100), 100));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 100; }));
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(100), 50000));
  EXPECT_TRUE(IsOk(stream.Finish()));
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::NOT_FOUND));
}

TEST_F(JoinedUploadTest, AStreamBeginsWithOneFirstMessage) {
  const auto began = Begin();
  EXPECT_TRUE(began->Join(kId, kFirstPart, 8));
  EXPECT_TRUE(IsInvalid(began->writer->Finish(), "join"));
  EXPECT_TRUE(AllReturns());
  const auto again = Begin();
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, 8));
  joined.writer->Write(Header());
  EXPECT_TRUE(IsInvalid(joined.writer->Finish(), "header"));
  EXPECT_FALSE(again->writer->Finish().ok());  // they fail together
  EXPECT_TRUE(AllReturns());
}

// ------------------------------------------------------------------ one of them goes, and all with
// it

TEST_F(JoinedUploadTest, AFirstStreamThatIsCancelledEndsAll) {
  const auto began = Begin();
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, 80000));
  EXPECT_TRUE(joined.SendChunks("12345678", 8));
  began->context->TryCancel();
  EXPECT_FALSE(began->writer->Finish().ok());
  EXPECT_FALSE(joined.writer->Finish().ok());
  EXPECT_TRUE(AllReturns());
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::NOT_FOUND));
  ExpectServes();
}

TEST_F(JoinedUploadTest, AFirstStreamThatEndsTooEarlyEndsAll) {
  const auto began = Begin();
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, 80000));
  EXPECT_TRUE(joined.SendChunks("12345678", 8));
  EXPECT_TRUE(IsInvalid(began->Finish(), "chunk"));
  EXPECT_FALSE(joined.writer->Finish().ok());
  EXPECT_TRUE(AllReturns());
}

TEST_F(JoinedUploadTest, AJoinedStreamThatEndsTooEarlyEndsAll) {
  for (const size_t sent : {size_t{0}, size_t{799}}) {
    const auto began = Begin();
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart, 800));
    EXPECT_TRUE(joined.SendChunks(std::string(sent, 'x'), 100));
    EXPECT_TRUE(IsInvalid(joined.Finish(), "chunk"));
    EXPECT_TRUE(IsCode(began->writer->Finish(), grpc::StatusCode::CANCELLED));
    EXPECT_TRUE(AllReturns());
  }
}

TEST_F(JoinedUploadTest, AStreamThatSendsTooMuchEndsAll) {
  const auto began = Begin();
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, 800));
  joined.SendChunks(std::string(801, 'x'), 801);
  EXPECT_TRUE(IsInvalid(joined.writer->Finish(), "chunk"));
  EXPECT_TRUE(IsInvalid(began->writer->Finish(), "chunk"));
  EXPECT_TRUE(AllReturns());
}

TEST_F(JoinedUploadTest, NanOnAnyStreamIsToldOnAll) {
  Stream began(stub());
  v1::FactorStreamRequest header = Header();
  header.mutable_header()->mutable_options()->set_check_finite(true);
  EXPECT_TRUE(began.writer->Write(header));
  EXPECT_TRUE(began.SendChunks(std::string_view(bytes_).substr(0, kFirstPart), 10000));
  ASSERT_TRUE(began.AwaitOpen());
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, bytes_.size() - kFirstPart));
  joined.SendChunks(std::string(800, '\xff'), 7);
  EXPECT_TRUE(IsInvalid(joined.writer->Finish(), "system[0].diagonal"));
  EXPECT_TRUE(IsInvalid(began.writer->Finish(), "system[0].diagonal"));
  EXPECT_TRUE(AllReturns());
}

// ----------------------------------------------------------------------------- what ends it
// otherwise

TEST_F(JoinedUploadTest, AKeyThatIsHeldAnswersAtTheHeaderAndOpensNothing) {
  v1::FactorStreamRequest header = Header();
  header.mutable_header()->mutable_options()->set_idempotency_key("k");
  Stream first(stub()), again(stub());
  EXPECT_TRUE(first.writer->Write(header));
  first.SendChunks(bytes_, 50000);
  ASSERT_TRUE(IsOk(first.Finish()));
  EXPECT_TRUE(again.writer->Write(header));
  EXPECT_FALSE(again.AwaitOpen());
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::NOT_FOUND));
  EXPECT_TRUE(IsOk(again.writer->Finish()));
  EXPECT_TRUE(again.reply.found());
}

TEST_F(JoinedUploadTest, WithoutAnIdNobodyJoins) {
  Stream stream(stub());
  v1::FactorStreamRequest header = Header();
  header.mutable_header()->clear_upload_id();
  EXPECT_TRUE(stream.writer->Write(header));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(0, 100'000), 100'000));
  ASSERT_TRUE(Eventually([&] { return ReservedBytes() > 0; }));
  EXPECT_TRUE(IsCode(JoinStatus("", 150'000 / 8 * 8, 8), grpc::StatusCode::NOT_FOUND));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(100'000), 100'000));
  EXPECT_TRUE(IsOk(stream.Finish()));
  EXPECT_EQ(stream.context->GetServerInitialMetadata().count("blockd-upload"), 0u);
}

// Whose writes stand before the gate too.
class GatedWrites final : public HookedBackend {
 public:
  GatedWrites(std::unique_ptr<Backend> inner, const CostModel& costs,
              const std::shared_ptr<Gate>& gate)
      : HookedBackend(std::move(inner), costs, gate), gate_(gate) {}
  absl::Status Write(void* device, std::span<const HostPiece> pieces) override {
    gate_->Pass();
    return HookedBackend::Write(device, pieces);
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

class JoinedUploadFailureTest : public JoinedUploadTest {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", Options().device);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    const CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
    Start(Options(), std::make_unique<GatedWrites>(*std::move(cpu), costs, gate_));
  }
  void TearDown() override {
    gate_->Open();
    JoinedUploadTest::TearDown();
  }
};

// The device's fault is not the caller's, whatever came meanwhile.
TEST_F(JoinedUploadFailureTest, AWriteThatFailsAfterTheLastMessageIsTold) {
  const auto began = Begin();
  gate_->Close();
  EXPECT_TRUE(began->SendChunks(std::string_view(bytes_).substr(kFirstPart), bytes_.size()));
  began->writer->WritesDone();
  gate_->WaitForDevice();
  // No join is of this range: it says whether the stream's end has come.
  EXPECT_TRUE(Eventually([&] {
    return JoinStatus(kId, bytes_.size(), 8).error_code() == grpc::StatusCode::NOT_FOUND;
  }));
  gate_->FailAfter(0);
  gate_->Open();
  const grpc::Status status = began->writer->Finish();
  EXPECT_TRUE(IsCode(status, grpc::StatusCode::INTERNAL));
  EXPECT_EQ(status.error_message(), "the device fell off at Upload");
  EXPECT_TRUE(AllReturns());
}

class JoinedUploadStallTest : public JoinedUploadTest {
 protected:
  static constexpr absl::Duration kTimeout = absl::Milliseconds(100);

  void SetUp() override {
    server::ServerOptions options = Options();
    options.stream_idle_timeout = kTimeout;
    Start(options);
  }
};

// A round in which the server did not see the join in time says nothing.
TEST_F(JoinedUploadStallTest, AJoinedStreamThatStallsEndsAll) {
  EXPECT_TRUE(Eventually([&] {
    const auto began = TryBegin();
    if (began == nullptr) return false;
    Stream joined(stub());
    joined.Join(kId, kFirstPart, 8000);
    EXPECT_TRUE(IsCode(began->writer->Finish(), grpc::StatusCode::DEADLINE_EXCEEDED));
    EXPECT_TRUE(AllReturns());
    return joined.writer->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  }));
}

TEST_F(JoinedUploadStallTest, AJoinedStreamThatIsCancelledEndsAll) {
  EXPECT_TRUE(Eventually([&] {
    const auto began = TryBegin();
    if (began == nullptr) return false;
    Stream idle(stub()), joined(stub());
    idle.Join(kId, bytes_.size() - 800, 800);
    joined.Join(kId, kFirstPart, 800);
    joined.SendChunks("12345678", 8);
    Health();  // travels behind them
    joined.context->TryCancel();
    EXPECT_FALSE(joined.writer->Finish().ok());
    const grpc::StatusCode code = began->writer->Finish().error_code();
    EXPECT_TRUE(AllReturns());
    return code == grpc::StatusCode::CANCELLED &&
           idle.writer->Finish().error_code() == grpc::StatusCode::CANCELLED;
  }));
  ExpectServes();
}

TEST_F(JoinedUploadStallTest, AJoinedConnectionThatIsCutEndsAll) {
  EXPECT_TRUE(Eventually([&] {
    WireBetween wire(server().grpc_port());
    const auto far = v1::Solver::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(wire.port()), grpc::InsecureChannelCredentials()));
    Stream joined(*far);
    const auto began = TryBegin();
    if (began == nullptr) return false;
    joined.Join(kId, kFirstPart, 8000);
    joined.SendChunks("12345678", 8);
    Health();
    wire.Cut();
    EXPECT_FALSE(joined.writer->Finish().ok());
    const grpc::StatusCode code = began->writer->Finish().error_code();
    EXPECT_TRUE(AllReturns());
    return code == grpc::StatusCode::CANCELLED;
  }));
  ExpectServes();
}

// On a busy machine a chunk may be late: then the round says nothing.
TEST_F(JoinedUploadStallTest, WhatComesOnOneStreamKeepsTheOthersAlive) {
  EXPECT_TRUE(Eventually([&] {
    const auto began = TryBegin();
    if (began == nullptr) return false;
    Stream joined(stub());
    joined.Join(kId, kFirstPart, bytes_.size() - kFirstPart);
    size_t at = kFirstPart;
    for (const absl::Time end = absl::Now() + 4 * kTimeout; absl::Now() < end; at += 8) {
      if (!joined.SendChunks(std::string_view(bytes_).substr(at, 8), 8)) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    joined.SendChunks(std::string_view(bytes_).substr(at), 100'000);
    return joined.Finish().ok() && began->Finish().ok();
  }));
}

TEST_F(JoinedUploadTest, AnUploadThatHasBegunIsJoinedWhileTheServerDrains) {
  const auto began = Begin();
  server().StartDrain();  // new work is refused, and connections stay for a while
  Stream late(stub());
  late.writer->Write(Header());  // which may find it refused already
  EXPECT_TRUE(IsCode(late.writer->Finish(), grpc::StatusCode::UNAVAILABLE));
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, bytes_.size() - kFirstPart));
  EXPECT_TRUE(joined.SendChunks(std::string_view(bytes_).substr(kFirstPart), 10007));
  EXPECT_TRUE(IsOk(joined.Finish()));
  EXPECT_TRUE(IsOk(began->Finish()));
  EXPECT_TRUE(server().Drain());
}

}  // namespace
}  // namespace blockd::test
