// Smooth over a real socket: every way in which a request can go wrong, and what is given back.
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class SmoothCallTest : public IntegrationTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::SmoothRequest, v1::SmoothReply>;

  // T = 3, nx = 2, ny = 1, diffuse, one series.
  static v1::SmoothRequest Header() {
    v1::SmoothRequest message;
    v1::SmoothHeader& header = *message.mutable_header();
    header.set_num_steps(3);
    header.set_state_size(2);
    header.set_observation_size(1);
    header.set_transition(v1::CONSTANT);
    header.set_transition_covariance(v1::CONSTANT);
    header.set_observation(v1::CONSTANT);
    header.set_observation_covariance(v1::CONSTANT);
    header.set_diffuse(true);
    header.mutable_options()->set_covariances(v1::COVARIANCES);
    return message;
  }
  // Its F, Q, H, R and y.
  static std::string Values() {
    return BytesOf({1, 0, 1, 1, /**/ 1, 0, 0, 1, /**/ 1, 0, /**/ 1, /**/ 1, 2, 4});
  }
  static v1::SmoothRequest Chunk(const std::string& bytes) {
    v1::SmoothRequest message;
    message.set_chunk(bytes);
    return message;
  }

  // Sends the messages and the end of the stream; the answer's chunks are joined.
  grpc::Status Send(const std::vector<v1::SmoothRequest>& messages, v1::SmoothHead* head = nullptr,
                    std::string* values = nullptr) {
    const auto context = NewContext();
    const auto stream = stub().Smooth(context.get());
    for (const auto& message : messages) {
      if (!stream->Write(message)) break;  // answered already
    }
    stream->WritesDone();
    for (v1::SmoothReply reply; stream->Read(&reply);) {
      if (reply.has_head() && head != nullptr) *head = reply.head();
      if (values != nullptr) *values += reply.chunk();
    }
    return stream->Finish();
  }
  // All is sent; the answer has 2.4 MB.
  std::unique_ptr<Stream> AskForMuch(grpc::ClientContext* context) {
    v1::SmoothRequest header = Header();
    header.mutable_header()->mutable_options()->set_num_samples(50000);
    std::unique_ptr<Stream> stream = stub().Smooth(context);
    EXPECT_TRUE(stream->Write(header));
    EXPECT_TRUE(stream->Write(Chunk(Values())));
    stream->WritesDone();
    return stream;
  }
  // That header, changed.
  template <typename Change>
  grpc::Status With(const Change& change) {
    v1::SmoothRequest message = Header();
    change(*message.mutable_header());
    return Send({message, Chunk(Values())});
  }
  // How many handles that were.
  int ReleaseAll() {
    v1::ListFactorizationsReply held;
    EXPECT_TRUE(IsOk(stub().ListFactorizations(NewContext().get(), {}, &held)));
    for (const v1::FactorizationInfo& one : held.factorization()) {
      v1::ReleaseRequest release;
      release.add_handle(one.handle());
      v1::ReleaseReply reply;
      EXPECT_TRUE(IsOk(stub().Release(NewContext().get(), release, &reply)));
    }
    return held.factorization_size();
  }
  void ExpectAllIsGivenBack() {
    EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0 && HostBytes() == 0; }));
    EXPECT_EQ(Metric("blockd_factorizations"), 0);
  }
};

