#include "tests/integration/fixture.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace blockd::test {

v1::SystemSpec SpecOf(const MatrixForm& form) {
  v1::SystemSpec spec;
  spec.set_num_blocks(form.shape.num_blocks);
  spec.set_block_size(form.shape.block_size);
  spec.set_scalar(form.shape.scalar == Scalar::kFloat64 ? v1::FLOAT64 : v1::FLOAT32);
  spec.set_diagonal_form(form.diagonal == DiagonalForm::kFull ? v1::FULL : v1::PACKED_LOWER);
  spec.set_coupling_form(form.coupling == CouplingForm::kSubdiagonal ? v1::SUBDIAGONAL
                                                                     : v1::SUPERDIAGONAL);
  return spec;
}

v1::SystemSpec SpecOf(const HostMatrix& matrix) {
  v1::SystemSpec spec = SpecOf(matrix.form());
  const BlockTridiagonalView view = matrix.view();
  if (view.diagonal_index == nullptr) return spec;
  v1::Palette* palette = spec.mutable_palette();
  palette->set_num_diagonal(matrix.form().diagonal_palette);
  palette->set_num_coupling(matrix.form().coupling_palette);
  for (int64_t i = 0; i < spec.num_blocks(); ++i) {
    palette->add_diagonal_index(view.diagonal_index[i]);
    if (i + 1 < spec.num_blocks()) palette->add_coupling_index(view.coupling_index[i]);
  }
  return spec;
}

v1::SystemData DataOf(const HostMatrix& matrix) {
  const BlockTridiagonalView view = matrix.view();
  v1::SystemData data;
  data.set_diagonal(view.diagonal, static_cast<size_t>(matrix.form().diagonal_bytes()));
  if (matrix.form().coupling_bytes() > 0) {
    data.set_coupling(view.coupling, static_cast<size_t>(matrix.form().coupling_bytes()));
  }
  return data;
}

v1::FactorRequest FactorRequestOf(const HostMatrix& matrix, int64_t systems) {
  v1::FactorRequest request;
  *request.mutable_spec() = SpecOf(matrix);
  for (int64_t k = 0; k < systems; ++k) *request.add_system() = DataOf(matrix);
  return request;
}

std::string BytesOf(const std::vector<double>& values, Scalar scalar) {
  const std::vector<std::byte> bytes = ToScalars(values, scalar);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<double> ValuesOf(const std::string& bytes, Scalar scalar) {
  return ToDoubles(std::as_bytes(std::span(bytes.data(), bytes.size())), scalar);
}

v1::RpcStatus RpcStatusOf(const grpc::Status& status) {
  v1::RpcStatus wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  return wire;
}

::testing::AssertionResult IsOk(const grpc::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "status " << status.error_code() << ": " << status.error_message();
}

::testing::AssertionResult IsInvalid(const grpc::Status& status, const std::string& field) {
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) {
    return ::testing::AssertionFailure()
           << "status " << status.error_code() << ": " << status.error_message();
  }
  const auto detail = DetailOf<v1::InvalidField>(status);
  if (!detail) return ::testing::AssertionFailure() << "no detail: " << status.error_message();
  if (detail->field() != field || detail->came().empty() || detail->expected().empty()) {
    return ::testing::AssertionFailure() << detail->ShortDebugString();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult IsOverLimit(const v1::RpcStatus& status, const std::string& limit,
                                       int64_t asked_bytes, int64_t limit_bytes) {
  const auto detail = DetailOf<v1::LimitExceeded>(status);
  if (status.code() == grpc::StatusCode::RESOURCE_EXHAUSTED && detail && detail->limit() == limit &&
      detail->asked_bytes() == asked_bytes && detail->limit_bytes() == limit_bytes) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "status " << status.code() << ": " << status.message() << " "
         << (detail ? detail->ShortDebugString() : "no detail");
}

::testing::AssertionResult IsOverLimit(const grpc::Status& status, const std::string& limit,
                                       int64_t asked_bytes, int64_t limit_bytes) {
  if (status.error_details().empty()) {
    return ::testing::AssertionFailure()
           << "no detail, status " << status.error_code() << ": " << status.error_message();
  }
  return IsOverLimit(RpcStatusOf(status), limit, asked_bytes, limit_bytes);
}

::testing::AssertionResult IsRetryLater(const v1::RpcStatus& status) {
  if (status.code() == grpc::StatusCode::UNAVAILABLE && DetailOf<v1::RetryAfter>(status)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "status " << status.code() << ": " << status.message();
}

::testing::AssertionResult IsRetryLater(const grpc::Status& status) {
  v1::RpcStatus wire = RpcStatusOf(status);
  wire.set_code(status.error_code());
  wire.set_message(status.error_message());
  return IsRetryLater(wire);
}

::testing::AssertionResult IsNotFound(const grpc::Status& status,
                                      v1::HandleNotFound::Reason reason) {
  const auto detail = DetailOf<v1::HandleNotFound>(status);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND && detail && detail->reason() == reason) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "status " << status.error_code() << ": " << status.error_message() << " "
         << (detail ? detail->ShortDebugString() : "no detail");
}

server::ServerOptions IntegrationTest::Options() {
  server::ServerOptions options;
  options.port = 0;
  options.metrics_port = -1;
  options.backend = ServerBackend();
  options.device.memory_bytes = int64_t{64} << 20;
  options.device.cpu_threads = 2;
  options.device.cpu_lanes = 2;
  // One tenant may have all bytes and places, because tests that count them count the total.
  options.core.tenant_share = 1;
  options.core.solve_reserve_bytes = 1;  // rounded down to none
  return options;
}

void IntegrationTest::Start(const server::ServerOptions& options) {
  Start(options, std::vector<std::unique_ptr<Backend>>());
}

void IntegrationTest::Start(const server::ServerOptions& options,
                            std::unique_ptr<Backend> backend) {
  std::vector<std::unique_ptr<Backend>> devices;
  if (backend != nullptr) devices.push_back(std::move(backend));
  Start(options, std::move(devices));
}

void IntegrationTest::Start(const server::ServerOptions& options,
                            std::vector<std::unique_ptr<Backend>> devices) {
  absl::StatusOr<std::unique_ptr<server::Server>> started =
      server::Server::Start(options, std::move(devices));
  ASSERT_TRUE(started.ok()) << started.status();
  server_ = *std::move(started);
  channel_ = NewChannel();
  stub_ = v1::Solver::NewStub(channel_);
}

void IntegrationTest::StartGated(server::ServerOptions options) {
  options.core.max_batch_delay = std::max(options.core.max_batch_delay, absl::Microseconds(1));
  Start(options, GatedCpu(options.device, gate_));
}

void IntegrationTest::TearDown() {
  gate_->Open();  // a test that failed may have left it closed
  stub_.reset();
  channel_.reset();
  server_.reset();
}

std::shared_ptr<grpc::Channel> IntegrationTest::NewChannel() const {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server_->grpc_target(), grpc::InsecureChannelCredentials(),
                                   args);
}

int IntegrationTest::Health(const std::string& service) {
  // The request's one field is a string, the reply's an enum.
  std::string request, reply;
  if (!service.empty()) request = absl::StrCat("\n", std::string(1, service.size()), service);
  const grpc::Status status = RawCall("/grpc.health.v1.Health/Check", request, &reply);
  return status.ok() && reply.size() == 2 && reply[0] == 8 ? reply[1] : -1;
}

double IntegrationTest::Metric(const std::string& name, const std::string& labels) {
  std::istringstream text(server_->metrics().Text());
  double sum = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind(name, 0) != 0 || !absl::StrContains(line, labels)) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    sum += value;
  }
  return sum;
}

