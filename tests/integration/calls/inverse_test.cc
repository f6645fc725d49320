// SelectedInverse and Sample over a real socket: how answers are cut, and who does not take them.
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class InverseCallTest : public IntegrationTest {
 protected:
  void Begin(const server::ServerOptions& options = Options()) {
    Start(options);
    request_.set_handle(Factor(matrix_));
    sample_.set_handle(request_.handle());
  }

  const problems::Problem problem_ = problems::RandomSpd(300, 24, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  v1::SelectedInverseRequest request_;
  v1::SampleRequest sample_;
};

TEST_F(InverseCallTest, AHeadAndThenChunksOfAMiB) {
  Begin();
  request_.set_parts(v1::TRIDIAGONAL_BLOCKS);
  const auto context = NewContext();
  const auto reader = stub().SelectedInverse(context.get(), request_);
  v1::SelectedInverseReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(reply.has_head());
  EXPECT_EQ(reply.head().num_blocks(), 300);
  EXPECT_EQ(reply.head().block_size(), 24);
  EXPECT_EQ(reply.head().scalar(), v1::FLOAT64);
  EXPECT_EQ(reply.head().diagonal_bytes(), 300 * 24 * 24 * 8);
  EXPECT_EQ(reply.head().coupling_bytes(), 299 * 24 * 24 * 8);
  size_t left = reply.head().diagonal_bytes() + reply.head().coupling_bytes();
  while (reader->Read(&reply)) {
    EXPECT_EQ(reply.chunk().size(), std::min(left, size_t{1} << 20));
    left -= reply.chunk().size();
  }
  EXPECT_EQ(left, 0);
  EXPECT_TRUE(IsOk(reader->Finish()));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(InverseCallTest, WhatIsWrongIsNamed) {
  Begin();
  const auto status = [&](auto change) {
    v1::SelectedInverseRequest request = request_;
    change(request);
    const auto context = NewContext();
    const auto reader = stub().SelectedInverse(context.get(), request);
    v1::SelectedInverseReply reply;
    EXPECT_FALSE(reader->Read(&reply));
    return reader->Finish();
  };
  EXPECT_TRUE(IsInvalid(status([](auto& request) { request.set_handle("short"); }), "handle"));
  EXPECT_TRUE(IsInvalid(
      status([](auto& request) { request.set_parts(static_cast<v1::InverseParts>(9)); }), "parts"));
  EXPECT_TRUE(
      IsInvalid(status([](auto& request) { request.set_first_block(300); }), "first_block"));
  EXPECT_TRUE(IsInvalid(status([](auto& request) { request.set_num_blocks(301); }), "num_blocks"));
  EXPECT_TRUE(IsInvalid(
      status([](auto& request) { request.set_priority(static_cast<v1::PriorityClass>(9)); }),
      "priority"));
  sample_.set_num_samples(int64_t{1} << 60);
  const auto context = NewContext();
  const auto reader = stub().Sample(context.get(), sample_);
  v1::SampleReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_TRUE(IsInvalid(reader->Finish(), "num_samples"));
  ExpectServes();
}

TEST_F(InverseCallTest, WhoDoesNotReadLosesTheCall) {
  server::ServerOptions options = Options();
  options.reply_timeout = absl::Seconds(1);
  Begin(options);
  sample_.set_num_samples(300);  // 17 MB
  // On a busy machine gRPC's windows would grow beyond that.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto narrow = v1::Solver::NewStub(grpc::CreateCustomChannel(
      server().grpc_target(), grpc::InsecureChannelCredentials(), arguments));
  const auto context = NewContext();
  const auto reader = narrow->Sample(context.get(), sample_);
  v1::SampleReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_TRUE(Eventually([&] { return Ended("Sample", "CANCELLED") == 1; }));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  context->TryCancel();
  reader->Finish();
  ExpectServes();
}

TEST_F(InverseCallTest, OneThatIsCancelledBetweenTwoChunksGivesItsMemoryBack) {
  Begin();
  sample_.set_num_samples(300);
  const auto context = NewContext();
  const auto reader = stub().Sample(context.get(), sample_);
  v1::SampleReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  ExpectServes();
}

TEST_F(InverseCallTest, AnAnswerThatTheHostHasNoMemoryForIsRefused) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = int64_t{8} << 20;
  Begin(options);
  sample_.set_num_samples(60000);  // 3.4 GB
  const auto context = NewContext();
  const auto reader = stub().Sample(context.get(), sample_);
  v1::SampleReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

}  // namespace
}  // namespace blockd::test
