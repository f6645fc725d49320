// Frames of refactors in a SolveStream over a real socket: the bits and the failures of a
// FactorSolveMany, what is malformed, limits, quotas, cancelling, drains, and a table that is left
// alone.
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/calls/refactor_requests.h"
#include "tests/integration/stream/solve_stream_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

using problems::RandomSpd;

class StreamRefactorTest : public SolveStreamTest {
 protected:
  static constexpr size_t kRows = 48;

  static HostMatrix Matrix(int seed, int64_t blocks = 12, int64_t size = 4) {
    return HostMatrix(RandomSpd(blocks, size, seed, 100), Scalar::kFloat64);
  }
  static HostMatrix Bad() {
    HostMatrix bad = Matrix(3);
    bad.SetDiagonal(7, 0, 0, -1);
    return bad;
  }
  std::vector<std::string> Held(int count, const HostMatrix& matrix = Matrix(1)) {
    std::vector<std::string> handles;
    for (int i = 0; i < count; ++i) handles.push_back(Factor(matrix));
    return handles;
  }
  // Checks that a Solve with the handle now uses `matrix`.
  void ExpectHolds(const std::string& handle, const HostMatrix& matrix) {
    const std::vector<double> b = RhsOfSystem(matrix, 9, 1);
    ExpectSolves(matrix, Solve(handle, b), b);
  }
  static v1::SolveStreamRequest Refactor(uint64_t id, v1::FactorSolveManyRequest request) {
    v1::SolveStreamRequest message;
    message.set_id(id);
    *message.mutable_refactor() = std::move(request);
    return message;
  }
  static v1::SolveStreamRequest Cancel(uint64_t id) {
    v1::SolveStreamRequest message;
    message.set_id(id);
    message.mutable_cancel();
    return message;
  }
  FrameAnswer Ask(const v1::SolveStreamRequest& message) {
    EXPECT_TRUE(stream_->Write(message));
    std::map<uint64_t, FrameAnswer> answers;
    EXPECT_EQ(Next(answers), message.id());
    return answers[message.id()];
  }
  FrameAnswer Ask(uint64_t id, v1::FactorSolveManyRequest request) {
    return Ask(Refactor(id, std::move(request)));
  }
  // This message ends the stream with INVALID_ARGUMENT about `field`.
  void ExpectEnds(const v1::SolveStreamRequest& message, const std::string& field) {
    OpenStream();
    stream_->Write(message);
    std::map<uint64_t, FrameAnswer> answers;
    while (Next(answers) != 0) {
    }
    EXPECT_TRUE(IsInvalid(stream_->Finish(), field));
  }
  // So many systems, of which none failed, with a right-hand side each.
  static void ExpectAll(const FrameAnswer& answer, int systems) {
    EXPECT_EQ(answer.reply.growth_size(), systems) << answer.status.ShortDebugString();
    EXPECT_EQ(answer.reply.failure_size(), 0) << answer.reply.ShortDebugString();
    EXPECT_EQ(answer.solution.size(), static_cast<size_t>(systems) * kRows * sizeof(double));
  }
  static std::string FieldOf(const FrameAnswer& answer) {
    const auto detail = DetailOf<v1::InvalidField>(answer.status);
    return detail ? detail->field() : answer.status.ShortDebugString();
  }
  v1::SolveManyReply CallMany(const v1::FactorSolveManyRequest& request) {
    v1::SolveManyReply reply;
    EXPECT_TRUE(IsOk(stub().FactorSolveMany(NewContext().get(), request, &reply)));
    return reply;
  }
  void Restart(const server::ServerOptions& options, bool gated = false) {
    EXPECT_TRUE(IsOk(Close()));
    server_->Drain();
    Open(options, gated);
  }
  // The device stands before the closed gate with the stream's request 1, a refactor of `handle`.
  void OccupyTheDevice(const std::string& handle) {
    gate_->Close();
    ASSERT_TRUE(stream_->Write(Refactor(1, FactorSolveManyOf({handle}, {Matrix(2)}))));
    gate_->WaitForDevice();
  }
};

