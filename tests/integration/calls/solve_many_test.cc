// SolveMany and the frames of a SolveStream over a real socket: the bits of single Solves, failures
// alone, what is malformed, limits, cancelling, and what a stream remembers.
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "tests/integration/stream/solve_stream_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

using problems::RandomColumns;

// Some systems of several shapes and both scalars, and solves with them.
class SolveManyTest : public SolveStreamTest {
 protected:
  struct Held {
    std::string handle;
    int64_t rows = 0;
    Scalar scalar = Scalar::kFloat64;
  };
  struct Asked {
    size_t of = 0;  // in held_
    int64_t num_rhs = 1;
  };

  void Hold() {
    for (const auto& [blocks, size, scalar] :
         std::vector<std::tuple<int64_t, int64_t, Scalar>>{{5, 3, Scalar::kFloat64},
                                                           {5, 3, Scalar::kFloat64},
                                                           {4, 8, Scalar::kFloat32},
                                                           {9, 2, Scalar::kFloat64}}) {
      const problems::Problem problem =
          problems::RandomSpd(blocks, size, static_cast<int>(held_.size()) + 5, 100);
      held_.push_back({Factor(HostMatrix(problem, scalar)), blocks * size, scalar});
    }
  }
  std::string RhsOf(const Asked& asked, int seed) const {
    const Held& held = held_[asked.of];
    return BytesOf(RandomColumns(held.rows, asked.num_rhs, seed), held.scalar);
  }
  v1::SolveManyRequest Many(const std::vector<Asked>& solves) const {
    v1::SolveManyRequest many;
    for (size_t i = 0; i < solves.size(); ++i) {
      const std::string rhs = RhsOf(solves[i], static_cast<int>(i));
      *many.mutable_handles() += held_[solves[i].of].handle;
      many.add_num_rhs(static_cast<uint32_t>(solves[i].num_rhs));
      many.add_rhs_bytes(static_cast<uint32_t>(rhs.size()));
      *many.mutable_rhs() += rhs;
    }
    return many;
  }
  // As many equal solves with the first two systems, without a word of their sizes.
  v1::SolveManyRequest Plain(int solves = 2) const {
    v1::SolveManyRequest many;
    for (int i = 0; i < solves; ++i) {
      *many.mutable_handles() += held_[static_cast<size_t>(i % 2)].handle;
      *many.mutable_rhs() += RhsOf({static_cast<size_t>(i % 2)}, i);
    }
    return many;
  }
  // The bits of Solves of their own.
  void ExpectSolo(const std::vector<Asked>& solves, const v1::SolveManyReply& reply,
                  const std::string& solution, const std::set<size_t>& failed = {}) {
    ASSERT_EQ(reply.failure_size(), static_cast<int>(failed.size())) << reply.ShortDebugString();
    for (const v1::SolveFailure& failure : reply.failure()) {
      EXPECT_TRUE(failed.contains(failure.solve())) << failure.ShortDebugString();
    }
    ASSERT_EQ(reply.backward_error_bound_size(), static_cast<int>(solves.size()));
    size_t at = 0;
    for (size_t i = 0; i < solves.size(); ++i) {
      SCOPED_TRACE(i);
      const std::string rhs = RhsOf(solves[i], static_cast<int>(i));
      const std::string x = solution.substr(at, rhs.size());
      at += rhs.size();
      if (failed.contains(i)) {
        EXPECT_EQ(x, std::string(rhs.size(), '\0'));
        continue;
      }
      v1::SolveRequest request;
      request.set_handle(held_[solves[i].of].handle);
      request.set_num_rhs(solves[i].num_rhs);
      request.set_rhs(rhs);
      v1::SolveReply solo;
      ASSERT_TRUE(IsOk(SolveStatus(request, &solo)));
      EXPECT_TRUE(x == solo.solution());
      EXPECT_EQ(reply.backward_error_bound(static_cast<int>(i)), solo.backward_error_bound());
    }
    EXPECT_EQ(at, solution.size());
  }
  grpc::Status Call(const v1::SolveManyRequest& request, v1::SolveManyReply* reply = nullptr,
                    const std::string& caller = "") {
    v1::SolveManyReply unused;
    return stub().SolveMany(NewContext(caller).get(), request, reply ? reply : &unused);
  }
  // Until the gate opens, by the stream's request 1.
  void OccupyTheDevice() {
    server_->Drain();
    Open(Options(), /*gated=*/true);
    Hold();
    gate_->Close();
    ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));
    gate_->WaitForDevice();
  }
  static v1::SolveStreamRequest Frame(uint64_t id, v1::SolveManyRequest many) {
    v1::SolveStreamRequest message;
    message.set_id(id);
    *message.mutable_many() = std::move(many);
    return message;
  }

  FrameAnswer Ask(uint64_t id, v1::SolveManyRequest many) {
    EXPECT_TRUE(stream_->Write(Frame(id, std::move(many))));
    std::map<uint64_t, FrameAnswer> answers;
    EXPECT_EQ(Next(answers), id);
    return answers[id];
  }
  // The call, and the frame, are refused with INVALID_ARGUMENT about `field`; the stream goes on.
  void ExpectRefused(const v1::SolveManyRequest& many, const std::string& field) {
    SCOPED_TRACE(field);
    EXPECT_TRUE(IsInvalid(Call(many), field));
    OpenStream();
    const FrameAnswer refused = Ask(1, many);
    EXPECT_EQ(refused.status.code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailOf<v1::InvalidField>(refused.status)->field(), "many." + field);
    const FrameAnswer next = Ask(1, Many(mixed_));
    ExpectSolo(mixed_, next.reply, next.solution);
    EXPECT_TRUE(IsOk(Close()));
  }

  std::vector<Held> held_;
  const std::vector<Asked> mixed_ = {{0}, {3, 2}, {2, 2}, {1, 5}, {0, 3}, {2, 6}, {3}, {0}};
};

