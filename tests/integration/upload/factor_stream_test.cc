// FactorStream over a real socket: whole uploads, and every way in which one can go wrong.
#include <algorithm>

#include "tests/integration/fixture.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::test {
namespace {

class FactorStreamTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }

  static v1::FactorStreamRequest HeaderOf(const HostMatrix& matrix, int64_t systems = 1) {
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(matrix);
    message.mutable_header()->set_num_systems(systems);
    return message;
  }
  static std::string StreamOf(const HostMatrix& matrix) {
    const v1::SystemData data = DataOf(matrix);
    return data.diagonal() + data.coupling();
  }
  static v1::FactorStreamRequest Chunk(const std::string& bytes) {
    v1::FactorStreamRequest message;
    message.set_chunk(bytes);
    return message;
  }

  // Sends the messages and the end of the stream.
  grpc::Status Send(const std::vector<v1::FactorStreamRequest>& messages,
                    v1::FactorReply* reply = nullptr) {
    v1::FactorReply unused;
    const auto context = NewContext();
    const auto writer = stub().FactorStream(context.get(), reply ? reply : &unused);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;  // answered already
    }
    writer->WritesDone();
    return writer->Finish();
  }

  bool ReservationReturns() {
    return Eventually([&] { return ReservedBytes() == 0 && HostBytes() == 0; });
  }

  const problems::Problem problem_ = problems::RandomSpd(50, 16, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
};

TEST_F(FactorStreamTest, ChunksMayBeCutAnywhere) {
  const std::string bytes = StreamOf(matrix_);
  for (const size_t size : {size_t{1001}, size_t{4096}, size_t{65537}, bytes.size()}) {
    std::vector<v1::FactorStreamRequest> messages = {HeaderOf(matrix_)};
    for (size_t at = 0; at < bytes.size(); at += size) {
      messages.push_back(Chunk(bytes.substr(at, size)));
      messages.push_back(Chunk(""));
    }
    v1::FactorReply reply;
    ASSERT_TRUE(IsOk(Send(messages, &reply)));
    ASSERT_EQ(reply.system_size(), 1);
    EXPECT_GT(reply.cost().upload_seconds(), 0);
    ExpectSolves(matrix_, Solve(reply.system(0).handle(), problem_.rhs), problem_.rhs);
  }
}

TEST_F(FactorStreamTest, EveryFormAndSeveralSystems) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 5, .observations = 5, .steps = 14});
  for (const bool palette : {false, true}) {
    const HostMatrix matrix(problem, Scalar::kFloat32,
                            {DiagonalForm::kPackedLower, CouplingForm::kSuperdiagonal, palette});
    const std::string bytes = StreamOf(matrix) + StreamOf(matrix) + StreamOf(matrix);
    const size_t third = bytes.size() / 3 + 5;
    v1::FactorStreamRequest header = HeaderOf(matrix, 3);
    header.mutable_header()->mutable_options()->set_keep_matrix(true);
    header.mutable_header()->mutable_options()->set_check_finite(true);
    v1::FactorReply reply;
    ASSERT_TRUE(
        IsOk(Send({header, Chunk(bytes.substr(0, third)), Chunk(bytes.substr(third))}, &reply)));
    ASSERT_EQ(reply.system_size(), 3);
    const std::vector<double> b =
        ValuesOf(BytesOf(problem.rhs, Scalar::kFloat32), Scalar::kFloat32);
    for (const auto& system : reply.system()) {
      ExpectSolves(matrix, Solve(system.handle(), b, 1, Scalar::kFloat32), b);
    }
  }
}

TEST_F(FactorStreamTest, AStreamThatEndsEarly) {
  const std::string bytes = StreamOf(matrix_);
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_), Chunk(bytes.substr(1))}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_)}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({}), "header"));
  EXPECT_TRUE(ReservationReturns());
}

TEST_F(FactorStreamTest, AStreamThatSendsTooMuch) {
  const std::string bytes = StreamOf(matrix_);
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_), Chunk(bytes + "x")}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_), Chunk(bytes), Chunk("x")}), "chunk"));
  EXPECT_TRUE(ReservationReturns());
}

