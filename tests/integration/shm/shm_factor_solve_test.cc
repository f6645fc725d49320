// FactorSolve and FactorSolveMany in shared memory: the bits of gRPC, its statuses and quotas, and
// whatever a caller writes beside its matrices.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/shm/shm_fixture.h"

namespace blockd::test {
namespace {

constexpr uint64_t kBeyond = std::numeric_limits<uint64_t>::max();
// In the data: where requests and systems are put, and the bytes of each.
constexpr uint64_t kRequests = 0, kRequest = 8 << 10, kData = 192 << 10, kEach = 32 << 10;

class ShmFactorSolveTest : public ShmTest {
 protected:
  void Open(const std::string& caller = "") {
    caller_ = std::make_unique<RawShm>(path_);
    ASSERT_EQ(caller_->Open(RawShm::Hello(1 << 20, 16, caller)).code(), 0);
  }
  static HostMatrix Matrix(int seed, int64_t block_size = 7) {
    return HostMatrix(problems::RandomSpd(5, block_size, seed, 10), Scalar::kFloat64);
  }
  static std::vector<double> Rhs(int64_t columns, int seed = 3) {
    return problems::RandomColumns(kRows, columns, seed);
  }
  // The places of a system.
  using System = std::vector<v1::ShmPlace>;
  enum Which : size_t { kDiagonal, kCoupling, kRhs, kSolution };
  // Puts a system where it belongs, and says so.
  System Put(size_t place, const HostMatrix& matrix, const std::vector<double>& rhs) {
    const uint64_t at = kData + place * kEach;
    System system = caller_->PutMatrix(DataOf(matrix), at);
    const uint64_t bytes = rhs.size() * sizeof(double);
    for (int i = 0; i < 2; ++i) {
      const v1::ShmPlace& last = system.back();
      system.push_back({.offset = last.offset + (last.bytes + 7) / 8 * 8, .bytes = bytes});
      std::memcpy(caller_->at(system.back().offset), rhs.data(), bytes);
    }
    return system;
  }
  // In a place of its own: several may be under way.
  v1::ShmRequest Request(v1::ShmOperation operation, const google::protobuf::MessageLite& message,
                         const std::vector<v1::ShmPlace>& places) {
    ++last_id_;
    const uint64_t offset = kRequests + last_id_ % ((kData - kRequests) / kRequest) * kRequest;
    return caller_->Request(operation, message, places, last_id_, offset);
  }
  v1::ShmRequest Request(const v1::FactorSolveRequest& message, const System& system) {
    return Request(v1::ShmOperation::kFactorSolve, message, system);
  }
  v1::ShmRequest Request(const v1::FactorSolveManyRequest& message,
                         const std::vector<System>& systems) {
    std::vector<v1::ShmPlace> places;
    for (const System& system : systems) {
      places.insert(places.end(), system.begin(), system.end());
    }
    return Request(v1::ShmOperation::kFactorSolveMany, message, places);
  }
  template <typename Reply>
  Reply ReplyOf(const v1::ShmRequest& request, const v1::ShmReply& answer) {
    Reply reply;
    EXPECT_TRUE(caller_->ReadReply(request, answer, &reply))
        << caller_->StatusOf(request, answer).message();
    return reply;
  }
  std::string At(const v1::ShmPlace& place) {
    return {reinterpret_cast<const char*>(caller_->at(place.offset)), place.bytes};
  }
  void ExpectRefused(const v1::ShmRequest& request, const std::string& field) {
    const v1::ShmReply reply = caller_->Ask(request);
    ASSERT_EQ(reply.code, grpc::StatusCode::INVALID_ARGUMENT) << field;
    const auto detail = DetailOf<v1::InvalidField>(caller_->StatusOf(request, reply));
    ASSERT_TRUE(detail.has_value()) << field;
    EXPECT_EQ(detail->field(), field);
  }
  static v1::FactorSolveRequest Head(const HostMatrix& matrix, int64_t num_rhs) {
    v1::FactorSolveRequest message;
    *message.mutable_spec() = SpecOf(matrix);
    message.set_num_rhs(num_rhs);
    return message;
  }

