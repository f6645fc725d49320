// Every way in which one stream of an upload can go wrong for the others, and what else ends it.
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/integration/upload/joined_upload.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

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
  void SetUp() override { StartGatedWrites(Options()); }
  void StartGatedWrites(const server::ServerOptions& options) {
    absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", Options().device);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    const CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
    Start(options, std::make_unique<GatedWrites>(*std::move(cpu), costs, gate_));
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

// Nothing but the other stream's write, which the device does not take, keeps the upload then.
TEST_F(JoinedUploadFailureTest, AStreamThatIsCancelledLivesUntilTheOthersWritesHaveEnded) {
  for (const bool first : {true, false}) {
    const int ended = Ended("FactorStream", "CANCELLED");
    const auto began = Begin();
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart + 8, 80000));
    const int64_t before = gate_->passes();
    EXPECT_TRUE(joined.SendChunks("12345678", 8));
    ASSERT_TRUE(Eventually([&] { return gate_->passes() > before; }));
    gate_->Close();
    Stream& writes = first ? joined : *began;
    Stream& goes = first ? *began : joined;
    EXPECT_TRUE(writes.SendChunks("12345678", 8));
    gate_->WaitForDevice();
    goes.context->TryCancel();
    EXPECT_TRUE(IsCode(goes.writer->Finish(), grpc::StatusCode::CANCELLED));
    EXPECT_TRUE(Eventually([&] {  // no join is of this range
      return JoinStatus(kId, bytes_.size(), 8).error_code() == grpc::StatusCode::NOT_FOUND;
    }));
    gate_->Open();
    EXPECT_TRUE(IsCode(writes.writer->Finish(), grpc::StatusCode::CANCELLED));
    EXPECT_TRUE(Eventually([&] { return Ended("FactorStream", "CANCELLED") == ended + 2; }));
    EXPECT_TRUE(AllReturns());
  }
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