TEST_F(SmoothCallTest, ChunksMayBeCutAnywhere) {
  Start();
  v1::SmoothHead head;
  std::string whole;
  ASSERT_TRUE(IsOk(Send({Header(), Chunk(Values())}, &head, &whole)));
  EXPECT_EQ(head.means_bytes(), 48);
  EXPECT_EQ(head.covariances_bytes(), 96);
  EXPECT_EQ(head.observed(0), 3);
  EXPECT_EQ(head.handle_size(), 0);
  ASSERT_EQ(whole.size(), 144);
  std::vector<v1::SmoothRequest> messages = {Header()};
  for (size_t at = 0; at < Values().size(); at += 5) {
    messages.push_back(Chunk(Values().substr(at, 5)));
    messages.push_back(Chunk(""));
  }
  std::string same;
  ASSERT_TRUE(IsOk(Send(messages, nullptr, &same)));
  EXPECT_EQ(same, whole);
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, MessagesOutOfOrderAreRefused) {
  Start();
  EXPECT_TRUE(IsInvalid(Send({}), "header"));
  EXPECT_TRUE(IsInvalid(Send({Chunk(Values())}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({Header(), Header()}), "header"));
  EXPECT_TRUE(IsInvalid(Send({Header(), v1::SmoothRequest()}), "part"));
  EXPECT_TRUE(IsInvalid(Send({Header(), Chunk(Values() + "1")}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({Header(), Chunk(Values()), Chunk("1")}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({Header()}), "chunk"));
  EXPECT_TRUE(IsInvalid(Send({Header(), Chunk(Values().substr(1))}), "chunk"));
  ExpectAllIsGivenBack();
  ExpectServes();
}

TEST_F(SmoothCallTest, AHeaderThatSaysNoModelIsRefused) {
  Start();
  const auto field = [&](const std::string& expected, auto change) {
    EXPECT_TRUE(IsInvalid(With(change), expected));
  };
  field("header.num_steps", [](auto& header) { header.set_num_steps(0); });
  field("header.num_steps", [](auto& header) { header.set_num_steps(-3); });
  field("header.state_size", [](auto& header) { header.set_state_size(0); });
  field("header.observation_size", [](auto& header) { header.set_observation_size(-1); });
  field("header.num_series", [](auto& header) { header.set_num_series(-1); });
  field("header.transition", [](auto& header) { header.clear_transition(); });
  field("header.observation_covariance",
        [](auto& header) { header.clear_observation_covariance(); });
  field("header.transition_offset",
        [](auto& header) { header.set_transition_offset(static_cast<v1::ModelArray>(9)); });
  field("header.options.covariances", [](auto& header) {
    header.mutable_options()->set_covariances(static_cast<v1::SmoothedCovariances>(9));
  });
  field("header.options.num_samples",
        [](auto& header) { header.mutable_options()->set_num_samples(-1); });
  field("header.options.lease",
        [](auto& header) { header.mutable_options()->mutable_lease()->set_seconds(1); });
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, AHeaderIsRefusedBeforeItsArraysCome) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = int64_t{1} << 20;
  Start(options);
  const auto refusal = [&](auto change) {
    v1::SmoothRequest message = Header();
    change(*message.mutable_header());
    grpc::ClientContext context;
    const auto stream = stub().Smooth(&context);
    EXPECT_TRUE(stream->Write(message));
    v1::SmoothReply reply;
    EXPECT_FALSE(stream->Read(&reply));  // though no more has come
    return stream->Finish();
  };
  EXPECT_TRUE(IsInvalid(refusal([](auto& header) {
                          header.mutable_options()->set_keep(true);
                          header.mutable_options()->mutable_lease()->set_seconds(7200);
                        }),
                        "header.options.lease"));
  EXPECT_TRUE(IsInvalid(
      refusal([](auto& header) { header.mutable_options()->set_num_samples(int64_t{1} << 40); }),
      "header.options.num_samples"));
  EXPECT_TRUE(IsInvalid(refusal([](auto& header) { header.set_state_size(1 << 20); }),
                        "header.state_size"));
  EXPECT_TRUE(
      IsInvalid(refusal([](auto& header) { header.mutable_options()->set_priority(v1::REALTIME); }),
                "header.options.priority"));
  // Its answer would have 2.4 MB.
  EXPECT_EQ(
      refusal([](auto& header) { header.mutable_options()->set_num_samples(50000); }).error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectAllIsGivenBack();
}

// The server computes the memory for the sizes in a header before it trusts them.
TEST_F(SmoothCallTest, SizesThatOverflowAreRefused) {
  Start();
  const int64_t sizes[] = {int64_t{1} << 20, int64_t{1} << 31, int64_t{1} << 32,
                           int64_t{1} << 40, int64_t{1} << 62, std::numeric_limits<int64_t>::max()};
  for (const int64_t a : sizes) {
    for (const int64_t b : sizes) {
      SCOPED_TRACE(testing::Message() << a << " and " << b);
      const grpc::Status statuses[] = {
          With([&](auto& header) {
            header.set_num_steps(a);
            header.set_state_size(b);
            header.set_transition(v1::PER_STEP);
          }),
          With([&](auto& header) {
            header.set_num_steps(a);
            header.set_num_series(b);
          }),
          With([&](auto& header) {
            header.set_num_steps(a);
            header.set_observation_size(b);
            header.set_observation_covariance(v1::PER_STEP);
          }),
          With([&](auto& header) {
            header.set_observation_size(a);
            header.set_num_series(b);
          }),
          With([&](auto& header) {
            header.set_state_size(a);
            header.mutable_options()->set_num_samples(b);
          }),
      };
      for (const grpc::Status& status : statuses) {
        EXPECT_TRUE(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                    status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
            << status.error_code() << " " << status.error_message();
      }
    }
  }
  ExpectAllIsGivenBack();
  ExpectServes();
}

// Few bytes that ask for a large answer.
TEST_F(SmoothCallTest, AnAnswerThatTheHostHasNoMemoryForIsRefused) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = int64_t{1} << 20;
  Start(options);
  const grpc::Status status =
      With([](auto& header) { header.mutable_options()->set_num_samples(60000); });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  ExpectAllIsGivenBack();
  ExpectServes();
}

TEST_F(SmoothCallTest, WhoSendsNothingTakesNothing) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = int64_t{1} << 30;
  Start(options);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  v1::SmoothRequest large = Header();
  large.mutable_header()->set_num_steps(6'000'000);  // 48 MB of y
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(NewContext());
    streams.push_back(stub().Smooth(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(large));
    ASSERT_TRUE(streams.back()->Write(Chunk(Values())));
  }
  EXPECT_TRUE(Eventually([&] { return HostBytes() >= 4 << 20; }));
  EXPECT_LT(HostBytes(), 8 << 20);
  ASSERT_TRUE(IsOk(Send({Header(), Chunk(Values())})));
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return Ended("Smooth", "CANCELLED") == 4; }));
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, WhoStopsSendingIsEnded) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(200);
  Start(options);
  const auto context = NewContext();
  const auto stream = stub().Smooth(context.get());
  ASSERT_TRUE(stream->Write(Header()));
  v1::SmoothReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, WhoSendsSlowerThanTheLeastRateIsEnded) {
  Start();
  const auto context = NewContext();
  const auto stream = stub().Smooth(context.get());
  v1::SmoothRequest large = Header();
  large.mutable_header()->set_num_steps(100'000);
  ASSERT_TRUE(stream->Write(large));
  while (stream->Write(Chunk("12345678"))) absl::SleepFor(absl::Milliseconds(100));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), "--min_upload_bytes_per_second"));
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, OneThatIsCancelledWhileItRunsKeepsNothing) {
  StartGated();
  gate_->Close();
  v1::SmoothRequest header = Header();
  header.mutable_header()->mutable_options()->set_keep(true);
  const auto context = NewContext();
  const auto stream = stub().Smooth(context.get());
  ASSERT_TRUE(stream->Write(header));
  ASSERT_TRUE(stream->Write(Chunk(Values())));
  stream->WritesDone();
  gate_->WaitForDevice();
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  gate_->Open();
  // The server may hear of the cancellation before or after it is done: this is a race.
  EXPECT_TRUE(
      Eventually([&] { return Ended("Smooth", "CANCELLED") + Ended("Smooth", "OK") == 1; }));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  ExpectServes();
}