TEST_F(StreamRefactorTest, HasTheBitsOfTheCallAndOfARefactorAndASolve) {
  const std::vector<HostMatrix> matrices = {Matrix(11), Matrix(12), Matrix(13)};
  const std::vector<std::string> framed = Held(3), called = Held(3), apart = Held(3);
  const FrameAnswer answer = Ask(1, FactorSolveManyOf(framed, matrices, 2));
  ASSERT_EQ(answer.status.code(), 0) << answer.status.ShortDebugString();
  ASSERT_EQ(answer.reply.failure_size(), 0) << answer.reply.ShortDebugString();
  EXPECT_EQ(answer.reply.cost().batch_items(), 3);
  v1::SolveManyReply frame = answer.reply, call = CallMany(FactorSolveManyOf(called, matrices, 2));
  frame.clear_cost();
  call.clear_cost();
  EXPECT_TRUE(frame.SerializeAsString() == call.SerializeAsString());
  v1::FactorRequest refactor = FactorRequestOf(matrices[0]);
  refactor.clear_system();
  for (size_t i = 0; i < matrices.size(); ++i) {
    *refactor.add_system() = DataOf(matrices[i]);
    refactor.mutable_options()->add_handle(apart[i]);
  }
  Factor(refactor);
  std::string solutions;
  for (size_t i = 0; i < matrices.size(); ++i) {
    solutions += BytesOf(Solve(apart[i], RhsOfSystem(matrices[i], i, 2), 2));
    ExpectHolds(framed[i], matrices[i]);
  }
  EXPECT_TRUE(answer.solution == solutions);
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_EQ(Ended("SolveStream", "OK"), 1);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

// One that a work thread parses, float32, and options.
TEST_F(StreamRefactorTest, LongMessagesPalettesAndOptions) {
  const HostMatrix large = Matrix(2, 64, 16);
  const std::vector<std::string> handles = Held(2, Matrix(1, 64, 16));
  v1::FactorSolveManyRequest request = FactorSolveManyOf(handles, {large, Matrix(3, 64, 16)});
  request.mutable_options()->set_residual(true);
  request.set_keep_matrix(true);
  ASSERT_GT(request.ByteSizeLong(), size_t{1} << 19);
  FrameAnswer answer = Ask(1, request);
  ASSERT_EQ(answer.reply.backward_error_size(), 2) << answer.status.ShortDebugString();
  EXPECT_LT(answer.reply.backward_error(0), 1e-14);
  EXPECT_TRUE(answer.reply.matrix_kept(1));
  ExpectHolds(handles[0], large);

  const auto palette = [](uint64_t seed) {
    return HostMatrix(
        problems::KalmanPalette({.states = 4, .observations = 8, .steps = 12, .seed = seed}),
        Scalar::kFloat64, {.palette = true});
  };
  const std::vector<std::string> small = Held(2);
  answer = Ask(2, FactorSolveManyOf(small, {palette(1), palette(2)}));
  ASSERT_EQ(answer.reply.failure_size(), 0) << answer.reply.ShortDebugString();
  const size_t bytes = kRows * sizeof(double);
  ExpectSolves(palette(2), ValuesOf(answer.solution.substr(bytes)), RhsOfSystem(palette(2), 1, 1));
  ExpectHolds(small[0], palette(1));
}

TEST_F(StreamRefactorTest, EachSystemFailsByItselfAsInTheCall) {
  const std::vector<std::string> handles = Held(4);
  ASSERT_TRUE(IsOk(ReleaseStatus({handles[2]})));
  v1::FactorSolveManyRequest request =
      FactorSolveManyOf(handles, {Matrix(5), Bad(), Matrix(6), Matrix(7)});
  request.set_check_finite(true);
  request.mutable_rhs()->replace(3 * kRows * 8, 8, BytesOf({std::nan("")}));
  const FrameAnswer answer = Ask(1, request);
  ASSERT_EQ(answer.reply.failure_size(), 3) << answer.reply.ShortDebugString();
  EXPECT_EQ(DetailOf<v1::NotPositiveDefinite>(answer.reply.failure(0).status())->system(), 1);
  EXPECT_TRUE(DetailOf<v1::HandleNotFound>(answer.reply.failure(1).status()));
  EXPECT_TRUE(DetailOf<v1::InvalidField>(answer.reply.failure(2).status()));
  const size_t bytes = kRows * sizeof(double);
  EXPECT_EQ(answer.solution.substr(bytes), std::string(3 * bytes, '\0'));
  v1::SolveManyReply frame = answer.reply, call = CallMany(request);
  frame.clear_cost();
  call.clear_cost();
  EXPECT_TRUE(frame.SerializeAsString() == call.SerializeAsString());
  ExpectHolds(handles[0], Matrix(5));
  ExpectHolds(handles[1], Matrix(1));
  ExpectHolds(handles[3], Matrix(1));
}

TEST_F(StreamRefactorTest, WhatIsWrongWithTheMessageFailsThisFrameAlone) {
  const std::vector<std::string> handles = Held(2);
  const v1::FactorSolveManyRequest good = FactorSolveManyOf(handles, {Matrix(2), Matrix(3)});
  using Change = std::function<void(v1::FactorSolveManyRequest&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"handle", [](auto& r) { r.clear_handle(); }},
      {"handle", [&](auto& r) { r.set_handle(1, handles[0]); }},
      {"handle",
       [&](auto& r) {
         while (r.handle_size() <= 4096) r.add_handle(handles[0]);
       }},
      {"handle[1]", [](auto& r) { r.set_handle(1, "short"); }},
      {"matrix", [](auto& r) { r.mutable_matrix()->pop_back(); }},
      {"matrix", [](auto& r) { r.clear_matrix(); }},
      {"rhs", [](auto& r) { r.set_num_rhs(2); }},
      {"rhs", [](auto& r) { r.clear_rhs(); }},
      {"num_rhs", [](auto& r) { r.set_num_rhs(-1); }},
      {"num_rhs", [](auto& r) { r.set_num_rhs(int64_t{1} << 60); }},
      {"spec.num_blocks", [](auto& r) { r.clear_spec(); }},
      {"accuracy", [](auto& r) { r.set_accuracy(static_cast<v1::Accuracy>(9)); }},
      {"options.priority",
       [](auto& r) { r.mutable_options()->set_priority(static_cast<v1::PriorityClass>(9)); }},
  };
  uint64_t id = 0;
  for (const auto& [field, change] : changes) {
    v1::FactorSolveManyRequest wrong = good;
    change(wrong);
    EXPECT_EQ(FieldOf(Ask(++id, wrong)), "refactor." + field);
  }
  v1::SolveStreamRequest message = Refactor(++id, good);
  message.set_replace_last(true);
  EXPECT_EQ(FieldOf(Ask(message)), "replace_last");
  message = Refactor(++id, good);
  message.mutable_timeout();
  EXPECT_EQ(FieldOf(Ask(message)), "timeout");
  // A refactor that is no FactorSolveManyRequest, in a message that has an id.
  message.Clear();
  message.set_id(++id);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      v1::SolveStreamRequest::kRefactorFieldNumber, "\x0a\xff");
  EXPECT_EQ(Ask(message).status.code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const std::string& handle : handles) ExpectHolds(handle, Matrix(1));
  ExpectAll(Ask(1, good), 2);
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(StreamRefactorTest, WhatLeavesTheStreamInDoubtEndsIt) {
  const std::vector<std::string> handles = Held(1);
  const v1::SolveStreamRequest good = Refactor(1, FactorSolveManyOf(handles, {Matrix(2)}));
  // Another part in the same message. The message does not know this one, and sends it last.
  const auto with = [](v1::SolveStreamRequest message, int field, const std::string& bytes) {
    message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(field, bytes);
    return message;
  };
  const std::string refactor = good.refactor().SerializeAsString();
  ExpectEnds(with(Chunk(1, "bytes"), v1::SolveStreamRequest::kRefactorFieldNumber, refactor),
             "part");
  ExpectEnds(with(good, v1::SolveStreamRequest::kCancelFieldNumber, ""), "part");
  // The last one counts, as for the parser.
  OpenStream();
  const FrameAnswer last =
      Ask(with(Cancel(1), v1::SolveStreamRequest::kRefactorFieldNumber, refactor));
  ExpectAll(last, 1);
  // An id that is outstanding, and a chunk for what is whole.
  Restart(Options(), /*gated=*/true);
  const std::string handle = Factor(Matrix(1));
  const int64_t reserved = ReservedBytes();
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handle));
  ASSERT_TRUE(stream_->Write(Refactor(1, FactorSolveManyOf({handle}, {Matrix(2)}))));
  std::map<uint64_t, FrameAnswer> answers;
  EXPECT_EQ(Next(answers), 0u);
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "id"));
  gate_->Open();
  OpenStream();
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handle));
  ASSERT_TRUE(stream_->Write(Chunk(1, "more")));
  EXPECT_EQ(Next(answers), 0u);
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "id"));
  gate_->Open();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0 && ReservedBytes() == reserved; }));
}

