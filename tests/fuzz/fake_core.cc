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

class FakeUpload final : public FactorUpload {
 public:
  FakeUpload(ContextPtr context, int64_t expected)
      : context(std::move(context)), expected_(expected) {
    ++TheFakeCore().uploads;
  }
  ~FakeUpload() override { --TheFakeCore().uploads; }
  absl::Status Write(std::span<const std::byte> bytes) override {
    if (std::exchange(TheFakeCore().fail_next_chunk, false)) {
      return absl::InternalError("the device fell off");
    }
    if (static_cast<int64_t>(bytes.size()) > expected_ - received_bytes()) {
      return InvalidFieldError("chunk", "more bytes", "those that the header said");
    }
    received.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }
  int64_t expected_bytes() const override { return expected_; }
  int64_t received_bytes() const override { return static_cast<int64_t>(received.size()); }

  const ContextPtr context;
  std::string received;

 private:
  const int64_t expected_;
};

}  // namespace

FakeCore& TheFakeCore() {
  static auto& core = *new FakeCore;
  return core;
}

Handle FakeCore::HandleOf(uint8_t number) {
  return *Handle::FromBytes(std::string(Handle::kBytes, static_cast<char>('a' + number)));
}
Shape FakeCore::ShapeOfNumber(uint8_t number) {
  const Shape shapes[kHandles] = {
      {1, 1, Scalar::kFloat64}, {3, 2, Scalar::kFloat32}, {64, 16, Scalar::kFloat64}};
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

// ------------------------------------------------------------------------------- solver_core.cc

class SolverCore::Impl {
 public:
  Tenants tenants;
};

SolverCore::SolverCore(std::unique_ptr<Solver> /*solver*/, const CoreLimits& /*limits*/,
                       const ServerIdentity& /*server*/, Metrics* /*metrics*/, Clock* /*clock*/)
    : impl_(std::make_unique<Impl>()) {}
SolverCore::~SolverCore() = default;
Tenants& SolverCore::tenants() { return impl_->tenants; }
Budget& SolverCore::host() { return *TheFakeCore().host; }

absl::StatusOr<Shape> SolverCore::ShapeOf(const std::string& /*caller*/, const Handle& handle) {
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