TEST_F(FactorStreamTest, MessagesOutOfOrder) {
  EXPECT_TRUE(IsInvalid(Send({Chunk("x"), HeaderOf(matrix_)}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_), HeaderOf(matrix_)}), "header"));
  EXPECT_TRUE(IsInvalid(Send({v1::FactorStreamRequest()}), "part"));
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_, 0)}), "num_systems"));
  EXPECT_TRUE(IsInvalid(Send({HeaderOf(matrix_, -1)}), "num_systems"));
  EXPECT_TRUE(ReservationReturns());
}

TEST_F(FactorStreamTest, AMessageHasOnePart) {
  const std::string header = HeaderOf(matrix_).SerializeAsString();
  const std::string chunk = Chunk("12345678").SerializeAsString();
  for (const std::string& bytes : {header + chunk, chunk + header, chunk + chunk}) {
    EXPECT_TRUE(IsInvalid(RawCall("/blockd.v1.Solver/FactorStream", bytes), "part"));
  }
}

TEST_F(FactorStreamTest, NanAndNotPositiveDefinite) {
  HostMatrix bad = matrix_;
  bad.SetDiagonal(7, 3, 3, -1e6);
  const grpc::Status status = Send({HeaderOf(bad), Chunk(StreamOf(bad))});
  const auto where = DetailOf<v1::NotPositiveDefinite>(status);
  ASSERT_TRUE(where) << status.error_message();
  EXPECT_EQ(where->minor(), SequentialCholesky(bad.view()).minor());
  bad = matrix_;
  bad.SetCoupling(7, 3, 3, std::numeric_limits<double>::quiet_NaN());
  v1::FactorStreamRequest header = HeaderOf(bad);
  header.mutable_header()->mutable_options()->set_check_finite(true);
  EXPECT_EQ(Send({header, Chunk(StreamOf(bad))}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(ReservationReturns());
}

TEST_F(FactorStreamTest, AKeyThatIsHeldAnswersBeforeTheUpload) {
  v1::FactorStreamRequest header = HeaderOf(matrix_);
  header.mutable_header()->mutable_options()->set_idempotency_key("k");
  v1::FactorReply first, again;
  ASSERT_TRUE(IsOk(Send({header, Chunk(StreamOf(matrix_))}, &first)));
  const auto context = NewContext();
  const auto writer = stub().FactorStream(context.get(), &again);
  writer->Write(header);
  ASSERT_TRUE(IsOk(writer->Finish()));  // nothing else was sent, nor the end
  EXPECT_TRUE(again.found());
  EXPECT_EQ(again.system(0).handle(), first.system(0).handle());
}

TEST_F(FactorStreamTest, ADeadlineThatPassesDuringTheUpload) {
  const auto context = ContextWithServerTimeout(absl::Milliseconds(100));
  v1::FactorReply reply;
  const auto writer = stub().FactorStream(context.get(), &reply);
  writer->Write(HeaderOf(matrix_));
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(ReservationReturns());
  EXPECT_TRUE(Eventually([&] { return Ended("FactorStream", "DEADLINE_EXCEEDED") == 1; }));
}

TEST_F(FactorStreamTest, AClientThatVanishesGivesItsReservationBack) {
  WireBetween wire(server().grpc_port());
  const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(wire.port()),
                                           grpc::InsecureChannelCredentials());
  const auto far_stub = v1::Solver::NewStub(channel);
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto writer = far_stub->FactorStream(context.get(), &reply);
  writer->Write(HeaderOf(matrix_));
  writer->Write(Chunk("12345678"));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 8; }));
  wire.Cut();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  EXPECT_FALSE(writer->Finish().ok());
  ExpectServes();
}

TEST_F(FactorStreamTest, ACancelledUploadGivesItsReservationBack) {
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto writer = stub().FactorStream(context.get(), &reply);
  writer->Write(HeaderOf(matrix_));
  writer->Write(Chunk("12345678"));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 8; }));
  context->TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  EXPECT_TRUE(Eventually([&] { return Ended("FactorStream", "CANCELLED") == 1; }));
  ExpectServes();
}