TEST_F(StreamRefactorTest, FramesOfSolvesSeeTheNewFactors) {
  const std::vector<std::string> handles = Held(2);
  ExpectAll(Ask(1, FactorSolveManyOf({handles[1]}, {Matrix(4)})), 1);
  v1::SolveStreamRequest frame;
  frame.set_id(2);
  frame.mutable_many()->set_handles(handles[0] + handles[1]);
  const std::vector<double> b = RhsOfSystem(Matrix(1), 0, 2);
  frame.mutable_many()->set_rhs(BytesOf(b));
  const FrameAnswer answer = Ask(frame);
  ASSERT_EQ(answer.reply.backward_error_bound_size(), 2) << answer.status.ShortDebugString();
  const std::vector<double> x = ValuesOf(answer.solution);
  ExpectSolves(Matrix(1), {x.begin(), x.begin() + kRows}, {b.begin(), b.begin() + kRows});
  ExpectSolves(Matrix(4), {x.begin() + kRows, x.end()}, {b.begin() + kRows, b.end()});
}

TEST_F(StreamRefactorTest, MayBeCancelledAndHasATimeOfItsOwn) {
  Restart(Options(), /*gated=*/true);
  const std::vector<std::string> handles = Held(3);
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handles[0]));
  ASSERT_TRUE(stream_->Write(Refactor(2, FactorSolveManyOf({handles[1]}, {Matrix(2)}))));
  v1::SolveStreamRequest timed = Refactor(3, FactorSolveManyOf({handles[2]}, {Matrix(2)}));
  timed.mutable_timeout()->set_nanos(50'000'000);
  ASSERT_TRUE(stream_->Write(timed));
  ASSERT_TRUE(stream_->Write(Cancel(2)));
  std::map<uint64_t, FrameAnswer> answers;
  Next(answers);
  Next(answers);
  EXPECT_EQ(answers[2].status.code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(answers[3].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  gate_->Open();
  EXPECT_EQ(Next(answers), 1u);
  EXPECT_EQ(answers[1].status.code(), 0) << answers[1].status.ShortDebugString();
  ExpectHolds(handles[0], Matrix(2));
  ExpectHolds(handles[1], Matrix(1));
  ExpectHolds(handles[2], Matrix(1));
  ExpectAll(Ask(2, FactorSolveManyOf(handles, {Matrix(5), Matrix(6), Matrix(7)})), 3);
  EXPECT_TRUE(IsOk(Close()));
}

// A request that replaces the last one of its handle leaves a refactor of it alone.
TEST_F(StreamRefactorTest, IsNotReplaced) {
  Restart(Options(), /*gated=*/true);
  const std::string handle = Factor(Matrix(1));
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handle));
  v1::SolveStreamRequest replacing;
  replacing.set_id(2);
  replacing.mutable_request()->set_handle(handle);
  replacing.mutable_request()->set_num_rhs(1);
  replacing.mutable_request()->set_rhs(BytesOf(RhsOfSystem(Matrix(1), 0, 1)));
  replacing.set_replace_last(true);
  ASSERT_TRUE(stream_->Write(replacing));
  gate_->WaitForDevice(/*tracks=*/2);
  gate_->Open();
  std::map<uint64_t, v1::SolveStreamReply> replies;
  v1::SolveStreamReply message;
  while (replies.size() < 2 && stream_->Read(&message)) replies[message.id()] = message;
  EXPECT_TRUE(replies[1].has_many()) << replies[1].ShortDebugString();
  EXPECT_TRUE(replies[2].has_reply()) << replies[2].ShortDebugString();
}

