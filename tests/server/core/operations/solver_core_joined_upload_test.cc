// Uploads that come on several streams: in any order, on any threads, and with ranges that lie.
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::FactorUpload;

constexpr int64_t kFirstPart = int64_t{64} << 10;  // of matrices as small as these

class JoinedUploadTest : public CoreTest {
 protected:
  std::unique_ptr<FactorUpload> Begin(const TestSystem& system, FactorParams params = {}) {
    context_->caller = "alice";
    params.form = system.form;
    if (params.num_systems == 0) params.num_systems = 1;
    auto begun = core_->BeginUpload(context_, params, {}, {});
    EXPECT_TRUE(begun.ok()) << begun.status();
    return begun.ok() ? std::get<std::unique_ptr<FactorUpload>>(*std::move(begun)) : nullptr;
  }
  // The same with its first part here.
  std::unique_ptr<FactorUpload> Staged(const TestSystem& system, FactorParams params = {}) {
    auto upload = Begin(system, params);
    const std::vector<std::byte> bytes = system.bytes();
    EXPECT_TRUE(upload->Write(std::span(bytes).first(kFirstPart)).ok());
    EXPECT_TRUE(upload->staged());
    return upload;
  }
  // Brings what a range has, in pieces.
  static absl::Status Bring(FactorUpload& upload, int range, std::span<const std::byte> bytes,
                            size_t piece) {
    while (!bytes.empty()) {
      const std::span<const std::byte> next = bytes.first(std::min(piece, bytes.size()));
      const absl::StatusOr<int64_t> place = upload.Place(range, {&next, 1});
      if (!place.ok()) return place.status();
      if (absl::Status status = upload.WriteAt(*place, {&next, 1}); !status.ok()) return status;
      bytes = bytes.subspan(next.size());
    }
    return absl::OkStatus();
  }
  absl::StatusOr<server::FactorReply> Finish(std::unique_ptr<FactorUpload> upload) {
    Pending<server::FactorReply> pending;
    core_->FinishUpload(std::move(upload), pending.Callback());
    return pending.Wait();
  }
  std::string JoinField(FactorUpload& upload, int64_t first, int64_t bytes) {
    return FieldOf(upload.Join(first, bytes).status());
  }

  server::ContextPtr context_ = std::make_shared<server::RequestContext>();
  const TestSystem system_{200, 8};  // 204,288 bytes
  const std::vector<std::byte> bytes_ = system_.bytes();
  const int64_t total_ = std::ssize(bytes_);
};

TEST_F(JoinedUploadTest, RangesComeInAnyOrder) {
  Start();
  for (const bool last_first : {false, true}) {
    FactorParams params;
    params.check_finite = true;
    auto upload = Staged(system_, params);
    // Cut in the diagonal, and in the coupling.
    std::vector<int64_t> cuts = {kFirstPart + 8, kFirstPart + 1600, total_ - 24, total_};
    std::vector<int> ranges;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto range = upload->Join(cuts[i], cuts[i + 1] - cuts[i]);
      ASSERT_TRUE(range.ok()) << range.status();
      ranges.push_back(*range);
    }
    const auto bring = [&](size_t i) {
      const auto bytes = std::span(bytes_).subspan(static_cast<size_t>(cuts[i]),
                                                   static_cast<size_t>(cuts[i + 1] - cuts[i]));
      EXPECT_TRUE(Bring(*upload, ranges[i], bytes, 1001).ok());
    };
    for (size_t i = 0; i < 3; ++i) bring(last_first ? 2 - i : i);
    EXPECT_LT(upload->received_bytes(), total_);
    ASSERT_TRUE(upload->Write(std::span(bytes_).subspan(kFirstPart, 8)).ok());
    EXPECT_EQ(upload->received_bytes(), total_);
    const auto reply = Finish(std::move(upload));
    ASSERT_TRUE(reply.ok()) << reply.status();
    PendingSolve solve = Solve(reply->systems[0].handle, system_.form.shape);
    ExpectSolves(system_, *solve);
  }
}

