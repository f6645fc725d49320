// One call's fault is that call's alone: another call on the same connection goes on, on either
// port, whatever the first one says beside its messages. Compressed messages are not inflated.
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/hostile_calls.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/support/peak_bytes.h"

namespace blockd::test {
namespace {

constexpr int64_t kBombBytes = int64_t{60} << 20;  // inflated; 60 KB on the wire
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch", kCheck[] = "/grpc.health.v1.Health/Check";

// Every path of the services that the server has, and one that it has not.
std::vector<std::string> Paths() {
  std::vector<std::string> paths = {
      kCheck, kWatch, "/none/None", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name : {"blockd.v1.Solver", "blockd.v1.Admin"}) {
    const google::protobuf::ServiceDescriptor* const service = pool->FindServiceByName(name);
    EXPECT_NE(service, nullptr) << name;
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      paths.push_back(absl::StrCat("/", name, "/", service->method(i)->name()));
    }
  }
  return paths;
}

class CallFaultTest : public IntegrationTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.access.health_port = 0;
    options.access.reflection = "true";
    Start(options);
  }
  std::vector<int> Ports() { return {server().grpc_port(), server().health_port()}; }
};

TEST_F(CallFaultTest, CompressedMessagesAreRefusedBeforeTheyAreInflated) {
  for (const std::string encoding : {"gzip", "deflate"}) {
    const std::string bomb = CompressedZeros(encoding, kBombBytes),
                      field = RawHttp2::HeaderField("grpc-encoding", encoding);
    ASSERT_LT(bomb.size(), size_t{65535} - 5);  // a connection's first window
    for (const int port : Ports()) {
      for (const std::string& path : Paths()) {
        const auto send = [&] {
          RawHttp2 peer(port);
          peer.Greet();
          peer.SendHeaders(1, RawHttp2::HeaderBlockOf(path) + field);
          peer.SendMessage(1, bomb, RawHttp2::kEndStream, /*compressed=*/true);
          EXPECT_EQ(peer.WaitForStatus(1), grpc::StatusCode::UNIMPLEMENTED) << path;
          EXPECT_FALSE(peer.closed()) << path;
        };
        EXPECT_LE(PeakBytesOf(send), kBombBytes / 2) << path;
      }
    }
  }
}

TEST_F(CallFaultTest, AClientThatCompressesIsToldSoAndItsOtherCallsGoOn) {
  const HostMatrix matrix(problems::RandomSpd(64, 8, 1, 10), Scalar::kFloat64);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const auto context = NewContext();
    context->set_compression_algorithm(algorithm);
    v1::FactorReply reply;
    const grpc::Status status = stub().Factor(context.get(), FactorRequestOf(matrix), &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    EXPECT_NE(status.error_message().find("ompression"), std::string::npos)
        << status.error_message();
    Factor(matrix);
  }
}

TEST_F(CallFaultTest, MetadataOverTheLimitEndsItsOwnCallWithTheLimit) {
  const auto stream_context = NewContext();
  const auto stream = stub().SolveStream(stream_context.get());
  for (const int64_t bytes : {int64_t{9} << 10, int64_t{60} << 10, int64_t{500} << 10}) {
    const auto context = NewContext();
    context->AddMetadata("k", std::string(bytes - 1, 'v'));
    v1::ServerInfo info;
    const grpc::Status status = stub().GetServerInfo(context.get(), {}, &info);
    const auto detail = DetailOf<v1::LimitExceeded>(status);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    ASSERT_TRUE(detail.has_value()) << status.error_message();
    EXPECT_EQ(detail->limit(), "metadata_bytes");
    EXPECT_GE(detail->asked_bytes(), bytes);
    EXPECT_EQ(detail->limit_bytes(), 8192);
  }
  v1::SolveStreamRequest request;
  request.mutable_request()->set_handle(
      Factor(HostMatrix(problems::Poisson(4, 2), Scalar::kFloat64)));
  ASSERT_TRUE(stream->Write(request));
  v1::SolveStreamReply reply;
  EXPECT_TRUE(stream->Read(&reply));
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
}

