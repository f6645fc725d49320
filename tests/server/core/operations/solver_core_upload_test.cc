// Uploads: cut anywhere, too short, too long, abandoned.
#include <algorithm>
#include <cmath>
#include <variant>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::FactorUpload;
using server::Handle;

class SolverCoreUploadTest : public CoreTest {
 protected:
  std::unique_ptr<FactorUpload> Begin(const TestSystem& system, FactorParams params = {},
                                      std::span<const uint32_t> diagonal = {},
                                      std::span<const uint32_t> coupling = {}) {
    params.form = system.form;
    if (params.num_systems == 0) params.num_systems = 1;
    context_->caller = "alice";
    auto begun = core_->BeginUpload(context_, params, diagonal, coupling);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return begun.ok() ? std::get<std::unique_ptr<FactorUpload>>(*std::move(begun)) : nullptr;
  }
  static absl::Status WriteInChunks(FactorUpload& upload, std::span<const std::byte> bytes,
                                    size_t chunk) {
    while (!bytes.empty()) {
      const size_t size = std::min(chunk, bytes.size());
      absl::Status status = upload.Write(bytes.first(size));
      if (!status.ok()) return status;
      bytes = bytes.subspan(size);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<server::FactorReply> Finish(std::unique_ptr<FactorUpload> upload) {
    Pending<server::FactorReply> pending;
    core_->FinishUpload(std::move(upload), pending.Callback());
    return pending.Wait();
  }

  server::ContextPtr context_ = std::make_shared<server::RequestContext>();
};

TEST_F(SolverCoreUploadTest, ChunksMayBeCutAnywhere) {
  Start();
  const TestSystem first(7, 3, 0), second(7, 3, 30);
  std::vector<std::byte> bytes = first.bytes();
  const std::vector<std::byte> more = second.bytes();
  bytes.insert(bytes.end(), more.begin(), more.end());
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{500}, bytes.size()}) {
    FactorParams params;
    params.num_systems = 2;
    params.check_finite = true;
    auto upload = Begin(first, params);
    ASSERT_NE(upload, nullptr);
    EXPECT_EQ(upload->expected_bytes(), static_cast<int64_t>(bytes.size()));
    ASSERT_TRUE(WriteInChunks(*upload, bytes, chunk).ok());
    EXPECT_EQ(upload->received_bytes(), upload->expected_bytes());
    const auto reply = Finish(std::move(upload));
    ASSERT_TRUE(reply.ok()) << reply.status();
    PendingSolve a = Solve(reply->systems[0].handle, first.form.shape);
    PendingSolve b = Solve(reply->systems[1].handle, first.form.shape);
    ExpectSolves(first, *a);
    ExpectSolves(second, *b);
  }
}

// The transport has a message in slices, which end anywhere in blocks, parts and systems; some have
// no byte. The first message may end before the upload has its memory, or long after.
TEST_F(SolverCoreUploadTest, AMessageMayHaveAnySlices) {
  Start();
  constexpr int64_t kSystems = 2;
  const TestSystem system(200, 8);  // 204,288 bytes, of which the first 64 KiB are kept
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < kSystems; ++i) {
    const std::vector<std::byte> one = system.bytes();
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  const CallOptions alike = {.rhs_seed = 1};
  PendingSolve expected = Solve(Held(system), system.form.shape, 1, alike);
  ExpectSolves(system, *expected);
  for (const size_t slice : {size_t{5}, size_t{999}, size_t{65537}, system.bytes().size() + 1}) {
    for (const size_t message : {size_t{1000}, size_t{70001}, bytes.size()}) {
      FactorParams params;
      params.num_systems = kSystems;
      params.check_finite = true;
      auto upload = Begin(system, params);
      ASSERT_NE(upload, nullptr);
      for (size_t at = 0; at < bytes.size();) {
        const size_t end = std::min(at + message, bytes.size());
        std::vector<std::span<const std::byte>> slices = {{}};
        while (at < end) {
          const size_t size = std::min(slice, end - at);
          slices.push_back(std::span(bytes).subspan(at, size));
          slices.emplace_back();
          at += size;
        }
        const auto place = upload->Place(FactorUpload::kFirstRange, slices);
        ASSERT_TRUE(place.ok()) << place.status();
        ASSERT_TRUE(upload->WriteAt(*place, slices).ok());
      }
      const auto reply = Finish(std::move(upload));
      ASSERT_TRUE(reply.ok()) << reply.status();
      for (const auto& each : reply->systems) {
        PendingSolve solve = Solve(each.handle, system.form.shape, 1, alike);
        ExpectSolves(system, *solve);
        EXPECT_EQ(solve->solution, expected->solution) << slice << ", " << message;
      }
    }
  }
}

