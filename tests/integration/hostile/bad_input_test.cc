// Whatever comes in: a status that says what is wrong, and a server that goes on.
#include <limits>
#include <random>

#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

constexpr const char* kMethods[] = {"Factor",
                                    "FactorStream",
                                    "Solve",
                                    "SolveStream",
                                    "FactorSolve",
                                    "Release",
                                    "GetFactorization",
                                    "ListFactorizations",
                                    "GetServerInfo",
                                    "GetPlan",
                                    "SolveMany",
                                    "FactorSolveMany",
                                    "SelectedInverse",
                                    "Sample",
                                    "Smooth"};

class BadInputTest : public IntegrationTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.core.max_systems = 4;
    options.core.max_rhs = 8;
    options.core.max_lease = absl::Seconds(100);
    Start(options);
    request_ = FactorRequestOf(matrix_);
  }
  void TearDown() override {
    EXPECT_EQ(Metric("blockd_factorizations"), 0);
    EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
    ExpectServes();
    IntegrationTest::TearDown();
  }

  grpc::Status SendRaw(const char* method, const std::string& bytes) {
    return RawCall(std::string("/blockd.v1.Solver/") + method, bytes);
  }

  v1::SystemSpec& spec() { return *request_.mutable_spec(); }
  grpc::Status Send() { return FactorStatus(request_); }

  const problems::Problem problem_ = problems::RandomSpd(5, 3, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  v1::FactorRequest request_;
};

TEST_F(BadInputTest, SizesOfZeroNegativeOrOverflowing) {
  for (const int64_t value : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()}) {
    SCOPED_TRACE(value);
    request_ = FactorRequestOf(matrix_);
    spec().set_num_blocks(value);
    EXPECT_TRUE(IsInvalid(Send(), "spec.num_blocks"));
    spec().set_num_blocks(5);
    spec().set_block_size(value);
    EXPECT_TRUE(IsInvalid(Send(), "spec.block_size"));
  }
  // Each in range, their product of bytes beyond 64 bits.
  spec().set_num_blocks(kMaxRows / kMaxBlockSize);
  spec().set_block_size(kMaxBlockSize);
  EXPECT_EQ(Send().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  spec().set_num_blocks(kMaxRows);
  spec().set_block_size(2);
  EXPECT_TRUE(IsInvalid(Send(), "spec.num_blocks"));
}

TEST_F(BadInputTest, SizesThatDisagree) {
  request_.mutable_system(0)->mutable_diagonal()->pop_back();
  EXPECT_TRUE(IsInvalid(Send(), "system[0].diagonal"));
  request_ = FactorRequestOf(matrix_, 2);
  request_.mutable_system(1)->mutable_coupling()->append("12345678");
  EXPECT_TRUE(IsInvalid(Send(), "system[1].coupling"));
  request_ = FactorRequestOf(matrix_);
  spec().set_num_blocks(6);
  EXPECT_TRUE(IsInvalid(Send(), "system[0].diagonal"));
  request_ = FactorRequestOf(matrix_);
  spec().set_scalar(v1::FLOAT32);  // the bytes are of float64
  EXPECT_TRUE(IsInvalid(Send(), "system[0].diagonal"));
  request_.clear_system();
  EXPECT_TRUE(IsInvalid(Send(), "system"));
  EXPECT_TRUE(IsInvalid(FactorStatus(FactorRequestOf(matrix_, 5)), "system"));
}

TEST_F(BadInputTest, AbsentAndUnknownEnums) {
  for (const int value : {0, 3, 99, -1}) {
    SCOPED_TRACE(value);
    request_ = FactorRequestOf(matrix_);
    spec().set_scalar(static_cast<v1::ScalarType>(value));
    const grpc::Status status = Send();
    EXPECT_TRUE(IsInvalid(status, "spec.scalar"));
    EXPECT_NE(DetailOf<v1::InvalidField>(status)->expected().find("FLOAT32"), std::string::npos);
    request_ = FactorRequestOf(matrix_);
    spec().set_diagonal_form(static_cast<v1::DiagonalForm>(value));
    EXPECT_TRUE(IsInvalid(Send(), "spec.diagonal_form"));
    request_ = FactorRequestOf(matrix_);
    spec().set_coupling_form(static_cast<v1::CouplingForm>(value));
    EXPECT_TRUE(IsInvalid(Send(), "spec.coupling_form"));
  }
  EXPECT_TRUE(IsInvalid(FactorStatus({}), "spec.num_blocks"));
}