// Wherever the device stands when it is. What is not kept has no handle to release.
TEST_F(SmoothCallTest, ItsFactorizationMayBeReleasedAtAnyTime) {
  StartGated();
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    v1::SmoothRequest header = Header();
    header.mutable_header()->mutable_options()->set_keep(keep);
    std::string undisturbed;
    ASSERT_TRUE(IsOk(Send({header, Chunk(Values())}, nullptr, &undisturbed)));
    const int64_t before = gate_->passes();
    ASSERT_TRUE(IsOk(Send({header, Chunk(Values())})));
    const int64_t passes = gate_->passes() - before;
    EXPECT_GT(passes, 1);
    for (int64_t pass = 0; pass < passes; ++pass) {
      ASSERT_TRUE(IsOk(Send({header, Chunk(Values())})));
      gate_->CloseAfter(pass);
      const auto context = NewContext();
      const auto stream = stub().Smooth(context.get());
      ASSERT_TRUE(stream->Write(header));
      ASSERT_TRUE(stream->Write(Chunk(Values())));
      stream->WritesDone();
      gate_->WaitForDevice();
      EXPECT_EQ(ReleaseAll(), keep ? 1 : 0);
      gate_->Open();
      std::string values;
      for (v1::SmoothReply reply; stream->Read(&reply);) values += reply.chunk();
      EXPECT_TRUE(IsOk(stream->Finish()));
      EXPECT_EQ(values, undisturbed);
    }
    ReleaseAll();
  }
  ExpectAllIsGivenBack();
}