  std::unique_ptr<RawShm> caller_;
  uint64_t last_id_ = 0;
};

TEST_F(ShmFactorSolveTest, HasTheBitsOfThePort) {
  Start(options_);
  Open();
  const HostMatrix matrix = Matrix(4);
  for (const bool in_place : {false, true}) {
    for (const int64_t columns : {1, 3}) {
      const std::vector<double> rhs = Rhs(columns);
      v1::FactorSolveRequest message = Head(matrix, columns);
      message.set_log_determinant(true);
      message.mutable_options()->set_residual(true);
      v1::FactorSolveRequest whole = message;
      *whole.mutable_system() = DataOf(matrix);
      whole.set_rhs(BytesOf(rhs));
      if (in_place) {
        message.set_handle(Factor(Matrix(3)));
        whole.set_handle(Factor(Matrix(3)));
      }
      const System system = Put(0, matrix, rhs);
      const v1::ShmRequest request = Request(message, system);
      const auto reply = ReplyOf<v1::FactorSolveReply>(request, caller_->Ask(request));
      v1::FactorSolveReply expected;
      ASSERT_TRUE(IsOk(stub().FactorSolve(NewContext().get(), whole, &expected)));
      EXPECT_EQ(At(system[kSolution]), expected.solution());
      EXPECT_TRUE(reply.solution().empty());
      EXPECT_EQ(reply.log_determinant(), expected.log_determinant());
      EXPECT_EQ(reply.backward_error(), expected.backward_error());
      EXPECT_EQ(reply.growth(), expected.growth());
      EXPECT_EQ(reply.cost().batch_requests(), 1);
      if (!in_place) continue;
      EXPECT_EQ(Solve(message.handle(), rhs, columns), ValuesOf(expected.solution()));
    }
  }
  EXPECT_TRUE(Eventually([&] { return Ended("FactorSolve", "OK") == 8; }));
}

TEST_F(ShmFactorSolveTest, ManyHaveTheBitsOfThePortAndFailAlone) {
  Start(options_);
  Open();
  v1::FactorSolveManyRequest message, whole;
  std::vector<System> systems;
  const std::vector<double> rhs = Rhs(2);
  std::vector<std::string> handles;
  for (size_t i = 0; i < 3; ++i) {
    handles.push_back(Factor(Matrix(1)));
    whole.add_handle(Factor(Matrix(1)));
    message.add_handle(handles[i]);
    problems::Problem problem = problems::RandomSpd(5, 7, static_cast<int>(4 + i), 10);
    if (i == 1) problem.diagonal[0] = -1;
    const HostMatrix matrix(problem, Scalar::kFloat64);
    *message.mutable_spec() = SpecOf(matrix);
    systems.push_back(Put(i, matrix, rhs));
    *whole.mutable_matrix() += DataOf(matrix).diagonal() + DataOf(matrix).coupling();
    *whole.mutable_rhs() += BytesOf(rhs);
  }
  message.set_num_rhs(2);
  *whole.mutable_spec() = message.spec();
  whole.set_num_rhs(2);
  const v1::ShmRequest request = Request(message, systems);
  const auto reply = ReplyOf<v1::SolveManyReply>(request, caller_->Ask(request));
  v1::SolveManyReply expected;
  ASSERT_TRUE(IsOk(stub().FactorSolveMany(NewContext().get(), whole, &expected)));
  std::string solutions;
  for (const System& system : systems) solutions += At(system[kSolution]);
  EXPECT_EQ(solutions, expected.solution());
  ASSERT_EQ(reply.failure_size(), 1);
  EXPECT_EQ(reply.failure(0).solve(), 1U);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(reply.failure(0).status()).has_value());
  EXPECT_EQ(reply.growth_size(), 3);
  EXPECT_EQ(Solve(handles[0], rhs, 2), ValuesOf(At(systems[0][kSolution])));
}

TEST_F(ShmFactorSolveTest, ARefusalLeavesTheOldFactors) {
  Start(options_);
  Open();
  const std::string handle = Factor(Matrix(3));
  const std::vector<double> before = Solve(handle, Rhs(1));
  problems::Problem bad = problems::RandomSpd(5, 7, 4, 10);
  bad.diagonal[0] = -1;
  const HostMatrix matrix(bad, Scalar::kFloat64);
  v1::FactorSolveRequest message = Head(matrix, 1);
  message.set_handle(handle);
  v1::ShmRequest request = Request(message, Put(0, matrix, Rhs(1)));
  const v1::ShmReply reply = caller_->Ask(request);
  EXPECT_EQ(reply.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(caller_->StatusOf(request, reply)).has_value());
  EXPECT_EQ(Solve(handle, Rhs(1)), before);
  message.set_check_finite(true);
  bad.diagonal[0] = std::numeric_limits<double>::quiet_NaN();
  request = Request(message, Put(0, HostMatrix(bad, Scalar::kFloat64), Rhs(1)));
  EXPECT_EQ(caller_->Ask(request).code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Solve(handle, Rhs(1)), before);
}

TEST_F(ShmFactorSolveTest, AHandleOfAnotherIsNone) {
  Start(options_);
  Open("ben");
  v1::FactorSolveRequest message = Head(Matrix(3), 1);
  message.set_handle(Factor(FactorRequestOf(Matrix(3)), "ada").system(0).handle());
  const v1::ShmRequest request = Request(message, Put(0, Matrix(3), Rhs(1)));
  EXPECT_EQ(caller_->Ask(request).code, grpc::StatusCode::NOT_FOUND);
}

// Known by its user id alone, it is nobody over gRPC.
TEST_F(ShmFactorSolveTest, ACallerOfAUserNeedsNothingElse) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants")
      << "tenant { name: \"ada\" identity { unix_uid: " << getuid() << " } } "
      << "refuse_unlisted: true";
  Start(options_);
  Open();
  v1::FactorRequest head;
  *head.mutable_spec() = SpecOf(Matrix(3));
  const System system = Put(0, Matrix(3), Rhs(1));
  const v1::ShmRequest factor =
      Request(v1::ShmOperation::kFactor, head, {system[kDiagonal], system[kCoupling]});
  const auto factored = ReplyOf<v1::FactorReply>(factor, caller_->Ask(factor));
  const std::string handle = factored.system(0).handle();
  v1::FactorSolveRequest message = Head(Matrix(4), 1);
  message.set_handle(handle);
  const v1::ShmRequest step = Request(message, Put(0, Matrix(4), Rhs(1)));
  ReplyOf<v1::FactorSolveReply>(step, caller_->Ask(step));
  EXPECT_EQ(caller_->Ask(caller_->Solve(handle, kRows, ++last_id_)).code, 0);
  v1::ReleaseRequest release;
  release.add_handle(handle);
  EXPECT_EQ(caller_->Ask(Request(v1::ShmOperation::kRelease, release, {})).code, 0);
  EXPECT_EQ(caller_->Ask(caller_->Solve(handle, kRows, ++last_id_)).code,
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ShmFactorSolveTest, TheQuotasAreThoseOfThePort) {
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants") << "tenant { name: \"t\" identity { metadata: \"ada\" } "
                                     << "quotas { requests_per_second: 1 } }";
  Start(options_);
  Open("ada");
  const System system = Put(0, Matrix(3), Rhs(1));
  std::string quota;
  for (int i = 0; i < 10 && quota.empty(); ++i) {
    const v1::ShmRequest request = Request(Head(Matrix(3), 1), system);
    const v1::ShmReply reply = caller_->Ask(request);
    if (reply.code == 0) continue;
    EXPECT_EQ(reply.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
    quota = DetailOf<v1::QuotaExceeded>(caller_->StatusOf(request, reply))->quota();
  }
  EXPECT_EQ(quota, "requests_per_second");
}

TEST_F(ShmFactorSolveTest, OneIsCancelledOneIsLateAndADrainRefuses) {
  StartGated(options_);
  Open();
  const System system = Put(0, Matrix(3), Rhs(1));
  const v1::FactorSolveRequest message = Head(Matrix(3), 1);
  gate_->Close();
  const v1::ShmRequest first = Request(message, system);
  caller_->Put(first);
  gate_->WaitForDevice();
  const v1::ShmRequest second = Request(message, Put(1, Matrix(3), Rhs(1)));
  caller_->Put(second);
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 1; }));
  v1::ShmRequest cancel{};
  cancel.id = ++last_id_;
  cancel.operation = v1::ShmOperation::kCancel;
  cancel.other_id = second.id;
  caller_->Put(cancel);
  for (int i = 0; i < 2; ++i) {
    const auto reply = caller_->Take();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->code, reply->id == second.id ? grpc::StatusCode::CANCELLED : 0);
  }
  v1::ShmRequest late = Request(message, Put(2, Matrix(3), Rhs(1)));
  late.timeout_nanoseconds = 1'000'000;
  EXPECT_EQ(caller_->Ask(late).code, grpc::StatusCode::DEADLINE_EXCEEDED);
  server().StartDrain();
  const v1::ShmRequest refused = Request(message, Put(3, Matrix(3), Rhs(1)));
  EXPECT_TRUE(IsRetryLater(caller_->StatusOf(refused, caller_->Ask(refused))));
  gate_->Open();
  EXPECT_EQ(caller_->Take()->code, 0);
}

