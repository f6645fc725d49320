// The server's reports about itself: info, health, reflection, metrics over HTTP.
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::test {
namespace {

class ServerInfoTest : public IntegrationTest {};

TEST_F(ServerInfoTest, InfoNamesTheDeviceTheMemoryAndEveryLimit) {
  server::ServerOptions options = Options();
  options.max_stream_requests = 17;
  Start(options);
  v1::ServerInfo info;
  ASSERT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
  EXPECT_EQ(info.version(), server::Version());
  EXPECT_EQ(info.backend(), ServerBackend());
  EXPECT_FALSE(info.device_name().empty());
  EXPECT_GT(info.device_parallelism(), 0);
  EXPECT_GT(info.built_backends_size(), 0);
  EXPECT_EQ(info.memory_bytes(), 64 << 20);
  EXPECT_EQ(info.memory_free_bytes(), info.memory_bytes());
  EXPECT_EQ(info.factorizations(), 0);
  EXPECT_GE(info.uptime_seconds(), 0);
  EXPECT_EQ(info.server_epoch().size(), 8u);
  std::set<std::string> names;
  for (const v1::Limit& limit : info.limit()) {
    names.insert(limit.name());
    EXPECT_FALSE(limit.value().empty()) << limit.name();
    EXPECT_FALSE(limit.help().empty()) << limit.name();
    if (limit.name() == "max_stream_requests") {
      EXPECT_EQ(limit.value(), "17");
    }
  }
  for (const char* name : {"max_queued_requests", "max_message_bytes", "max_rhs", "max_systems",
                           "max_lease", "stream_idle_timeout", "max_inflight_request_bytes"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  const HostMatrix matrix(problems::Poisson(9, 9), Scalar::kFloat64);
  const std::string handle = Factor(matrix);
  ASSERT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
  EXPECT_EQ(info.factorizations(), 1);
  EXPECT_LT(info.memory_free_bytes(), info.memory_bytes());
  EXPECT_EQ(info.memory_evictable_bytes(), info.memory_bytes() - info.memory_free_bytes());
  EXPECT_EQ(handle.substr(16), info.server_epoch());
}

TEST_F(ServerInfoTest, APlanSaysWhatAFactorAndASolveWillTake) {
  Start();
  const HostMatrix matrix(problems::RandomSpd(200, 16, 1, 10), Scalar::kFloat64);
  v1::GetPlanRequest request;
  *request.mutable_spec() = SpecOf(matrix);
  v1::Plan plan;
  ASSERT_TRUE(IsOk(stub().GetPlan(NewContext().get(), request, &plan)));
  EXPECT_EQ(plan.backend(), ServerBackend());
  EXPECT_FALSE(plan.device_name().empty());
  int64_t chain = 200, eliminated = 0;
  for (const v1::PlanLevel& level : plan.level()) {
    EXPECT_EQ(level.chain_blocks(), chain);
    EXPECT_EQ(level.interior_blocks() + level.separator_blocks(), chain);
    EXPECT_EQ(level.segments(), level.separator_blocks() + 1);
    EXPECT_GE(level.longest_segment_blocks() * level.segments(), level.interior_blocks());
    eliminated += level.interior_blocks();
    chain = level.separator_blocks();
  }
  EXPECT_EQ(chain, 0);
  EXPECT_EQ(eliminated, 200);
  EXPECT_GT(plan.predicted_factor_seconds(), 0);
  EXPECT_GT(plan.predicted_solve_seconds(), 0);
  // A Factor holds the bytes that the plan says; more systems and right-hand sides cost more.
  EXPECT_EQ(plan.factor_bytes(), Factor(FactorRequestOf(matrix)).factor_bytes());
  // One system and one right-hand side, where nothing is said.
  request.set_num_systems(1);
  request.set_num_rhs(1);
  v1::Plan same;
  ASSERT_TRUE(IsOk(stub().GetPlan(NewContext().get(), request, &same)));
  EXPECT_EQ(same.SerializeAsString(), plan.SerializeAsString());
  request.set_num_systems(8);
  request.set_num_rhs(32);
  v1::Plan more;
  ASSERT_TRUE(IsOk(stub().GetPlan(NewContext().get(), request, &more)));
  if (ServerBackend() == "cpu") {
    EXPECT_GT(more.predicted_factor_seconds(), plan.predicted_factor_seconds());
  } else {  // which factors so few side by side
    EXPECT_GE(more.predicted_factor_seconds(), plan.predicted_factor_seconds());
  }
  EXPECT_GT(more.predicted_solve_seconds(), plan.predicted_solve_seconds());
  EXPECT_DOUBLE_EQ(more.solve_flops(), 32 * plan.solve_flops());
}

TEST_F(ServerInfoTest, APlanRefusesWhatAFactorRefuses) {
  Start();
  const auto send = [this](v1::GetPlanRequest request) {
    v1::Plan plan;
    return stub().GetPlan(NewContext().get(), request, &plan);
  };
  v1::GetPlanRequest request;
  EXPECT_EQ(send(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  *request.mutable_spec() = SpecOf(HostMatrix(problems::RandomSpd(4, 2, 1, 10), Scalar::kFloat64));
  EXPECT_TRUE(IsOk(send(request)));
  request.set_num_systems(-1);
  EXPECT_TRUE(IsInvalid(send(request), "num_systems"));
  request.set_num_systems(1);
  request.set_num_rhs(int64_t{1} << 40);
  EXPECT_TRUE(IsInvalid(send(request), "num_rhs"));
  request.set_num_rhs(1);
  request.mutable_spec()->set_num_blocks(int64_t{1} << 36);
  const grpc::Status large = send(request);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(DetailOf<v1::InsufficientMemory>(large).has_value());
}

TEST_F(ServerInfoTest, HealthAndReflectionAnswer) {
  Start();
  std::string reply;
  ASSERT_TRUE(IsOk(RawCall("/grpc.health.v1.Health/Check", "", &reply)));
  EXPECT_EQ(reply, std::string("\x08\x01"));  // status: SERVING
  ASSERT_TRUE(IsOk(RawCall("/grpc.health.v1.Health/Check",
                           std::string("\x0a\x10") + "blockd.v1.Solver", &reply)));
  EXPECT_EQ(reply, std::string("\x08\x01"));
  EXPECT_EQ(RawCall("/grpc.health.v1.Health/Check", std::string("\x0a\x03") + "xyz").error_code(),
            grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(IsOk(RawCall("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                           std::string("\x3a\x01*"), &reply)));  // list_services: "*"
  EXPECT_NE(reply.find("blockd.v1.Solver"), std::string::npos);
  EXPECT_NE(reply.find("grpc.health.v1.Health"), std::string::npos);
  EXPECT_EQ(RawCall("/blockd.v1.Solver/NoSuchMethod", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServerInfoTest, ReflectionDescribesWhatThereIs) {
  namespace reflection = grpc::reflection::v1;
  Start();
  const auto ask = [&](const reflection::ServerReflectionRequest& request) {
    reflection::ServerReflectionResponse reply;
    std::string bytes;
    const grpc::Status status = RawCall("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                        request.SerializeAsString(), &bytes);
    EXPECT_TRUE(IsOk(status) && reply.ParseFromString(bytes));
    return reply;
  };
  const auto files_of = [&](const std::string& symbol) {
    reflection::ServerReflectionRequest request;
    request.set_file_containing_symbol(symbol);
    const reflection::ServerReflectionResponse reply = ask(request);
    std::vector<std::string> names;
    for (const std::string& bytes : reply.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      names.push_back(file.name());
    }
    return names;
  };
  // Each file once, and all that it needs: so that whoever asks can build it.
  EXPECT_EQ(
      files_of("blockd.v1.Admin"),
      std::vector<std::string>({"blockd/v1/admin.proto", "blockd/v1/blockd.proto",
                                "google/protobuf/any.proto", "google/protobuf/duration.proto"}));
  EXPECT_EQ(files_of("grpc.reflection.v1.ServerReflection.ServerReflectionInfo"),
            std::vector<std::string>({"grpc/reflection/v1/reflection.proto"}));
  reflection::ServerReflectionRequest request;
  request.set_host("here");
  request.set_file_by_filename("no/such.proto");
  EXPECT_EQ(ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ask(request).valid_host(), "here");
  EXPECT_EQ(ask(request).original_request().file_by_filename(), "no/such.proto");
  request.set_all_extension_numbers_of_type("blockd.v1.SolveRequest");
  EXPECT_EQ(ask(request).all_extension_numbers_response().base_type_name(),
            "blockd.v1.SolveRequest");
  request.mutable_file_containing_extension()->set_containing_type("blockd.v1.SolveRequest");
  EXPECT_EQ(ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.clear_message_request();
  EXPECT_EQ(ask(request).error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const std::string& wrong : {std::string(5000, 'x'), std::string("\x0a\x05")}) {
    EXPECT_EQ(
        RawCall("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", wrong).error_code(),
        grpc::StatusCode::INVALID_ARGUMENT);
  }
}

// A Health.Watch, and what it is told, one status after another.
class HealthWatch {
 public:
  HealthWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& request)
      : stub_(channel) {
    call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
    call_->StartCall(nullptr);
    Await();
    const grpc::Slice slice(request);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    Await();
  }
  ~HealthWatch() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Await();
  }
  // 0: the call has ended.
  int Next() {
    grpc::ByteBuffer reply;
    call_->Read(&reply, nullptr);
    std::vector<grpc::Slice> slices;
    if (!Await() || !reply.Dump(&slices).ok()) return 0;
    std::string bytes;
    for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
    return bytes.size() == 2 && bytes[0] == 8 ? bytes[1] : -1;
  }

 private:
  bool Await() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

TEST_F(ServerInfoTest, WhoWatchesHealthIsToldOfEachChangeAndHoldsUpNoDrain) {
  Start();
  HealthWatch all(channel_, ""), solver(channel_, std::string("\x0a\x10") + "blockd.v1.Solver"),
      unknown(channel_, std::string("\x0a\x03") + "xyz");
  EXPECT_EQ(all.Next(), 1);
  EXPECT_EQ(solver.Next(), 1);
  EXPECT_EQ(unknown.Next(), 3);
  server_->StartDrain();
  EXPECT_EQ(all.Next(), 2);
  EXPECT_EQ(solver.Next(), 2);
  EXPECT_TRUE(server_->Drain());  // in time, though they watch still
  EXPECT_EQ(all.Next(), 0);
  EXPECT_EQ(unknown.Next(), 0);
}

TEST_F(ServerInfoTest, HealthRefusesWhatIsNoRequest) {
  Start();
  std::string reply;
  for (const std::string& request : {std::string("\x0a\x05"
                                                 "ab"),
                                     std::string("\x0a\x01\xff"), std::string(8192, '\x08')}) {
    EXPECT_EQ(RawCall("/grpc.health.v1.Health/Check", request, &reply).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(HealthWatch(channel_, request).Next(), 0);
  }
  EXPECT_EQ(Health(), 1);
}

TEST_F(ServerInfoTest, MetricsAnswerOverHttp) {
  server::ServerOptions options = Options();
  options.metrics_port = 0;
  Start(options);
  ExpectServes();
  const std::string text = HttpGet(server().metrics_port(), "/metrics");
  EXPECT_EQ(text.rfind("HTTP/1.1 200", 0), 0u);
  for (const char* name :
       {"blockd_requests_total", "blockd_request_seconds", "blockd_pool_used_bytes",
        "blockd_factorizations", "blockd_build_info", "blockd_queue_requests"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(text.find("handle="), std::string::npos);
  EXPECT_TRUE(Eventually([&] {
    return Metric("blockd_requests_total", "method=\"Solve\",status=\"OK\"") == 1;
  })) << server().metrics().Text();
}

// The address is written as one of IPv6 even if this machine has no IPv6: then the error has it.
TEST_F(ServerInfoTest, AnAddressOfIpv6IsWrittenInBrackets) {
  server::ServerOptions options = Options();
  options.address = "::1";
  absl::StatusOr<std::unique_ptr<server::Server>> started = server::Server::Start(options);
  const std::string written =
      started.ok() ? (*started)->grpc_target() : std::string(started.status().message());
  EXPECT_NE(written.find("[::1]:"), std::string::npos) << written;
}

TEST_F(ServerInfoTest, ASecondServerOnThePortFailsAtStart) {
  server::ServerOptions options = Options();
  options.metrics_port = 0;
  Start(options);
  options = Options();
  options.port = server().grpc_port();
  absl::StatusOr<std::unique_ptr<server::Server>> second = server::Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("--port"), absl::string_view::npos);
  options.port = 0;
  options.metrics_port = server().metrics_port();
  second = server::Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("--metrics_port"), absl::string_view::npos);
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