TEST_F(SolveManyTest, MixedSolvesHaveTheBitsOfSingleOnes) {
  Hold();
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(Many(mixed_), &reply)));
  ExpectSolo(mixed_, reply, reply.solution());
  EXPECT_GE(reply.cost().batch_requests(), 8);
  EXPECT_TRUE(Eventually([&] { return Ended("SolveMany", "OK") == 1; }));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(SolveManyTest, SizesThatAreAllAlikeNeedNoWord) {
  Hold();
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(Plain(), &reply)));
  ExpectSolo({{0}, {1}}, reply, reply.solution());
}

TEST_F(SolveManyTest, AFrameHasTheSameBits) {
  Hold();
  for (const uint64_t id : {1, 2}) {
    const FrameAnswer answer = Ask(id, Many(mixed_));
    ExpectSolo(mixed_, answer.reply, answer.solution);
  }
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_EQ(Metric("blockd_requests_total", "method=\"SolveStream\",status=\"OK\""), 2);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(SolveManyTest, SolvesFailAlone) {
  Hold();
  ASSERT_TRUE(IsOk(ReleaseStatus({held_[2].handle})));
  const std::vector<Asked> solves = {{2}, {0}, {2, 3}, {1, 2}};
  v1::SolveManyRequest many = Many(solves);
  many.set_num_rhs(3, 1);  // though there are bytes for 2
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(many, &reply)));
  ExpectSolo(solves, reply, reply.solution(), {0, 2, 3});
  EXPECT_EQ(DetailOf<v1::HandleNotFound>(reply.failure(0).status())->reason(),
            v1::HandleNotFound::RELEASED);
  EXPECT_EQ(DetailOf<v1::InvalidField>(reply.failure(2).status())->field(), "rhs");
  const FrameAnswer answer = Ask(1, many);
  ExpectSolo(solves, answer.reply, answer.solution, {0, 2, 3});
}

TEST_F(SolveManyTest, AFrameWithAHandleThatIsReleasedFailsThere) {
  Hold();
  const std::vector<Asked> solves = {{0}, {1}, {3}};
  FrameAnswer answer = Ask(1, Many(solves));
  ExpectSolo(solves, answer.reply, answer.solution);
  ASSERT_TRUE(IsOk(ReleaseStatus({held_[1].handle})));
  answer = Ask(2, Many(solves));
  ExpectSolo(solves, answer.reply, answer.solution, {1});
  EXPECT_EQ(DetailOf<v1::HandleNotFound>(answer.reply.failure(0).status())->reason(),
            v1::HandleNotFound::RELEASED);
}