TEST_F(SolverCoreUploadTest, AnswersAsFactorDoes) {
  Start();
  const TestSystem system(9, 4);
  const Handle direct = Held(system);
  FactorParams params;
  params.keep_matrix = true;
  auto upload = Begin(system, params);
  ASSERT_TRUE(upload->Write(system.bytes()).ok());
  const auto reply = Finish(std::move(upload));
  ASSERT_TRUE(reply.ok());
  const CallOptions alike = {.rhs_seed = 1};
  PendingSolve a = Solve(direct, system.form.shape, 1, alike);
  PendingSolve b = Solve(reply->systems[0].handle, system.form.shape, 1, alike);
  ExpectSolves(system, *a);
  ExpectSolves(system, *b);
  EXPECT_EQ(a->solution, b->solution);
  PendingSolve measured = Solve(reply->systems[0].handle, system.form.shape, 1, {}, true);
  ExpectSolves(system, *measured);
}

TEST_F(SolverCoreUploadTest, APaletteSendsEachBlockOnce) {
  Start();
  const TestSystem blocks(4, 3);
  std::vector<uint32_t> diagonal(20), coupling(19);
  for (uint32_t i = 0; i < 20; ++i) diagonal[i] = i * i % 3;
  for (uint32_t i = 0; i < 19; ++i) coupling[i] = i * 5 % 7 % 2;
  TestSystem full(20, 3), system(20, 3);
  for (size_t i = 0; i < 20; ++i) {
    std::copy_n(&blocks.diagonal[9 * diagonal[i]], 9, &full.diagonal[9 * i]);
    if (i < 19) std::copy_n(&blocks.coupling[9 * coupling[i]], 9, &full.coupling[9 * i]);
  }
  system.form.diagonal_palette = 3;
  system.form.coupling_palette = 2;
  system.diagonal.assign(blocks.diagonal.begin(), blocks.diagonal.begin() + 3 * 9);
  system.coupling.assign(blocks.coupling.begin(), blocks.coupling.begin() + 2 * 9);
  auto upload = Begin(system, {}, diagonal, coupling);
  ASSERT_NE(upload, nullptr);
  EXPECT_EQ(upload->expected_bytes(), (3 + 2) * 9 * 8);
  ASSERT_TRUE(upload->Write(system.bytes()).ok());
  const auto reply = Finish(std::move(upload));
  ASSERT_TRUE(reply.ok()) << reply.status();
  PendingSolve solve = Solve(reply->systems[0].handle, full.form.shape);
  ExpectSolves(full, *solve);
}

TEST_F(SolverCoreUploadTest, RefusesAWrongPalette) {
  Start();
  TestSystem system(4, 2);
  system.form.diagonal_palette = system.form.coupling_palette = 2;
  FactorParams params;
  params.form = system.form;
  params.num_systems = 1;
  const std::vector<uint32_t> four(4, 0), three(3, 0), wrong = {0, 2, 0};
  const auto field = [&](std::span<const uint32_t> diagonal, std::span<const uint32_t> coupling) {
    return FieldOf(core_->BeginUpload(context_, params, diagonal, coupling).status());
  };
  EXPECT_EQ(field(three, three), "spec.palette.diagonal_index");
  EXPECT_EQ(field(four, four), "spec.palette.coupling_index");
  EXPECT_EQ(field(four, wrong), "spec.palette.coupling_index[1]");
  params.num_systems = 0;
  EXPECT_EQ(field(four, three), "num_systems");
}

TEST_F(SolverCoreUploadTest, TooManyBytesAreRefused) {
  Start();
  const TestSystem system(5, 2);
  auto upload = Begin(system);
  ASSERT_TRUE(upload->Write(system.bytes()).ok());
  const std::byte extra[1] = {};
  EXPECT_EQ(FieldOf(upload->Write(extra)), "chunk");
  EXPECT_EQ(upload->received_bytes(), upload->expected_bytes());
  // So is a chunk of which only the end is too much, and nothing of it is taken.
  auto again = Begin(system);
  std::vector<std::byte> bytes = system.bytes();
  bytes.push_back(std::byte{0});
  EXPECT_EQ(FieldOf(again->Write(bytes)), "chunk");
  EXPECT_EQ(again->received_bytes(), 0);
}