// --max_upload_duration bounds the upload only, not the answer.
TEST_F(SmoothCallTest, AnAnswerMayTakeLongerThanAnUpload) {
  server::ServerOptions options = Options();
  options.max_upload_duration = absl::Seconds(1);
  Start(options);
  const auto context = NewContext();
  const auto stream = AskForMuch(context.get());
  v1::SmoothReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  absl::SleepFor(2 * options.max_upload_duration);  // reads nothing of the rest
  while (stream->Read(&reply)) {
  }
  EXPECT_TRUE(IsOk(stream->Finish()));
}

// A request that fits by its header is not refused later, in however many chunks it comes.
TEST_F(SmoothCallTest, MemoryThatGrowsIsChargedOnce) {
  constexpr int64_t kSteps = 4300, kSeries = 16, kObservations = 16;
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = 16 << 20;
  options.core.tenant_share = 1;
  Start(options);
  v1::SmoothRequest message = Header();
  v1::SmoothHeader& header = *message.mutable_header();
  header.set_num_steps(kSteps);
  header.set_state_size(1);
  header.set_observation_size(kObservations);
  header.set_num_series(kSeries);
  header.mutable_options()->clear_covariances();
  std::vector<double> values = {1, 1};            // F, Q
  values.insert(values.end(), kObservations, 1);  // H
  for (int64_t i = 0; i < kObservations * kObservations; ++i) {
    values.push_back(i % (kObservations + 1) == 0 ? 1 : 0);  // R
  }
  values.insert(values.end(), kSteps * kSeries * kObservations, 0.5);  // y: 8.8 MB
  const std::string bytes = BytesOf(values);
  std::vector<v1::SmoothRequest> messages = {message};
  constexpr size_t kChunk = 1 << 20;
  for (size_t at = 0; at < bytes.size(); at += kChunk) {
    messages.push_back(Chunk(bytes.substr(at, kChunk)));
  }
  EXPECT_TRUE(IsOk(Send(messages)));
  ExpectAllIsGivenBack();
}

TEST_F(SmoothCallTest, WhoStopsReadingIsEnded) {
  server::ServerOptions options = Options();
  options.reply_timeout = absl::Seconds(1);
  Start(options);
  const auto context = NewContext();
  const auto stream = AskForMuch(context.get());
  // Windows of gRPC's hold some of it, but not all.
  v1::SmoothReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  context->TryCancel();
  stream->Finish();
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
