// The metadata beside a call's message: the caller, the request's id, the delay before a retry.
#include <set>

#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class CallMetadataTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }

  // The id that comes back where this one, if any, was sent.
  std::string IdFor(const std::optional<std::string>& sent) {
    const auto context = NewContext();
    if (sent) context->AddMetadata("x-request-id", *sent);
    v1::ServerInfo info;
    EXPECT_TRUE(IsOk(stub().GetServerInfo(context.get(), {}, &info)));
    const auto& echoed = context->GetServerInitialMetadata();
    EXPECT_EQ(echoed.count("x-request-id"), 1u);
    const auto found = echoed.find("x-request-id");
    return found == echoed.end() ? "" : std::string(found->second.data(), found->second.size());
  }
};

TEST_F(CallMetadataTest, ARequestIdOfPrintableCharactersComesBack) {
  for (const std::string& id : {std::string("abc-123"), std::string("!~"), std::string(128, 'x')}) {
    EXPECT_EQ(IdFor(id), id);
  }
}

// A line of the log must stay one line of words.
TEST_F(CallMetadataTest, AnyOtherIdIsReplacedByOneOfTheServers) {
  std::set<std::string> made;
  const std::optional<std::string> bad[] = {std::nullopt, "", "two words", "trailing ",
                                            std::string(129, 'x')};
  for (const auto& id : bad) {
    const std::string came = IdFor(id);
    EXPECT_TRUE(made.insert(came).second) << came << " twice";
    EXPECT_NE(came, id);
    EXPECT_FALSE(came.empty());
    EXPECT_EQ(came.find(' '), std::string::npos);
  }
}

// https://www.w3.org/TR/trace-context
TEST_F(CallMetadataTest, ATraceOfTheCallersComesBackWhereItIsOne) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c", span = "b7ad6b7169203331";
  const auto returned = [this](const std::string& sent, bool fails) {
    const auto context = NewContext();
    context->AddMetadata("traceparent", sent);
    v1::FactorizationInfo info;
    v1::GetFactorizationRequest request;
    if (!fails) request.set_handle(Factor(HostMatrix(problems::Poisson(4, 2), Scalar::kFloat64)));
    EXPECT_EQ(stub().GetFactorization(context.get(), request, &info).ok(), !fails);
    const auto& metadata =
        fails ? context->GetServerTrailingMetadata() : context->GetServerInitialMetadata();
    const auto found = metadata.find("traceparent");
    return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
  };
  const std::string good = "00-" + trace + "-" + span + "-01";
  for (const bool fails : {false, true}) {
    EXPECT_EQ(returned(good, fails), good);
    EXPECT_EQ(returned("01-" + trace + "-" + span + "-01-more", fails),
              "01-" + trace + "-" + span + "-01-more");
  }
  for (const std::string& bad :
       {std::string("none"), "ff" + good.substr(2), good + "-more", good.substr(1), good + "0",
        "00-" + std::string(32, '0') + "-" + span + "-01",
        "00-" + trace + "-" + std::string(16, '0') + "-01",
        "00-0AF7651916cd43dd8448eb211c80319c-" + span + "-01", "00_" + good.substr(3),
        "01" + good.substr(2) + std::string(300, '-')}) {
    EXPECT_EQ(returned(bad, true), "") << bad;
  }
}

TEST_F(CallMetadataTest, StreamsHaveAnIdToo) {
  const auto context = NewContext();
  context->AddMetadata("x-request-id", "of-a-stream");
  const auto stream = stub().SolveStream(context.get());
  stream->WaitForInitialMetadata();
  const auto& echoed = context->GetServerInitialMetadata();
  ASSERT_EQ(echoed.count("x-request-id"), 1u);
  EXPECT_EQ(echoed.find("x-request-id")->second, "of-a-stream");
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
}

TEST_F(CallMetadataTest, OnlyAFailureThatPassesCarriesADelay) {
  const auto context = NewContext();
  v1::SolveReply reply;
  EXPECT_TRUE(IsInvalid(stub().Solve(context.get(), {}, &reply), "handle"));
  EXPECT_EQ(context->GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 0u);
}

// A call that fails at once says so in its first frame, because routers look nowhere else.
TEST_F(CallMetadataTest, AFailureHasItsIdInTheTrailingMetadata) {
  const auto context = NewContext();
  context->AddMetadata("x-request-id", "of-a-failure");
  v1::SolveReply reply;
  EXPECT_TRUE(IsInvalid(stub().Solve(context.get(), {}, &reply), "handle"));
  EXPECT_EQ(context->GetServerInitialMetadata().count("x-request-id"), 0u);
  const auto& trailing = context->GetServerTrailingMetadata();
  ASSERT_EQ(trailing.count("x-request-id"), 1u);
  EXPECT_EQ(trailing.find("x-request-id")->second, "of-a-failure");
}

// A stream's requests belong to the caller of the stream.
TEST_F(CallMetadataTest, TheCallerOfAStreamOwnsWhatItMakesAndUsesOnlyThat) {
  const problems::Problem problem = problems::RandomSpd(4, 2, 1, 10);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const auto upload_context = NewContext("alice");
  v1::FactorReply factored;
  const auto upload = stub().FactorStream(upload_context.get(), &factored);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(matrix);
  message.mutable_header()->set_num_systems(1);
  ASSERT_TRUE(upload->Write(message));
  const v1::SystemData data = DataOf(matrix);
  message.set_chunk(data.diagonal() + data.coupling());
  ASSERT_TRUE(upload->Write(message));
  upload->WritesDone();
  ASSERT_TRUE(IsOk(upload->Finish()));
  v1::SolveStreamRequest request;
  request.mutable_request()->set_handle(factored.system(0).handle());
  request.mutable_request()->set_num_rhs(1);
  request.mutable_request()->set_rhs(BytesOf(problem.rhs));
  for (const char* caller : {"alice", "bob"}) {
    const auto context = NewContext(caller);
    const auto stream = stub().SolveStream(context.get());
    ASSERT_TRUE(stream->Write(request));
    v1::SolveStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.has_reply(), std::string(caller) == "alice");
    stream->WritesDone();
    EXPECT_TRUE(IsOk(stream->Finish()));
  }
}

}  // namespace
}  // namespace blockd::test