// -----------------------------------------------------------------------------------------------------
// Checks of the requests that callers write

TEST_F(ShmFactorSolveTest, WhatIsWrittenBesideTheMatrixIsChecked) {
  Start(options_);
  Open();
  const v1::FactorSolveRequest good = Head(Matrix(3), 1);
  const System system = Put(0, Matrix(3), Rhs(1));
  const auto refused = [&](const std::string& field, auto change) {
    v1::FactorSolveRequest message = good;
    change(message);
    ExpectRefused(Request(message, system), field);
  };
  refused("spec.block_size", [](auto& m) { m.mutable_spec()->set_block_size(1 << 30); });
  refused("num_rhs", [](auto& m) { m.set_num_rhs(0); });
  refused("num_rhs", [](auto& m) { m.set_num_rhs(std::numeric_limits<int64_t>::max()); });
  refused("rhs", [](auto& m) { m.set_num_rhs(2); });
  refused("handle", [](auto& m) { m.set_handle("short"); });
  refused("accuracy", [](auto& m) { m.set_accuracy(static_cast<v1::Accuracy>(7)); });
  refused("options.priority",
          [](auto& m) { m.mutable_options()->set_priority(static_cast<v1::PriorityClass>(9)); });
  refused("places[0]", [](auto& m) { m.mutable_spec()->set_num_blocks(6); });
  refused("system, rhs", [](auto& m) { m.set_rhs("12345678"); });
  refused("system, rhs", [](auto& m) { m.mutable_system(); });
  refused("spec.palette.diagonal_index[4]", [](auto& m) {
    m.mutable_spec()->mutable_palette()->set_num_diagonal(1);
    m.mutable_spec()->mutable_palette()->set_num_coupling(1);
    for (int i = 0; i < 5; ++i) {
      m.mutable_spec()->mutable_palette()->add_diagonal_index(i == 4 ? 1000 : 0);
    }
  });
  v1::ShmRequest request = Request(good, system);
  std::memset(caller_->at(request.message_offset), 0xff, request.message_bytes);
  ExpectRefused(request, "");
  request.message_offset = kBeyond - 7;
  ExpectRefused(request, "message_offset");
  request = Request(good, system);
  request.message_bytes = std::numeric_limits<uint32_t>::max();
  ExpectRefused(request, "message_offset");
  request = Request(good, system);
  request.reply_bytes = 4096;
  ExpectRefused(request, "reply_bytes");
  for (const uint32_t places : {0U, 3U, 5U}) {
    request = Request(good, system);
    request.num_places = places;
    request.reply_bytes = static_cast<uint32_t>(v1::ShmReplyRoom(places));
    ExpectRefused(request, "num_places");
  }
  request.num_places = std::numeric_limits<uint32_t>::max();
  ExpectRefused(request, "reply_bytes");
  request = Request(good, system);
  request.places_offset = caller_->welcome().mapping_bytes - 8;
  ExpectRefused(request, "places_offset");
  request = Request(v1::FactorSolveManyRequest(), {system});
  ExpectRefused(request, "spec.num_blocks");
  v1::FactorSolveManyRequest none;
  *none.mutable_spec() = good.spec();
  ExpectRefused(Request(none, {system}), "handle");
  none.add_handle("short");
  ExpectRefused(Request(none, {system}), "handle[0]");
  none.set_handle(0, std::string(24, 'x'));
  none.set_matrix("x");
  ExpectRefused(Request(none, {system}), "matrix, rhs");
  EXPECT_EQ(caller_->Ask(Request(good, system)).code, 0);
}