TEST_F(SolveManyTest, ResidualsAreOfEachSolve) {
  v1::FactorRequest request = FactorRequestOf(matrix_);
  request.mutable_options()->set_keep_matrix(true);
  const std::string kept = Factor(request).system(0).handle();
  v1::SolveManyRequest many;
  many.set_handles(kept + handle_);
  many.set_rhs(BytesOf(RandomColumns(problem_.rows(), 2, 1)));
  many.mutable_options()->set_residual(true);
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(many, &reply)));
  ASSERT_EQ(reply.backward_error_size(), 2);
  EXPECT_GT(reply.backward_error(0), 0);
  EXPECT_LT(reply.backward_error(0), 1e-14);
  ASSERT_EQ(reply.failure_size(), 1);
  EXPECT_EQ(reply.failure(0).status().code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SolveManyTest, WhatIsWrongWithTheMessageNamesItsField) {
  Hold();
  const auto broken = [&](auto change) {
    v1::SolveManyRequest many = Many({{0}, {1}});
    change(many);
    return many;
  };
  using Change = void (*)(v1::SolveManyRequest&);
  const std::vector<std::pair<std::string, Change>> changes = {
      {"handles", [](v1::SolveManyRequest& m) { m.clear_handles(); }},
      {"handles", [](v1::SolveManyRequest& m) { m.mutable_handles()->pop_back(); }},
      {"handles", [](v1::SolveManyRequest& m) { m.set_handles("short"); }},
      {"num_rhs", [](v1::SolveManyRequest& m) { m.add_num_rhs(1); }},
      {"rhs_bytes", [](v1::SolveManyRequest& m) { m.add_rhs_bytes(1); }},
      {"rhs_bytes", [](v1::SolveManyRequest& m) { m.set_rhs_bytes(0, 0xffffffff); }},
      {"rhs_bytes", [](v1::SolveManyRequest& m) { m.mutable_rhs()->pop_back(); }},
      {"rhs_bytes", [](v1::SolveManyRequest& m) { m.clear_rhs(); }},
      {"rhs",
       [](v1::SolveManyRequest& m) {
         m.clear_rhs_bytes();
         m.mutable_rhs()->pop_back();
       }},
      {"rhs",
       [](v1::SolveManyRequest& m) {
         m.clear_rhs_bytes();
         m.clear_rhs();
       }},
      {"rhs",
       [](v1::SolveManyRequest& m) {
         for (uint32_t& bytes : *m.mutable_rhs_bytes()) bytes = 0;
         m.clear_rhs();
       }},
      {"options.priority",
       [](v1::SolveManyRequest& m) {
         m.mutable_options()->set_priority(static_cast<v1::PriorityClass>(9));
       }},
  };
  for (const auto& [field, change] : changes) ExpectRefused(broken(change), field);
  ExpectServes();
}

TEST_F(SolveManyTest, TooManyOfAnythingAreRefused) {
  Hold();
  constexpr int kMost = 65536;
  v1::SolveManyRequest many = Plain();
  for (int i = 0; i <= kMost; ++i) *many.mutable_handles() += held_[0].handle;
  ExpectRefused(many, "handles");
  many = Plain();
  for (int i = 0; i <= kMost; ++i) many.add_num_rhs(1);
  EXPECT_TRUE(IsInvalid(Call(many), "num_rhs"));
  OpenStream();
  stream_->Write(Frame(1, many));
  std::map<uint64_t, FrameAnswer> answers;
  EXPECT_EQ(Next(answers), 0u);
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "many.num_rhs"));
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  ExpectServes();
}

TEST_F(SolveManyTest, AsManySolvesAsThereMayBe) {
  Hold();
  constexpr int kMost = 65536;
  v1::SolveManyRequest many;
  for (int i = 0; i < kMost; ++i) *many.mutable_handles() += held_[1].handle;
  many.set_rhs(std::string(kMost * static_cast<size_t>(held_[1].rows) * sizeof(double), '\0'));
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(many, &reply)));
  EXPECT_EQ(reply.failure_size(), 0);
  EXPECT_EQ(reply.solution(), many.rhs());
}

TEST_F(SolveManyTest, ManySmallSolvesThatAllFailAreAnswered) {
  Hold();
  v1::SolveManyRequest many;
  for (int i = 0; i < 3000; ++i) *many.mutable_handles() += held_[1].handle;
  many.set_rhs(std::string(3000, 'x'));
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(Call(many, &reply)));
  ASSERT_EQ(reply.failure_size(), 3000);
  EXPECT_EQ(DetailOf<v1::InvalidField>(reply.failure(999).status())->field(), "rhs");
  EXPECT_EQ(reply.failure(2999).status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reply.failure(2999).status().details_size(), 0);
  EXPECT_EQ(reply.solution(), std::string(3000, '\0'));
}

TEST_F(SolveManyTest, LargeSolutionsOfAFrameComeInChunks) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.stream_chunk_bytes = 1024;
  Open(options);
  Hold();
  std::vector<Asked> solves;
  for (int i = 0; i < 60; ++i) solves.push_back({static_cast<size_t>(i % 4), 2 + i % 3});
  const FrameAnswer answer = Ask(9, Many(solves));
  EXPECT_TRUE(answer.reply.solution().empty());
  EXPECT_EQ(answer.chunks, static_cast<int>((answer.solution.size() + 1023) / 1024));
  ExpectSolo(solves, answer.reply, answer.solution);
}