TEST_F(StreamRefactorTest, AStreamThatIsFullReadsNoFurtherOne) {
  server::ServerOptions options = Options();
  options.max_stream_requests = 2;
  Restart(options, /*gated=*/true);
  const std::vector<std::string> handles = Held(6);
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handles[0]));
  for (uint64_t id = 2; id <= 6; ++id) {
    ASSERT_TRUE(stream_->Write(
        Refactor(id, FactorSolveManyOf({handles[id - 1]}, {Matrix(static_cast<int>(id))}))));
  }
  gate_->Open();
  std::map<uint64_t, FrameAnswer> answers;
  for (int i = 0; i < 6; ++i) Next(answers);
  ASSERT_EQ(answers.size(), 6u);
  for (const auto& [id, answer] : answers) ExpectAll(answer, 1);
}

TEST_F(StreamRefactorTest, LargeSolutionsComeInChunks) {
  server::ServerOptions options = Options();
  options.stream_chunk_bytes = 1024;
  Restart(options);
  const std::vector<std::string> framed = Held(3), called = Held(3);
  const std::vector<HostMatrix> matrices = {Matrix(2), Bad(), Matrix(4)};
  const FrameAnswer answer = Ask(1, FactorSolveManyOf(framed, matrices, 3));
  EXPECT_TRUE(answer.reply.solution().empty());
  EXPECT_EQ(answer.reply.failure_size(), 1);
  EXPECT_EQ(answer.solution.size(), 3 * 3 * kRows * sizeof(double));
  EXPECT_EQ(answer.chunks, static_cast<int>((answer.solution.size() + 1023) / 1024));
  EXPECT_TRUE(answer.solution == CallMany(FactorSolveManyOf(called, matrices, 3)).solution());
}