TEST_F(BadInputTest, Palettes) {
  const HostMatrix matrix(problems::KalmanPalette({.states = 2, .observations = 2, .steps = 5}),
                          Scalar::kFloat64, {.palette = true});
  const auto send = [&](auto change, const char* field) {
    request_ = FactorRequestOf(matrix);
    change(spec().mutable_palette());
    EXPECT_TRUE(IsInvalid(Send(), field)) << field;
  };
  using P = v1::Palette*;
  send([](P p) { p->set_num_diagonal(0); }, "spec.palette.num_diagonal");
  send([](P p) { p->set_num_diagonal(6); }, "spec.palette.num_diagonal");
  send([](P p) { p->set_num_coupling(0); }, "spec.palette.num_coupling");
  send([](P p) { p->set_num_coupling(std::numeric_limits<int64_t>::max()); },
       "spec.palette.num_coupling");
  send([](P p) { p->add_diagonal_index(0); }, "spec.palette.diagonal_index");
  send([](P p) { p->mutable_diagonal_index()->RemoveLast(); }, "spec.palette.diagonal_index");
  send([](P p) { p->set_diagonal_index(3, 2); }, "spec.palette.diagonal_index[3]");
  send([](P p) { p->set_coupling_index(0, 4'000'000'000u); }, "spec.palette.coupling_index[0]");
  send([](P p) { p->clear_coupling_index(); }, "spec.palette.coupling_index");
}

TEST_F(BadInputTest, OptionsOfFactor) {
  const auto send = [&](auto change, const char* field) {
    request_ = FactorRequestOf(matrix_);
    change(request_.mutable_options());
    EXPECT_TRUE(IsInvalid(Send(), field)) << field;
  };
  using O = v1::FactorOptions*;
  send([](O o) { o->add_handle("short"); }, "options.handle[0]");
  send([](O o) { o->set_idempotency_key(std::string(257, 'k')); }, "options.idempotency_key");
  send([](O o) { o->mutable_lease()->set_seconds(-1); }, "options.lease");
  send([](O o) { o->mutable_lease()->set_nanos(-1); }, "options.lease");
  send([](O o) { o->mutable_lease()->set_nanos(2'000'000'000); }, "options.lease");
  send([](O o) { o->mutable_lease()->set_seconds(101); }, "options.lease");
  send([](O o) { o->mutable_lease()->set_seconds(std::numeric_limits<int64_t>::max()); },
       "options.lease");
  const std::string handle = Factor(matrix_);
  send(
      [&](O o) {
        o->add_handle(handle);
        o->set_idempotency_key("key");
      },
      "options.idempotency_key");
  send(
      [&](O o) {
        o->add_handle(handle);
        o->add_handle(handle);
      },
      "options.handle");
  const HostMatrix other(problems::RandomSpd(5, 4, 1, 10), Scalar::kFloat64);
  request_ = FactorRequestOf(other);
  request_.mutable_options()->add_handle(handle);
  EXPECT_TRUE(IsInvalid(Send(), "spec"));
  EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
}

TEST_F(BadInputTest, NanInRightHandSidesWhereAskedToCheck) {
  std::vector<double> rhs = problem_.rhs;
  rhs[3] = std::numeric_limits<double>::quiet_NaN();
  v1::SolveRequest solve;
  solve.set_handle(Factor(matrix_));
  solve.set_num_rhs(1);
  solve.set_rhs(BytesOf(rhs));
  EXPECT_TRUE(IsOk(SolveStatus(solve)));
  solve.mutable_options()->set_check_finite(true);
  EXPECT_TRUE(IsInvalid(SolveStatus(solve), "rhs"));

  const auto stream_context = NewContext();
  const auto stream = stub().SolveStream(stream_context.get());
  v1::SolveStreamRequest part;
  *part.mutable_request() = solve;
  ASSERT_TRUE(stream->Write(part));
  v1::SolveStreamReply part_reply;
  ASSERT_TRUE(stream->Read(&part_reply));
  EXPECT_EQ(part_reply.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(DetailOf<v1::InvalidField>(part_reply.status()).has_value());
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));

  v1::FactorSolveRequest both;
  *both.mutable_spec() = SpecOf(matrix_);
  *both.mutable_system() = DataOf(matrix_);
  both.set_num_rhs(1);
  both.set_rhs(BytesOf(rhs));
  const auto send = [&] {
    const auto context = NewContext();
    v1::FactorSolveReply reply;
    return stub().FactorSolve(context.get(), both, &reply);
  };
  EXPECT_TRUE(IsOk(send()));
  both.set_check_finite(true);  // of the matrix and of what it is solved for
  EXPECT_TRUE(IsInvalid(send(), "rhs"));
  both.set_check_finite(false);
  both.mutable_options()->set_check_finite(true);
  EXPECT_TRUE(IsInvalid(send(), "rhs"));
  EXPECT_TRUE(IsOk(ReleaseStatus({solve.handle()})));
}

TEST_F(BadInputTest, NanAndInfinityWhereAskedToCheck) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    HostMatrix bad = matrix_;
    bad.SetDiagonal(2, 2, 1, value);
    request_ = FactorRequestOf(bad);
    request_.mutable_options()->set_check_finite(true);
    const grpc::Status status = Send();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("diagonal"), std::string::npos) << status.error_message();
    bad = matrix_;
    bad.SetCoupling(1, 0, 2, value);
    request_ = FactorRequestOf(bad);
    request_.mutable_options()->set_check_finite(true);
    EXPECT_EQ(Send().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

    v1::FactorSolveRequest both;
    *both.mutable_spec() = SpecOf(bad);
    *both.mutable_system() = DataOf(bad);
    both.set_num_rhs(1);
    both.set_rhs(BytesOf(problem_.rhs));
    both.set_check_finite(true);
    v1::FactorSolveReply reply;
    EXPECT_EQ(stub().FactorSolve(NewContext().get(), both, &reply).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  // The strict upper triangle is not read: HostMatrix fills it with NaN.
  request_ = FactorRequestOf(matrix_);
  request_.mutable_options()->set_check_finite(true);
  const v1::FactorReply reply = Factor(request_);
  EXPECT_TRUE(IsOk(ReleaseStatus({reply.system(0).handle()})));
}

TEST_F(BadInputTest, RightHandSides) {
  const std::string handle = Factor(matrix_);
  const auto send = [&](auto change, const char* field) {
    v1::SolveRequest request;
    request.set_handle(handle);
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem_.rhs));
    change(&request);
    EXPECT_TRUE(IsInvalid(SolveStatus(request), field)) << field;
  };
  using R = v1::SolveRequest*;
  send([](R r) { r->set_num_rhs(0); }, "num_rhs");
  send([](R r) { r->set_num_rhs(-1); }, "num_rhs");
  send([](R r) { r->set_num_rhs(9); }, "num_rhs");  // the limit is 8
  send([](R r) { r->set_num_rhs(std::numeric_limits<int64_t>::max()); }, "num_rhs");
  send([](R r) { r->set_num_rhs(2); }, "rhs");
  send([](R r) { r->clear_rhs(); }, "rhs");
  send([](R r) { r->mutable_rhs()->pop_back(); }, "rhs");
  send([](R r) { r->clear_handle(); }, "handle");
  send([](R r) { r->mutable_handle()->push_back('x'); }, "handle");
  send([](R r) { r->mutable_options()->set_max_refinements(11); }, "options.max_refinements");
  send([](R r) { r->mutable_options()->set_max_refinements(-1); }, "options.max_refinements");

  v1::FactorSolveRequest both;
  *both.mutable_spec() = SpecOf(matrix_);
  *both.mutable_system() = DataOf(matrix_);
  v1::FactorSolveReply reply;
  EXPECT_TRUE(IsInvalid(stub().FactorSolve(NewContext().get(), both, &reply), "num_rhs"));
  both.set_num_rhs(std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(IsInvalid(stub().FactorSolve(NewContext().get(), both, &reply), "num_rhs"));
  both.set_num_rhs(1);
  EXPECT_TRUE(IsInvalid(stub().FactorSolve(NewContext().get(), both, &reply), "rhs"));
  both.set_rhs(BytesOf(problem_.rhs));
  both.mutable_options()->set_max_refinements(11);
  EXPECT_TRUE(
      IsInvalid(stub().FactorSolve(NewContext().get(), both, &reply), "options.max_refinements"));
  both.mutable_system()->mutable_coupling()->pop_back();
  EXPECT_TRUE(IsInvalid(stub().FactorSolve(NewContext().get(), both, &reply), "system.coupling"));
  EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
}

TEST_F(BadInputTest, HandlesAndPages) {
  EXPECT_TRUE(IsInvalid(ReleaseStatus({}), "handle"));
  EXPECT_TRUE(IsInvalid(ReleaseStatus({"abc"}), "handle[0]"));
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsInvalid(stub().GetFactorization(NewContext().get(), {}, &info), "handle"));
  v1::ListFactorizationsRequest list;
  v1::ListFactorizationsReply page;
  list.set_page_size(-1);
  EXPECT_TRUE(IsInvalid(stub().ListFactorizations(NewContext().get(), list, &page), "page_size"));
  list.set_page_size(1001);
  EXPECT_TRUE(IsInvalid(stub().ListFactorizations(NewContext().get(), list, &page), "page_size"));
  list.set_page_size(0);
  list.set_page_token("nonsense");
  EXPECT_TRUE(IsInvalid(stub().ListFactorizations(NewContext().get(), list, &page), "page_token"));
}

TEST_F(BadInputTest, ASystemLargerThanTheMemoryIsRefusedBeforeItsUpload) {
  v1::FactorStreamRequest header;
  spec().set_num_blocks(1000);
  spec().set_block_size(1000);
  *header.mutable_header()->mutable_spec() = spec();
  header.mutable_header()->set_num_systems(1);
  v1::FactorReply reply;
  const auto context = NewContext();
  const auto writer = stub().FactorStream(context.get(), &reply);
  writer->Write(header);  // and neither a chunk nor an end
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  const auto memory = DetailOf<v1::InsufficientMemory>(status);
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->asked_bytes(), int64_t{8'000'000'000});
  EXPECT_EQ(memory->total_bytes(), memory->free_bytes());
}

TEST_F(BadInputTest, BytesThatAreNoMessage) {
  // A length that runs past the end, a group that does not end, a tag of zero.
  for (const std::string& bytes : {std::string("\x0a\xff\x7f", 3), std::string("\x0b", 1),
                                   std::string("\x00\x01\x02", 3), std::string(100, '\xff')}) {
    for (const char* method : kMethods) {
      const grpc::Status status = SendRaw(method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method << ": " << status.error_message();
    }
  }
}

TEST_F(BadInputTest, RandomAndDamagedMessagesNeverHurt) {
  std::mt19937_64 random(7);
  std::vector<std::string> seeds = {request_.SerializeAsString()};
  v1::FactorStreamRequest header;
  *header.mutable_header()->mutable_spec() = spec();
  header.mutable_header()->set_num_systems(1);
  seeds.push_back(header.SerializeAsString());
  v1::SolveStreamRequest solve;
  solve.set_id(3);
  solve.mutable_request()->set_handle(std::string(24, 'h'));
  solve.mutable_request()->set_num_rhs(1);
  seeds.push_back(solve.SerializeAsString());
  seeds.push_back(solve.request().SerializeAsString());
  for (int round = 0; round < 60; ++round) {
    std::string bytes;
    if (round % 3 == 0) {
      bytes.resize(random() % 300);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      bytes = seeds[random() % seeds.size()];
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(random() % (bytes.size() + 1));
    }
    for (const char* method : kMethods) {
      const grpc::Status status = SendRaw(method, bytes);
      EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    }
  }
  // Some of them may have been whole systems.
  v1::ListFactorizationsReply page;
  ASSERT_TRUE(IsOk(stub().ListFactorizations(NewContext().get(), {}, &page)));
  for (const v1::FactorizationInfo& info : page.factorization()) {
    EXPECT_TRUE(IsOk(ReleaseStatus({info.handle()})));
  }
}

}  // namespace
}  // namespace blockd::test