TEST_F(SolveManyTest, AFrameIsRefusedReplacingAndIsNotReplaced) {
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice());
  v1::SolveManyRequest many;
  many.set_handles(handle_);
  many.set_rhs(BytesOf(problem_.rhs));
  v1::SolveStreamRequest frame = Frame(2, many);
  frame.set_replace_last(true);
  ASSERT_TRUE(stream_->Write(frame));
  std::map<uint64_t, FrameAnswer> answers;
  EXPECT_EQ(Next(answers), 2u);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers[2].status)->field(), "replace_last");
  ASSERT_TRUE(stream_->Write(Frame(3, many)));
  v1::SolveStreamRequest replacing = Whole(4, problem_.rhs);
  replacing.set_replace_last(true);
  ASSERT_TRUE(stream_->Write(replacing));  // the first, which runs
  // Two wait, and the frame is one of them.
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 2; }));
  gate_->Open();
  answers.clear();
  v1::SolveStreamReply message;
  std::map<uint64_t, v1::SolveStreamReply> replies;
  while (replies.size() < 3 && stream_->Read(&message)) replies[message.id()] = message;
  EXPECT_TRUE(replies[1].has_reply() || replies[1].has_status());
  EXPECT_TRUE(replies[3].has_many());
  EXPECT_TRUE(replies[4].has_reply());
  EXPECT_EQ(replies[3].many().solution(), replies[4].reply().solution());
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveManyTest, AFrameMayBeCancelledAndHasATimeOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(OccupyTheDevice());
  ASSERT_TRUE(stream_->Write(Frame(2, Many(mixed_))));
  v1::SolveStreamRequest timed = Frame(3, Many(mixed_));
  timed.mutable_timeout()->set_nanos(50'000'000);
  ASSERT_TRUE(stream_->Write(timed));
  v1::SolveStreamRequest cancel;
  cancel.set_id(2);
  cancel.mutable_cancel();
  ASSERT_TRUE(stream_->Write(cancel));
  std::map<uint64_t, FrameAnswer> answers;
  Next(answers);
  Next(answers);
  EXPECT_EQ(answers[2].status.code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(answers[3].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  gate_->Open();
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  // Its id is free, and its handles are there.
  const FrameAnswer again = Ask(2, Many(mixed_));
  ExpectSolo(mixed_, again.reply, again.solution);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveManyTest, AStreamThatIsFullReadsNoFurtherFrame) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.max_stream_requests = 2;
  Open(options, /*gated=*/true);
  Hold();
  gate_->Close();
  for (uint64_t id = 1; id <= 6; ++id) {
    ASSERT_TRUE(stream_->Write(Frame(id, Many(mixed_))));
  }
  gate_->WaitForDevice();
  gate_->Open();
  std::map<uint64_t, FrameAnswer> answers;
  for (int i = 0; i < 6; ++i) Next(answers);
  for (uint64_t id = 1; id <= 6; ++id) {
    ExpectSolo(mixed_, answers[id].reply, answers[id].solution);
  }
}

TEST_F(SolveManyTest, AFrameOverTheStreamsBytesIsRefusedAlone) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.max_stream_bytes = 100'000;
  Open(options);
  Hold();
  v1::SolveManyRequest many = Plain(2000);
  const FrameAnswer refused = Ask(1, many);
  EXPECT_TRUE(IsOverLimit(refused.status, "max_stream_bytes",
                          static_cast<int64_t>(many.rhs().size()), 100'000));
  const FrameAnswer next = Ask(2, Plain());
  ExpectSolo({{0}, {1}}, next.reply, next.solution);
}

TEST_F(SolveManyTest, AChunkOfAFrameEndsTheStream) {
  Hold();
  ASSERT_TRUE(stream_->Write(Frame(1, Plain())));
  ASSERT_TRUE(stream_->Write(Chunk(1, "more")));
  v1::SolveStreamReply message;
  while (stream_->Read(&message)) {
  }
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "id"));
}

TEST_F(SolveManyTest, EachSolveCountsForTheRateAndTheMessageForTheQuotas) {
  server_->Drain();
  const TempFolder folder;
  std::ofstream(folder / "tenants") << "tenant { name: \"small\" identity { metadata: \"small\" } "
                                       "quotas { requests_per_second: 3 } }";
  server::ServerOptions options = Options();
  options.access.tenants_file = folder / "tenants";
  Open(options);
  v1::FactorReply factored;
  ASSERT_TRUE(IsOk(FactorStatus(FactorRequestOf(matrix_), &factored, "small")));
  v1::SolveManyRequest many;
  for (int i = 0; i < 40; ++i) *many.mutable_handles() += factored.system(0).handle();
  many.set_rhs(BytesOf(RandomColumns(problem_.rows(), 40, 1)));
  EXPECT_TRUE(IsOk(Call(many, nullptr, "small")));  // more than a second's, at once
  const grpc::Status over = Call(many, nullptr, "small");
  EXPECT_EQ(over.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(DetailOf<v1::QuotaExceeded>(over).has_value()) << over.error_message();
  EXPECT_EQ(DetailOf<v1::QuotaExceeded>(over)->quota(), "requests_per_second");
  EXPECT_EQ(DetailOf<v1::QuotaExceeded>(over)->asked(), 40);
}

}  // namespace
}  // namespace blockd::test