TEST_F(ShmFactorSolveTest, PlacesAreChecked) {
  Start(options_);
  Open();
  const v1::FactorSolveRequest message = Head(Matrix(3), 1);
  const System good = Put(0, Matrix(3), Rhs(1));
  const uint64_t end = caller_->welcome().mapping_bytes;
  for (size_t i = 0; i < good.size(); ++i) {
    const std::string name = absl::StrCat("places[", i, "]");
    for (const uint64_t offset : {uint64_t{0}, caller_->data() - 8, end, end - 8, kBeyond,
                                  kBeyond - 7, uint64_t{1} << 40, caller_->data() + 4}) {
      System bad = good;
      bad[i].offset = offset;
      ExpectRefused(Request(message, bad), name);
    }
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{8}, kBeyond, uint64_t{1} << 63}) {
      System bad = good;
      bad[i].bytes = bytes;
      // Right-hand sides are shorter or longer than what comes after them.
      ExpectRefused(Request(message, bad), i == kRhs && bytes <= 8 ? "places[3]" : name);
    }
  }
  System bad = good;
  bad[kSolution].offset = bad[kRhs].offset + 8;
  ExpectRefused(Request(message, bad), "places[3]");
  // A solution in its own matrix is the caller's own harm.
  bad = good;
  bad[kSolution].offset = bad[kDiagonal].offset;
  EXPECT_EQ(caller_->Ask(Request(message, bad)).code, 0);
  EXPECT_EQ(caller_->Ask(Request(message, Put(0, Matrix(3), Rhs(1)))).code, 0);
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