// Its message and its solutions count for what a stream may hold, and what it takes once parsed for
// the host's memory; where they do not fit it is refused alone.
TEST_F(StreamRefactorTest, WhatDoesNotFitIsRefusedAlone) {
  const std::vector<HostMatrix> two = {Matrix(2), Matrix(3)};
  const v1::FactorSolveManyRequest shape = FactorSolveManyOf({"", ""}, two);
  const auto held = static_cast<int64_t>(shape.matrix().size() + 2 * shape.rhs().size());
  server::ServerOptions options = Options();
  options.max_stream_bytes = held - 1;
  Restart(options);
  std::vector<std::string> handles = Held(2);
  EXPECT_TRUE(IsOverLimit(Ask(1, FactorSolveManyOf(handles, two)).status, "max_stream_bytes", held,
                          held - 1));
  ExpectAll(Ask(1, FactorSolveManyOf({handles[0]}, {Matrix(2)})), 1);

  options = Options();
  options.core.max_inflight_request_bytes = 200'000;
  Restart(options);
  handles = Held(2);
  // Its message, or its message with its solutions.
  for (const int64_t num_rhs : {300, 200}) {
    ASSERT_TRUE(Eventually([&] { return HostBytes() == 0; }));  // of what went before
    const FrameAnswer refused = Ask(1, FactorSolveManyOf(handles, two, num_rhs));
    const auto over = DetailOf<v1::LimitExceeded>(refused.status);
    ASSERT_TRUE(over) << refused.status.ShortDebugString();
    EXPECT_EQ(over->limit(), "max_inflight_request_bytes");
  }
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  ExpectAll(Ask(1, FactorSolveManyOf(handles, two)), 2);
  ExpectHolds(handles[0], Matrix(2));
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(StreamRefactorTest, ReservesAllOrRefactorsNone) {
  server::ServerOptions options = Options();
  options.device.memory_bytes = int64_t{1} << 20;
  Restart(options);
  std::vector<std::string> handles;
  std::vector<HostMatrix> matrices;
  for (int i = 0; i < 40; ++i) {
    v1::FactorRequest request = FactorRequestOf(Matrix(1));
    request.mutable_options()->set_pin(true);
    v1::FactorReply reply;
    if (!FactorStatus(request, &reply).ok()) break;
    handles.push_back(reply.system(0).handle());
    matrices.push_back(Matrix(2));
  }
  const FrameAnswer answer = Ask(1, FactorSolveManyOf(handles, matrices, 64));
  EXPECT_EQ(answer.status.code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << answer.reply.failure_size();
  ExpectHolds(handles[0], Matrix(1));
  EXPECT_TRUE(IsOk(Close()));
}

class StreamRefactorQuotasTest : public StreamRefactorTest {
 protected:
  void OpenWith(const std::string& quotas, int systems = 2) {
    std::ofstream(folder_ / "tenants") << "tenant { name: \"small\" identity { metadata: \"small\" "
                                       << "} quotas { " << quotas << " } }";
    server::ServerOptions options = Options();
    options.access.tenants_file = folder_ / "tenants";
    Restart(options);
    context_ = NewContext("small");
    stream_ = stub().SolveStream(context_.get());
    v1::FactorReply factored;  // in one call, which rates let pass
    ASSERT_TRUE(IsOk(FactorStatus(FactorRequestOf(Matrix(1), systems), &factored, "small")));
    for (const auto& system : factored.system()) handles_.push_back(system.handle());
  }
  // Refused by this quota, which is asked for so much.
  static void ExpectOver(const FrameAnswer& answer, const std::string& quota, double asked) {
    const auto over = DetailOf<v1::QuotaExceeded>(answer.status);
    ASSERT_TRUE(over.has_value()) << answer.status.ShortDebugString();
    EXPECT_EQ(over->quota(), quota);
    EXPECT_EQ(over->asked(), asked);
  }
  v1::FactorSolveManyRequest All() const {
    return FactorSolveManyOf(handles_, std::vector<HostMatrix>(handles_.size(), Matrix(2)));
  }

  const TempFolder folder_;
  std::vector<std::string> handles_;
};

TEST_F(StreamRefactorQuotasTest, EachSystemCountsForTheRate) {
  ASSERT_NO_FATAL_FAILURE(OpenWith("requests_per_second: 3", 40));
  EXPECT_EQ(Ask(1, All()).reply.growth_size(), 40);  // more than a second's, at once
  ExpectOver(Ask(2, All()), "requests_per_second", 40);
}

TEST_F(StreamRefactorQuotasTest, ItsBytesCountForTheUploads) {
  ASSERT_NO_FATAL_FAILURE(OpenWith("upload_bytes_per_second: \"1\""));
  const v1::FactorSolveManyRequest all = All();
  ExpectOver(Ask(1, all), "upload_bytes_per_second",
             static_cast<double>(all.matrix().size() + all.rhs().size()));
}

TEST_F(StreamRefactorQuotasTest, ItsMessageCountsForTheHostAndTheStreamGoesOn) {
  ASSERT_NO_FATAL_FAILURE(OpenWith("host_bytes: \"12KiB\""));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 0; }));  // of what went before
  const FrameAnswer answer = Ask(1, All());
  const auto over = DetailOf<v1::QuotaExceeded>(answer.status);
  ASSERT_TRUE(over.has_value()) << answer.status.ShortDebugString();
  EXPECT_EQ(over->quota(), "host_bytes");
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  ExpectAll(Ask(2, FactorSolveManyOf({handles_[0]}, {Matrix(2)})), 1);
}