TEST_F(FactorStreamTest, AnUploadThatIsCancelledOnTheDeviceIsAnsweredOnce) {
  server_->Drain();
  StartGated();
  gate_->Close();
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto writer = stub().FactorStream(context.get(), &reply);
  writer->Write(HeaderOf(matrix_));
  writer->Write(Chunk(StreamOf(matrix_)));
  writer->WritesDone();
  gate_->WaitForDevice();
  context->TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  v1::ServerInfo info;  // the cancellation travels before it
  EXPECT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
  gate_->Open();
  EXPECT_TRUE(Eventually(
      [&] { return Ended("FactorStream", "CANCELLED") + Ended("FactorStream", "OK") == 1; }));
  ExpectServes();
}

class FactorStreamStallTest : public FactorStreamTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.stream_idle_timeout = kTimeout;
    Start(options);
  }
  static void ExpectStalled(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_NE(status.error_message().find("stream_idle_timeout"), std::string::npos);
  }

  static constexpr absl::Duration kTimeout = absl::Milliseconds(100);
};

// Chunks that come in time keep the upload alive for longer than the timeout; the upload ends once
// no more of them come. On a busy machine a chunk may be late: then the round proves nothing.
TEST_F(FactorStreamStallTest, AnUploadThatIsSlowIsNotAStall) {
  const std::string bytes = StreamOf(matrix_);
  EXPECT_TRUE(Eventually([&] {
    const auto context = NewContext();
    v1::FactorReply reply;
    const auto writer = stub().FactorStream(context.get(), &reply);
    writer->Write(HeaderOf(matrix_));
    const absl::Time end = absl::Now() + 4 * kTimeout;
    size_t at = 0;
    for (; absl::Now() < end && at + 8 < bytes.size(); at += 8) {
      if (!writer->Write(Chunk(bytes.substr(at, 8)))) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    writer->Write(Chunk(bytes.substr(at)));
    writer->WritesDone();
    return writer->Finish().ok();
  }));
}

TEST_F(FactorStreamStallTest, AnUploadThatStallsAfterAWhileIsEnded) {
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto writer = stub().FactorStream(context.get(), &reply);
  writer->Write(HeaderOf(matrix_));
  for (const absl::Time end = absl::Now() + 2 * kTimeout; absl::Now() < end;) {
    if (!writer->Write(Chunk("12345678"))) break;
    absl::SleepFor(absl::Milliseconds(5));
  }
  ExpectStalled(writer->Finish());
}

// The device has it all: what it takes is not the caller's silence.
TEST_F(FactorStreamStallTest, AnUploadThatIsWholeDoesNotStall) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Seconds(1);  // enough for what comes
  StartGated(options);
  gate_->Close();
  const auto context = NewContext(), stalled_context = NewContext();
  v1::FactorReply reply, unused;
  const auto whole = stub().FactorStream(context.get(), &reply);
  whole->Write(HeaderOf(matrix_));
  whole->Write(Chunk(StreamOf(matrix_)));
  whole->WritesDone();
  gate_->WaitForDevice();
  const auto stalled = stub().FactorStream(stalled_context.get(), &unused);
  ExpectStalled(stalled->Finish());  // so much later
  gate_->Open();
  EXPECT_TRUE(IsOk(whole->Finish()));
}

TEST_F(FactorStreamStallTest, AStreamThatStallsIsEnded) {
  for (const bool with_header : {false, true}) {
    const auto context = NewContext();
    v1::FactorReply reply;
    const auto writer = stub().FactorStream(context.get(), &reply);
    if (with_header) {
      writer->Write(HeaderOf(matrix_));
      writer->Write(Chunk("1234"));
    }
    ExpectStalled(writer->Finish());
  }
  EXPECT_TRUE(Eventually([&] { return Ended("FactorStream", "DEADLINE_EXCEEDED") == 2; }));
  EXPECT_TRUE(ReservationReturns());
}

}  // namespace
}  // namespace blockd::test