// The contents of a raw call on stream 3: its header block, and its trailers if there are any.
struct Fault {
  std::string block, trailers;
};

std::vector<Fault> Faults() {
  const auto field = [](const std::string& name, const std::string& value) {
    return RawHttp2::HeaderField(name, value);
  };
  const std::string good = RawHttp2::HeaderBlock("GetServerInfo"), path = field(":path", "/x/y");
  std::vector<Fault> faults;
  for (const std::string& more : {field("k", std::string(9 << 10, 'v')),
                                  field("k", std::string(60 << 10, 'v')),
                                  ShortEntries(500),
                                  field("user-agent", std::string(60 << 10, 'v')),
                                  field(":status", "200"),
                                  field(":x", "y"),
                                  path,
                                  field("K", "v"),
                                  field("", "v"),
                                  field("k", std::string("v\0v", 3)),
                                  field("k", "v\nv"),
                                  field("k", "\xff"),
                                  field("k k", "v"),
                                  field("k-bin", ""),
                                  field("grpc-timeout", "x"),
                                  field("grpc-timeout", std::string(200, '9') + "S"),
                                  field("grpc-encoding", "none"),
                                  field("content-length", "5000"),
                                  field("host", "x"),
                                  field("connection", "close"),
                                  field("grpc-status", "x"),
                                  field("grpc-message", "%%")}) {
    faults.push_back({good + more, ""});
    // A call that is over ends its connection by trailers in more than one frame, in gRPC 1.51.
    if (more.size() < 16384) faults.push_back({good, more});
    faults.push_back({more + good, ""});
  }
  const std::string rest = field("te", "trailers") + field("content-type", "application/grpc");
  const std::string post = field(":method", "POST"), scheme = field(":scheme", "http");
  const std::string large(64 << 10, 'x');
  for (const std::string& block :
       {post + scheme + field(":path", "/" + large) + rest,
        post + scheme + field(":path", "") + rest, post + scheme + rest,
        field(":method", large) + scheme + path + rest,
        field(":method", "GET") + scheme + path + rest, scheme + path + rest, post + path + rest,
        post + field(":scheme", "x") + path + rest, post + scheme + path,
        post + scheme + path + field("te", "x") + field("content-type", "text/html"),
        post + scheme + path + field(":authority", large) + rest}) {
    faults.push_back({block, ""});
  }
  return faults;
}

TEST_F(CallFaultTest, WhateverACallSaysItsConnectionStays) {
  for (const int port : Ports()) {
    for (const Fault& fault : Faults()) {
      RawHttp2 peer(port);
      peer.Greet();
      peer.SendHeaders(1, RawHttp2::HeaderBlockOf(kWatch));
      peer.SendMessage(1, "", 0);
      ASSERT_TRUE(peer.WaitFor(RawHttp2::kData, 1));
      peer.SendHeaders(3, fault.block);
      peer.SendMessage(3, "", fault.trailers.empty() ? RawHttp2::kEndStream : 0);
      if (!fault.trailers.empty()) peer.SendHeaders(3, fault.trailers, RawHttp2::kEndStream);
      // It is answered, or reset.
      EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 3));
      peer.SendHeaders(5, RawHttp2::HeaderBlockOf(kCheck));
      peer.SendMessage(5, "");
      EXPECT_TRUE(peer.WaitFor(RawHttp2::kData, 5))
          << absl::CHexEscape(fault.block.substr(0, 300)) << " | "
          << absl::CHexEscape(fault.trailers.substr(0, 60));
      EXPECT_EQ(peer.received(RawHttp2::kGoAway), 0);
      EXPECT_EQ(peer.received(RawHttp2::kReset, 1), 0);
    }
  }
}

}  // namespace
}  // namespace blockd::test