TEST_F(JoinedUploadTest, SeveralThreadsWriteAtOnceAndTheBitsAreThose) {
  Start();
  constexpr int64_t kThreads = 6, kSystems = 3;
  std::vector<std::byte> all;
  for (int k = 0; k < kSystems; ++k) all.insert(all.end(), bytes_.begin(), bytes_.end());
  FactorParams params;
  params.num_systems = kSystems;
  params.check_finite = true;
  auto upload = Staged(system_, params);
  const int64_t share = (std::ssize(all) - kFirstPart) / kThreads / 8 * 8;
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < kThreads; ++t) {
    const int64_t first = kFirstPart + t * share;
    const int64_t bytes = t + 1 < kThreads ? share : std::ssize(all) - first;
    const auto range = upload->Join(first, bytes);
    ASSERT_TRUE(range.ok()) << range.status();
    threads.emplace_back([&, first, bytes, range = *range] {
      EXPECT_TRUE(
          Bring(*upload, range, std::span(all).subspan(first, bytes), static_cast<size_t>(999))
              .ok());
    });
  }
  EXPECT_TRUE(Bring(*upload, FactorUpload::kFirstRange, std::span(all).subspan(kFirstPart, share),
                    size_t{4096})
                  .ok());
  for (std::thread& thread : threads) thread.join();
  const auto reply = Finish(std::move(upload));
  ASSERT_TRUE(reply.ok()) << reply.status();
  const CallOptions alike = {.rhs_seed = 1};
  PendingSolve expected = Solve(Held(system_), system_.form.shape, 1, alike);
  ExpectSolves(system_, *expected);
  for (const auto& system : reply->systems) {
    PendingSolve solve = Solve(system.handle, system_.form.shape, 1, alike);
    ExpectSolves(system_, *solve);
    EXPECT_EQ(solve->solution, expected->solution);
  }
}

// Pieces of one range, placed in order and written in another.
TEST_F(JoinedUploadTest, WhatIsPlacedMayBeWrittenInAnyOrder) {
  Start();
  auto upload = Staged(system_);
  std::vector<std::pair<int64_t, std::span<const std::byte>>> placed;
  for (int64_t at = kFirstPart; at < total_; at += 5000) {
    const auto piece = std::span<const std::byte>(bytes_).subspan(
        static_cast<size_t>(at), static_cast<size_t>(std::min<int64_t>(5000, total_ - at)));
    const auto place = upload->Place(FactorUpload::kFirstRange, {&piece, 1});
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(*place, at);
    placed.emplace_back(*place, piece);
  }
  std::reverse(placed.begin(), placed.end());
  for (const auto& [place, piece] : placed) EXPECT_TRUE(upload->WriteAt(place, {&piece, 1}).ok());
  const auto reply = Finish(std::move(upload));
  ASSERT_TRUE(reply.ok()) << reply.status();
  PendingSolve solve = Solve(reply->systems[0].handle, system_.form.shape);
  ExpectSolves(system_, *solve);
}