TEST_F(StreamRefactorTest, WhatWasAcceptedIsAnsweredInADrainAndNothingElse) {
  Restart(Options(), /*gated=*/true);
  const std::vector<std::string> handles = Held(2);
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handles[0]));
  server().StartDrain();
  stream_->Write(Refactor(2, FactorSolveManyOf({handles[1]}, {Matrix(2)})));
  std::map<uint64_t, FrameAnswer> answers;
  EXPECT_EQ(Next(answers), 2u);
  EXPECT_TRUE(DetailOf<v1::ServerDraining>(answers[2].status));
  gate_->Open();
  EXPECT_EQ(Next(answers), 1u);
  ExpectAll(answers[1], 1);
  EXPECT_EQ(Next(answers), 0u);
  EXPECT_TRUE(DetailOf<v1::ServerDraining>(stream_->Finish()));
}

TEST_F(StreamRefactorTest, AClientThatVanishesLeavesNothing) {
  Restart(Options(), /*gated=*/true);
  const std::vector<std::string> handles = Held(2);
  const int64_t reserved = ReservedBytes();
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice(handles[0]));
  ASSERT_TRUE(stream_->Write(Refactor(2, FactorSolveManyOf({handles[1]}, {Matrix(2)}))));
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") >= 1; }));
  context_->TryCancel();
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 0; }));
  gate_->Open();
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0 && ReservedBytes() == reserved; }));
  ExpectHolds(handles[1], Matrix(1));
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
