#include "tests/fuzz/fake_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include "tests/fuzz/check.h"

namespace blockd::server {
namespace {

constexpr uint8_t kHandles = 3;

// The answer that the target has chosen, once.
absl::Status TakeNext() {
  switch (std::exchange(TheFakeCore().next, FakeCore::Next::kAsksOn)) {
    case FakeCore::Next::kNotFound:
      return absl::NotFoundError("no such handle");
    case FakeCore::Next::kUnavailable:
      return RetryAfterError("full", absl::Milliseconds(1));
    case FakeCore::Next::kOutOfMemory:
      std::__throw_bad_alloc();
    default:
      return absl::OkStatus();
  }
}

std::span<const std::byte> Blocks(const void* from, int64_t bytes) {
  return {static_cast<const std::byte*>(from), static_cast<size_t>(bytes)};
}

// Adds the blocks of a system to the work's reads; checks the indices of its palettes.
void Add(const BlockTridiagonalView& matrix, FakeCore::PendingWork& work) {
  work.reads.push_back(Blocks(matrix.diagonal, matrix.form.diagonal_bytes()));
  work.reads.push_back(Blocks(matrix.coupling, matrix.form.coupling_bytes()));
  const auto check = [](const uint32_t* index, int64_t entries, int64_t palette) {
    for (int64_t i = 0; palette > 0 && i < entries; ++i) FUZZ_CHECK(index[i] < palette);
  };
  const int64_t rows = matrix.form.shape.num_blocks;
  check(matrix.diagonal_index, rows, matrix.form.diagonal_palette);
  check(matrix.coupling_index, rows - 1, matrix.form.coupling_palette);
}

// Begins it, or refuses it as the target has chosen.
void Begin(FakeCore::PendingWork work) {
  FakeCore& core = TheFakeCore();
  const bool at_once = core.next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return work.answer(status);
  core.works.push_back(std::move(work));
  if (at_once) core.AnswerWork(core.works.size() - 1, absl::OkStatus());
}

class FakeUpload final : public FactorUpload {
 public:
  FakeUpload(ContextPtr context, int64_t expected)
      : context(std::move(context)), expected_(expected) {
    ++TheFakeCore().uploads;
  }
  ~FakeUpload() override { --TheFakeCore().uploads; }
  absl::StatusOr<int> Join(int64_t /*first*/, int64_t /*bytes*/) override {
    return InvalidFieldError("join", "another stream", "one stream");
  }
  absl::StatusOr<int64_t> Place(int range,
                                std::span<const std::span<const std::byte>> pieces) override {
    FUZZ_CHECK(range == kFirstRange);
    int64_t bytes = 0;
    for (const auto piece : pieces) bytes += std::ssize(piece);
    if (bytes > expected_ - placed_) {
      return InvalidFieldError("chunk", "more bytes", "those that the header said");
    }
    return std::exchange(placed_, placed_ + bytes);
  }
  absl::Status WriteAt(int64_t place, std::span<const std::span<const std::byte>> pieces) override {
    if (std::exchange(TheFakeCore().fail_next_chunk, false)) {
      return absl::InternalError("the device fell off");
    }
    FUZZ_CHECK(place == received_bytes());
    for (const auto piece : pieces) {
      received.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    return absl::OkStatus();
  }
  bool staged() const override { return received_bytes() >= expected_ / 2; }
  int64_t expected_bytes() const override { return expected_; }
  int64_t received_bytes() const override { return static_cast<int64_t>(received.size()); }

  const ContextPtr context;
  std::string received;

 private:
  const int64_t expected_;
  int64_t placed_ = 0;
};

}  // namespace

FakeCore& TheFakeCore() {
  static auto& core = *new FakeCore;
  return core;
}

Handle FakeCore::HandleOf(uint8_t number) {
  return *Handle::FromBytes(std::string(Handle::kBytes, static_cast<char>('a' + number)));
}
BorderedShape FakeCore::ShapeOfNumber(uint8_t number) {
  const BorderedShape shapes[kHandles] = {{{1, 1, Scalar::kFloat64}, 0},
                                          {{3, 2, Scalar::kFloat32}, 2},
                                          {{64, 16, Scalar::kFloat64}, 0}};
  return shapes[number];
}

void FakeCore::AnswerSolve(size_t index, const absl::Status& status) {
  PendingSolve solve = std::move(solves[index]);
  solves.erase(solves.begin() + static_cast<std::ptrdiff_t>(index));
  if (solve.many_done) {
    if (!status.ok()) return solve.many_done(status);
    SolveManyReply reply;
    reply.outcomes.resize(solve.many.solves.size());
    reply.cost.batch_requests = 1;
    for (const SolveManyParams::Columns& columns : solve.many.solves) {
      FUZZ_CHECK(columns.rhs.size() == columns.solution.size());
      for (std::byte& value : columns.solution) value = ~value;
    }
    return solve.many_done(std::move(reply));
  }
  if (solve.refactor_done) {
    if (!status.ok()) return solve.refactor_done(status);
    FactorSolveReply reply;
    reply.systems.resize(solve.refactor.solves.size());
    reply.cost.batch_requests = 1;
    for (const SolveManyParams::Columns& columns : solve.refactor.solves) {
      FUZZ_CHECK(columns.rhs.size() == columns.solution.size());
      std::ranges::transform(columns.rhs, columns.solution.begin(),
                             [](std::byte value) { return ~value; });
    }
    return solve.refactor_done(std::move(reply));
  }
  if (!status.ok()) return solve.done(status);
  FUZZ_CHECK(solve.params.rhs.size() == solve.params.solution.size());
  for (std::byte& value : solve.params.solution) value = ~value;
  SolveReply reply;
  reply.cost.batch_requests = 1;
  solve.done(reply);
}

void FakeCore::AnswerFactor(size_t index, const absl::Status& status) {
  PendingFactor factor = std::move(factors[index]);
  factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(index));
  if (!status.ok()) return factor.done(status);
  FactorReply reply;
  reply.systems.resize(1);
  reply.systems[0].handle = HandleOf(0);
  factor.done(reply);
}

void FakeCore::AnswerWork(size_t index, const absl::Status& status) {
  PendingWork work = std::move(works[index]);
  works.erase(works.begin() + static_cast<std::ptrdiff_t>(index));
  std::byte sum{};
  for (const auto part : work.reads) {
    for (const std::byte value : part) sum ^= value;
  }
  for (const auto part : work.writes) {
    for (std::byte& value : part) value = sum;
  }
  work.answer(status);
}

// ------------------------------------------------------------------------------- solver_core.cc

Tenants& SolverCore::tenants() { return TheFakeCore().tenants; }
std::shared_ptr<MemoryPool> SolverCore::host_memory() { return nullptr; }
Budget& SolverCore::host() { return *TheFakeCore().host; }
const CoreLimits& SolverCore::limits() const {
  static const CoreLimits limits;
  return limits;
}

absl::StatusOr<BorderedShape> SolverCore::ShapeOf(const std::string& /*caller*/,
                                                  const Handle& handle) {
  for (uint8_t number = 0; number < kHandles; ++number) {
    if (FakeCore::HandleOf(number) != handle) continue;
    if (TheFakeCore().next != FakeCore::Next::kAtOnce) {
      if (absl::Status status = TakeNext(); !status.ok()) return status;
    }
    return FakeCore::ShapeOfNumber(number);
  }
  return absl::NotFoundError("no such handle");
}

void SolverCore::Solve(ContextPtr context, const SolveParams& params, SolveDone done) {
  FakeCore& core = TheFakeCore();
  const bool at_once = core.next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return done(status);
  core.solves.push_back({std::move(context), params, std::move(done)});
  if (at_once) core.AnswerSolve(core.solves.size() - 1, absl::OkStatus());
}

void SolverCore::SolveMany(ContextPtr context, SolveManyParams params, SolveManyDone done) {
  FakeCore& core = TheFakeCore();
  const bool at_once = core.next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return done(status);
  FUZZ_CHECK(!params.solves.empty() && params.solves.size() == params.handles.size());
  core.solves.push_back({std::move(context), {}, nullptr, std::move(params), std::move(done)});
  if (at_once) core.AnswerSolve(core.solves.size() - 1, absl::OkStatus());
}

void SolverCore::Factor(ContextPtr context, const FactorParams& params,
                        std::vector<BlockTridiagonalView> matrices, FactorDone done) {
  FUZZ_CHECK(params.num_systems == std::ssize(matrices));
  FakeCore::PendingWork work{.context = std::move(context)};
  for (const BlockTridiagonalView& matrix : matrices) Add(matrix, work);
  work.answer = [done = std::move(done), count = matrices.size()](const absl::Status& s) mutable {
    if (!s.ok()) return done(s);
    FactorReply reply;
    reply.systems.resize(count);
    for (size_t i = 1; i < count; ++i) {
      reply.systems[i].status = absl::InternalError(std::string(300, 'x'));
    }
    done(std::move(reply));
  };
  Begin(std::move(work));
}

namespace {

void TakeSystems(ContextPtr context, const FactorSolveParams& params, FactorSolveDone done) {
  FakeCore::PendingWork work{.context = std::move(context)};
  const size_t systems = params.matrices.size();
  FUZZ_CHECK(systems > 0 && params.solves.size() == systems &&
             (params.handles.empty() || params.handles.size() == systems));
  for (size_t i = 0; i < systems; ++i) {
    Add(params.matrices[i], work);
    FUZZ_CHECK(params.solves[i].rhs.size() == params.solves[i].solution.size());
    work.reads.push_back(params.solves[i].rhs);
    work.writes.push_back(params.solves[i].solution);
  }
  work.answer = [done = std::move(done), systems](const absl::Status& s) mutable {
    if (!s.ok()) return done(s);
    FactorSolveReply reply;
    reply.systems.resize(systems);
    for (size_t i = 1; i < systems; ++i) {
      reply.systems[i].solve.status = absl::InternalError(std::string(300, 'x'));
    }
    done(std::move(reply));
  };
  Begin(std::move(work));
}

}  // namespace

absl::StatusOr<int64_t> SolverCore::Release(const std::string& /*caller*/,
                                            std::span<const Handle> handles) {
  FUZZ_CHECK(!handles.empty());
  if (absl::Status status = TakeNext(); !status.ok()) return status;
  return 8;
}

void SolverCore::FactorSolve(ContextPtr context, FactorSolveParams params, FactorSolveDone done) {
  FakeCore& core = TheFakeCore();
  if (core.takes_work || params.handles.empty()) {
    return TakeSystems(std::move(context), params, std::move(done));
  }
  const bool at_once = core.next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return done(status);
  FUZZ_CHECK(!params.solves.empty() && params.solves.size() == params.handles.size() &&
             params.solves.size() == params.matrices.size());
  for (const BlockTridiagonalView& matrix : params.matrices) {  // each byte is there
    const auto* const from = static_cast<const char*>(matrix.diagonal);
    FUZZ_CHECK(std::count(from, from + matrix.form.bytes(), FakeCore::kMatrixByte) ==
               matrix.form.bytes());
  }
  core.solves.push_back({.context = std::move(context),
                         .params = {},
                         .done = nullptr,
                         .refactor = std::move(params),
                         .refactor_done = std::move(done)});
  if (at_once) core.AnswerSolve(core.solves.size() - 1, absl::OkStatus());
}

void SolverCore::Cancel(RequestContext& context) {
  context.cancelled = true;
  FakeCore& core = TheFakeCore();
  for (size_t i = 0; i < core.solves.size();) {
    if (core.solves[i].context.get() == &context) {
      core.AnswerSolve(i, absl::CancelledError("cancelled"));
      i = 0;  // the answer may have asked for more
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < core.works.size();) {
    if (core.works[i].context.get() == &context) {
      core.AnswerWork(i, absl::CancelledError("cancelled"));
      i = 0;
    } else {
      ++i;
    }
  }
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> SolverCore::BeginUpload(
    ContextPtr context, const FactorParams& params, std::span<const uint32_t> /*diagonal*/,
    std::span<const uint32_t> /*coupling*/) {
  const bool found = TheFakeCore().next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return status;
  if (found) return FactorReply();
  const absl::StatusOr<int64_t> bytes = CheckedProduct(params.form.bytes(), params.num_systems);
  if (!bytes.ok()) return bytes.status();
  return std::make_unique<FakeUpload>(std::move(context), *bytes);
}

void SolverCore::FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done) {
  FakeCore& core = TheFakeCore();
  auto& whole = static_cast<FakeUpload&>(*upload);
  if (whole.received_bytes() < whole.expected_bytes()) {
    return done(InvalidFieldError("chunk", "fewer bytes", "those that the header said"));
  }
  const bool at_once = core.next == FakeCore::Next::kAtOnce;
  if (absl::Status status = TakeNext(); !status.ok()) return done(status);
  core.factors.push_back({whole.context, std::move(whole.received), std::move(done)});
  upload.reset();
  if (at_once) core.AnswerFactor(core.factors.size() - 1, absl::OkStatus());
}

}  // namespace blockd::server