TEST_F(JoinedUploadTest, NobodyJoinsBeforeTheMemoryIsTaken) {
  Start();
  auto upload = Begin(system_);
  ASSERT_TRUE(upload->Write(std::span(bytes_).first(kFirstPart - 1)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(upload->Join(kFirstPart, 8).status()));
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(JoinedUploadTest, RangesThatLieAreRefusedAndHarmNobody) {
  Start();
  auto upload = Staged(system_);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (const int64_t first : {int64_t{-8}, total_, total_ + 8, kMost - 7, kLeast, kFirstPart + 4}) {
    EXPECT_EQ(JoinField(*upload, first, 8), "join.first_byte") << first;
  }
  for (const int64_t bytes : {int64_t{0}, int64_t{-8}, total_ - kFirstPart + 1, kMost, kLeast}) {
    EXPECT_EQ(JoinField(*upload, kFirstPart, bytes), "join.num_bytes") << bytes;
  }
  // Ranges that the first stream has brought, or that belong to another stream.
  EXPECT_EQ(JoinField(*upload, 0, total_), "join");
  EXPECT_EQ(JoinField(*upload, kFirstPart - 8, 8), "join");
  ASSERT_TRUE(upload->Join(kFirstPart + 800, 800).ok());
  for (const auto& [first, bytes] :
       {std::pair<int64_t, int64_t>{800, 800}, {0, 808}, {1592, 8}, {0, 10000}, {808, 8}}) {
    EXPECT_EQ(JoinField(*upload, kFirstPart + first, bytes), "join") << first << " " << bytes;
  }
  ASSERT_TRUE(upload->Join(kFirstPart + 1600, total_ - kFirstPart - 1600).ok());
  EXPECT_TRUE(Bring(*upload, 1, std::span(bytes_).subspan(kFirstPart + 800, 800), 100).ok());
  EXPECT_TRUE(Bring(*upload, 2, std::span(bytes_).subspan(kFirstPart + 1600), 1000).ok());
  EXPECT_TRUE(upload->Write(std::span(bytes_).subspan(kFirstPart, 800)).ok());
  EXPECT_TRUE(Finish(std::move(upload)).ok());
}

TEST_F(JoinedUploadTest, NoStreamBringsMoreThanItsRange) {
  Start();
  auto upload = Staged(system_);
  const auto range = upload->Join(kFirstPart + 80, 16);
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(FieldOf(Bring(*upload, *range, std::vector<std::byte>(17), 17)), "chunk");
  EXPECT_TRUE(Bring(*upload, *range, std::vector<std::byte>(16), 16).ok());
  EXPECT_EQ(FieldOf(Bring(*upload, *range, std::vector<std::byte>(1), 1)), "chunk");
  // Nor does the first one run into it.
  EXPECT_EQ(FieldOf(upload->Write(std::vector<std::byte>(81))), "chunk");
  EXPECT_TRUE(upload->Write(std::vector<std::byte>(80)).ok());
  EXPECT_EQ(FieldOf(upload->Write(std::vector<std::byte>(1))), "chunk");
}

TEST_F(JoinedUploadTest, AGapIsTooFewBytes) {
  Start();
  for (const int64_t gap : {8, 800}) {
    auto upload = Staged(system_);
    const int64_t first = kFirstPart + gap;
    const auto range = upload->Join(first, total_ - first);
    ASSERT_TRUE(range.ok());
    EXPECT_TRUE(Bring(*upload, *range, std::span(bytes_).subspan(first), 10000).ok());
    EXPECT_EQ(FieldOf(Finish(std::move(upload)).status()), "chunk");
    EXPECT_EQ(Reserved(), 0);
    EXPECT_EQ(core_->memory().pool.used_bytes, 0);
  }
}

TEST_F(JoinedUploadTest, HasSoManyRangesAndNotMore) {
  Start();
  auto upload = Staged(system_);
  for (int i = 1; i < FactorUpload::kMostRanges; ++i) {
    ASSERT_TRUE(upload->Join(total_ - 8 * i, 8).ok()) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(upload->Join(kFirstPart, 8).status()));
}

TEST_F(JoinedUploadTest, FindsNanInEachRangeWhereverItIsCut) {
  Start();
  TestSystem bad = system_;
  bad.coupling[6000] = std::nan("");
  const std::vector<std::byte> bytes = bad.bytes();
  FactorParams params;
  params.check_finite = true;
  params.num_systems = 2;
  auto upload = Staged(system_, params);
  const int64_t first = total_ + kFirstPart;  // in the second system
  const auto range = upload->Join(first, total_ - kFirstPart);
  ASSERT_TRUE(range.ok());
  const absl::Status status = Bring(*upload, *range, std::span(bytes).subspan(kFirstPart), 13);
  EXPECT_EQ(FieldOf(status), "system[1].coupling");
  const std::string place =
      absl::StrCat("block ", 6000 / 64, ", row ", 6000 % 8, ", column ", 6000 % 64 / 8);
  EXPECT_NE(status.message().find(place), std::string::npos) << status;
}

TEST_F(JoinedUploadTest, ACancelledUploadTakesNothingInAnyRange) {
  Start();
  auto upload = Staged(system_);
  const auto range = upload->Join(kFirstPart, 80);
  ASSERT_TRUE(range.ok());
  core_->Cancel(*context_);
  EXPECT_TRUE(absl::IsCancelled(Bring(*upload, *range, std::vector<std::byte>(8), 8)));
  upload.reset();
  EXPECT_EQ(Reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