int IntegrationTest::Ended(const std::string& method, const std::string& status) {
  return static_cast<int>(Metric("blockd_requests_total",
                                 absl::StrCat("method=\"", method, "\",status=\"", status, "\"")));
}

std::unique_ptr<grpc::ClientContext> ContextWithServerTimeout(absl::Duration timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("grpc-timeout", absl::StrCat(absl::ToInt64Milliseconds(timeout), "m"));
  return context;
}

std::unique_ptr<grpc::ClientContext> NewContext(const std::string& caller) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + kGenerous));
  if (!caller.empty()) context->AddMetadata("blockd-caller", caller);
  return context;
}

grpc::Status IntegrationTest::FactorStatus(const v1::FactorRequest& request, v1::FactorReply* reply,
                                           const std::string& caller) {
  v1::FactorReply unused;
  return stub_->Factor(NewContext(caller).get(), request, reply ? reply : &unused);
}

grpc::Status IntegrationTest::SolveStatus(const v1::SolveRequest& request, v1::SolveReply* reply,
                                          const std::string& caller) {
  v1::SolveReply unused;
  return stub_->Solve(NewContext(caller).get(), request, reply ? reply : &unused);
}

grpc::Status IntegrationTest::ReleaseStatus(const std::vector<std::string>& handles,
                                            v1::ReleaseReply* reply, const std::string& caller) {
  v1::ReleaseRequest request;
  for (const std::string& handle : handles) request.add_handle(handle);
  v1::ReleaseReply unused;
  return stub_->Release(NewContext(caller).get(), request, reply ? reply : &unused);
}

grpc::Status IntegrationTest::RawCall(const std::string& path, const std::string& message,
                                      std::string* reply) {
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer answer;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel_.get(),
      grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC),
      NewContext().get(), request, &answer);
  grpc::Slice joined;
  if (reply != nullptr && status.ok() && answer.DumpToSingleSlice(&joined).ok()) {
    reply->assign(reinterpret_cast<const char*>(joined.begin()), joined.size());
  }
  return status;
}

v1::FactorReply IntegrationTest::Factor(const v1::FactorRequest& request,
                                        const std::string& caller) {
  v1::FactorReply reply;
  EXPECT_TRUE(IsOk(FactorStatus(request, &reply, caller)));
  return reply;
}

std::string IntegrationTest::Factor(const HostMatrix& matrix) {
  const v1::FactorReply reply = Factor(FactorRequestOf(matrix));
  return reply.system_size() == 1 ? reply.system(0).handle() : "";
}

std::vector<double> IntegrationTest::Solve(const std::string& handle,
                                           const std::vector<double>& rhs, int64_t num_rhs,
                                           Scalar scalar) {
  v1::SolveRequest request;
  request.set_handle(handle);
  request.set_num_rhs(num_rhs);
  request.set_rhs(BytesOf(rhs, scalar));
  v1::SolveReply reply;
  EXPECT_TRUE(IsOk(SolveStatus(request, &reply)));
  return ValuesOf(reply.solution(), scalar);
}

void ExpectSolves(const HostMatrix& matrix, const std::vector<double>& x,
                  const std::vector<double>& b) {
  ASSERT_EQ(x.size(), b.size());
  const double bound =
      4 * static_cast<double>(matrix.shape().block_size) * Epsilon(matrix.shape().scalar);
  EXPECT_LE(BackwardError(matrix.view(), x, b), bound);
}

void IntegrationTest::ExpectServes() {
  const problems::Problem problem = problems::Poisson(6, 5);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const std::string handle = Factor(matrix);
  ExpectSolves(matrix, Solve(handle, problem.rhs), problem.rhs);
  EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
}

}  // namespace blockd::test