TEST_F(SolverCoreUploadTest, TooFewBytesAreRefused) {
  Start();
  const TestSystem system(5, 2);
  auto upload = Begin(system);
  const std::vector<std::byte> bytes = system.bytes();
  ASSERT_TRUE(upload->Write(std::span(bytes).first(bytes.size() - 1)).ok());
  EXPECT_EQ(FieldOf(Finish(std::move(upload)).status()), "chunk");
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreUploadTest, AnAbandonedUploadGivesItsMemoryBack) {
  Start();
  const TestSystem system(200, 8);
  auto upload = Begin(system);
  const std::vector<std::byte> bytes = system.bytes();
  ASSERT_TRUE(upload->Write(std::span(bytes).first(bytes.size() / 2)).ok());
  EXPECT_GT(Reserved(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(core_->host().reserved(), 0);
  upload.reset();
  EXPECT_EQ(Reserved(), 0);
  EXPECT_EQ(core_->memory().pool.used_bytes, 0);
}

// Nor does who has sent a little less than the first part.
TEST_F(SolverCoreUploadTest, AHeaderAloneTakesNothingAndEvictsNobody) {
  const TestSystem held(50, 8), large(200, 8);
  Start();
  const int64_t workspace = core_->Plan(large.form, 1, 1)->factor_workspace_bytes;
  const int64_t room = 2 * Charge(large.form.shape) + workspace;  // for either
  Stop();
  Start({.memory_bytes = room});
  const Handle handle = Held(held);
  const int64_t before = Reserved();
  std::vector<std::unique_ptr<FactorUpload>> uploads;
  for (int i = 0; i < 8; ++i) {
    uploads.push_back(Begin(large));
    ASSERT_TRUE(uploads.back()->Write(std::vector<std::byte>((64 << 10) - 1)).ok());
  }
  EXPECT_EQ(Reserved(), before);
  EXPECT_EQ(core_->host().reserved(), 8 * ((64 << 10) - 1));
  EXPECT_TRUE(core_->Get("alice", handle).ok());
  ASSERT_TRUE(uploads.back()->Write(std::vector<std::byte>(1)).ok());
  EXPECT_FALSE(core_->Get("alice", handle).ok());
  uploads.clear();
  EXPECT_EQ(core_->host().reserved(), 0);
  EXPECT_EQ(Reserved(), 0);
}

// It was there when the header came, and is somebody else's by now.
TEST_F(SolverCoreUploadTest, MemoryThatOthersTookMeanwhileIsRefusedWithTheFirstPart) {
  const TestSystem system(200, 8);
  Start();
  const int64_t room = 3 * Charge(system.form.shape);
  Stop();
  Start({.memory_bytes = room});
  auto first = Begin(system), second = Begin(system);
  ASSERT_TRUE(first->Write(system.bytes()).ok());
  const absl::Status status = second->Write(system.bytes());
  EXPECT_TRUE(server::InsufficientMemoryOf(status).has_value()) << status;
  EXPECT_TRUE(server::RetryAfterOf(status).has_value());
  second.reset();
  EXPECT_TRUE(Finish(std::move(first)).ok());
}

TEST_F(SolverCoreUploadTest, FindsNanWhereverTheChunkIsCut) {
  Start();
  TestSystem system(5, 2);
  system.coupling[6] = std::nan("");
  FactorParams params;
  params.check_finite = true;
  auto upload = Begin(system, params);
  EXPECT_EQ(FieldOf(WriteInChunks(*upload, system.bytes(), 5)), "system[0].coupling");
  params.num_systems = 3;
  auto several = Begin(system, params);
  ASSERT_TRUE(WriteInChunks(*several, TestSystem(5, 2).bytes(), 7).ok());
  EXPECT_EQ(FieldOf(WriteInChunks(*several, system.bytes(), 7)), "system[1].coupling");
  params.check_finite = false;
  auto unchecked = Begin(system, params);
  EXPECT_TRUE(WriteInChunks(*unchecked, system.bytes(), 7).ok());
}

TEST_F(SolverCoreUploadTest, AnEmptyChunkChangesNothing) {
  Start();
  const TestSystem system(5, 2);
  auto upload = Begin(system);
  ASSERT_TRUE(upload->Write({}).ok());
  ASSERT_TRUE(upload->Write(system.bytes()).ok());
  ASSERT_TRUE(upload->Write({}).ok());
  EXPECT_EQ(upload->received_bytes(), upload->expected_bytes());
  EXPECT_TRUE(Finish(std::move(upload)).ok());
}

TEST_F(SolverCoreUploadTest, ACancelledOrLateUploadAcceptsNoMore) {
  Start();
  const TestSystem system(5, 2);
  context_->deadline = clock_.Now() + absl::Seconds(1);
  auto upload = Begin(system);
  const std::byte some[4] = {};
  ASSERT_TRUE(upload->Write(some).ok());
  core_->Cancel(*context_);
  EXPECT_TRUE(absl::IsCancelled(upload->Write(some)));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(upload->Write(some)));
}

TEST_F(SolverCoreUploadTest, RefactorsInPlace) {
  Start();
  const TestSystem before(6, 3, 0), after(6, 3, 25);
  FactorParams params;
  params.handles = {Held(before)};
  for (const bool overwrite : {false, true}) {
    params.overwrite = overwrite;
    auto upload = Begin(after, params);
    ASSERT_TRUE(upload->Write(after.bytes()).ok());
    const auto reply = Finish(std::move(upload));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->systems[0].handle, params.handles[0]);
    PendingSolve solve = Solve(params.handles[0], after.form.shape);
    ExpectSolves(after, *solve);
  }
}

}  // namespace
}  // namespace blockd::test
