#include "tests/server/core/core_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <sstream>

#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "tests/support/oracle.h"

namespace blockd::test {

using server::FactorParams;
using server::Handle;

namespace {

// In [0, 1), another one for each place, the same in every run.
double Noise(std::initializer_list<int64_t> place) {
  uint64_t x = 0x9e3779b97f4a7c15;
  for (const int64_t coordinate : place) {
    x = (x ^ static_cast<uint64_t>(coordinate)) * 0xbf58476d1ce4e5b9;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

// Diagonally dominant: a row's diagonal entry is at least 4, the others sum up to less than 1 in
// its block and to at most 1.5 in each of its two couplings.
TestSystem::TestSystem(int64_t num_blocks, int64_t block_size, int seed, int64_t arrow_size) {
  form.shape = {num_blocks, block_size, Scalar::kFloat64};
  form.border_rows = arrow_size;
  const int64_t n = block_size;
  diagonal.assign(static_cast<size_t>(num_blocks * n * n), std::nan(""));
  coupling.assign(static_cast<size_t>((num_blocks - 1) * n * n), 0);
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        const size_t at = static_cast<size_t>((b * n + c) * n + r);
        const double far = 1.0 / static_cast<double>(1 + std::abs(r - c) + n);
        const double noise = Noise({seed, b, r, c});
        if (r >= c) diagonal[at] = r == c ? 4 + noise : far * noise;
        if (b + 1 == num_blocks) continue;
        const double other = Noise({seed, b, r, c, 1});
        coupling[at] = r == c ? -0.5 - 0.5 * other : far * (other - 0.5);
      }
    }
  }
  const int64_t rows = form.shape.rows(), p = arrow_size;
  for (int64_t i = 0; i < p * rows; ++i) {
    border.push_back(0.1 / static_cast<double>(p) * Noise({seed, -1, i / rows, i % rows}));
  }
  corner.assign(static_cast<size_t>(p * p), std::nan(""));
  for (int64_t c = 0; c < p; ++c) {
    for (int64_t r = c; r < p; ++r) {
      const double noise = Noise({seed, -2, r, c});
      corner[static_cast<size_t>(c * p + r)] =
          r == c ? 0.1 * static_cast<double>(rows) + static_cast<double>(p) + noise : noise;
    }
  }
}

BlockTridiagonalView TestSystem::view() const {
  BlockTridiagonalView view;
  view.form = form;
  view.diagonal = diagonal.data();
  view.coupling = coupling.empty() ? nullptr : coupling.data();
  view.border = border.empty() ? nullptr : border.data();
  view.corner = corner.empty() ? nullptr : corner.data();
  return view;
}

std::vector<std::byte> TestSystem::bytes() const {
  std::vector<std::byte> all;
  for (const std::vector<double>* part : {&diagonal, &coupling, &border, &corner}) {
    const auto bytes = std::as_bytes(std::span(*part));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TestSystem TestSystem::Spoiled(int64_t block) const {
  TestSystem spoiled = *this;
  const int64_t n = form.shape.block_size;
  if (block == form.shape.num_blocks) {
    spoiled.corner[0] = -1;
  } else {
    spoiled.diagonal[static_cast<size_t>(block * n * n)] = -1;
  }
  return spoiled;
}

double TestSystem::Residual(std::span<const double> x, std::span<const double> b) const {
  const int64_t n = form.shape.block_size;
  const int64_t rows = form.rows(), p = form.border_rows, chain = rows - p;
  std::vector<double> r(b.begin(), b.end());
  for (int64_t column = 0; column < static_cast<int64_t>(b.size()) / rows; ++column) {
    const double* xc = x.data() + column * rows;
    double* rc = r.data() + column * rows;
    for (int64_t k = 0; k < form.shape.num_blocks; ++k) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < n; ++i) {
          const size_t at = static_cast<size_t>((k * n + j) * n + i);
          const size_t lower = static_cast<size_t>((k * n + std::min(i, j)) * n + std::max(i, j));
          rc[k * n + i] -= diagonal[lower] * xc[k * n + j];
          if (k + 1 == form.shape.num_blocks) continue;
          rc[(k + 1) * n + i] -= coupling[at] * xc[k * n + j];
          rc[k * n + j] -= coupling[at] * xc[(k + 1) * n + i];
        }
      }
    }
    for (int64_t i = 0; i < p; ++i) {
      for (int64_t k = 0; k < chain; ++k) {
        const double entry = border[static_cast<size_t>(i * chain + k)];
        rc[chain + i] -= entry * xc[k];
        rc[k] -= entry * xc[chain + i];
      }
      for (int64_t j = 0; j < p; ++j) {
        rc[chain + i] -=
            corner[static_cast<size_t>(std::min(i, j) * p + std::max(i, j))] * xc[chain + j];
      }
    }
  }
  double largest = 0;
  for (const double value : r) largest = std::max(largest, std::abs(value));
  return largest;
}

double TestSystem::LogDeterminant() const { return DenseCholesky(view()).LogDeterminant(); }

std::vector<double> TestRhs(const Shape& shape, int64_t num_rhs, int seed) {
  std::vector<double> rhs(static_cast<size_t>(shape.rows() * num_rhs));
  for (size_t i = 0; i < rhs.size(); ++i) {
    rhs[i] = std::sin(1.0 + seed + 1.1 * static_cast<double>(i));
  }
  return rhs;
}

namespace {

class AuditedBackend : public HookedBackend {
 public:
  using HookedBackend::HookedBackend;
  void Audit(server::Shard* shard) { shard_ = shard; }

  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    Check();
    return HookedBackend::Factor(batch, wanted);
  }
  absl::Status Solve(Track track, const SolveBatch& batch,
                     absl::FunctionRef<bool()> wanted) override {
    Check();
    return HookedBackend::Solve(track, batch, wanted);
  }
  absl::StatusOr<double> LogDeterminant(Track track, const EliminationPlan& plan,
                                        const void* factor) override {
    Check();
    return HookedBackend::LogDeterminant(track, plan, factor);
  }

 private:
  int64_t Reserved() const { return shard_->device().reserved(); }
  // Other threads reserve, allocate and give back between two of these reads, so that one look can
  // see the memory of a moment in which more was reserved. What nobody reserved is there at every
  // look.
  void Check() {
    if (shard_ == nullptr) return;
    constexpr int kLooks = 100;
    int64_t used = 0, reserved = 0;
    for (int look = 0; look < kLooks; ++look) {
      if (look > 0) std::this_thread::yield();
      reserved = Reserved();
      used = pool().stats().used_bytes - shard_->state().solve_reserve_bytes;
      if (used <= std::max(reserved, Reserved())) return;
    }
    ADD_FAILURE() << "memory that nobody reserved: of " << used << " bytes " << reserved;
  }

  server::Shard* shard_ = nullptr;
};

}  // namespace

CoreTest::~CoreTest() { Stop(); }

void CoreTest::Start(const Setup& setup) {
  BackendOptions options;
  options.memory_bytes = setup.memory_bytes;
  options.cpu_threads = 1;
  options.cpu_lanes = 1;
  solve_gate_ = setup.solve_gate ? std::make_shared<Gate>() : nullptr;
  std::vector<std::unique_ptr<Solver>> solvers;
  std::vector<AuditedBackend*> backends;
  other_gates_.clear();
  for (int device = 0; device < setup.devices; ++device) {
    absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", options);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
    costs.lanes = 1;
    if (device > 0) other_gates_.push_back(std::make_shared<Gate>());
    auto owned = std::make_unique<AuditedBackend>(*std::move(cpu), costs,
                                                  device == 0 ? gate_ : other_gates_.back(),
                                                  device == 0 ? solve_gate_ : nullptr);
    if (setup.flies) owned->Fly(landing_);
    backends.push_back(owned.get());
    solvers.push_back(std::make_unique<Solver>(std::move(owned)));
  }
  metrics_ =
      std::make_unique<server::Metrics>(server::BuildInfo{"test", "cpu", "this one", "this"});
  server::CoreLimits limits = setup.limits;
  limits.solve_reserve_bytes = setup.solve_reserve_bytes;
  limits.tenant_share = setup.tenant_share;
  core_ = std::make_unique<server::SolverCore>(std::move(solvers), limits, kServer, metrics_.get(),
                                               &clock_);
  if (!setup.audit) return;
  for (size_t i = 0; i < backends.size(); ++i) backends[i]->Audit(&core_->shards()[i]);
}

void CoreTest::Stop() {
  if (core_ == nullptr) return;
  gate_->Open();
  landing_->Open();
  if (solve_gate_ != nullptr) solve_gate_->Open();
  for (const auto& gate : other_gates_) gate->Open();
  core_->Drain();
  const server::SolverCore::MemoryStats memory = core_->memory();
  // With nothing under way, what is reserved is what the held factorizations use, to the byte.
  EXPECT_EQ(memory.pool.used_bytes - memory.solve_reserve_bytes, Reserved());
  EXPECT_LE(memory.pool.peak_used_bytes, memory.total_bytes + memory.solve_reserve_bytes);
  EXPECT_LE(Metric("blockd_budget_peak_reserved_bytes"), memory.total_bytes);
  EXPECT_EQ(memory.factorizations == 0, Reserved() == 0);
  EXPECT_EQ(core_->host().reserved(), 0);
  for (size_t i = 0; i < core_->shards().size(); ++i) {
    server::Shard& shard = core_->shards()[i];
    EXPECT_TRUE(shard.in_service() || shard.device().reserved() == 0);
  }
  EXPECT_EQ(core_->healthy(), healthy_);
  core_.reset();
  holders_.clear();
  EXPECT_FALSE(metrics_->Text().empty());  // a scrape after the end asks nobody
}

std::vector<double> CoreTest::NextRhs(const Shape& shape, int64_t num_rhs,
                                      const CallOptions& call) {
  return TestRhs(shape, num_rhs, call.rhs_seed < 0 ? 10 + ++calls_ : call.rhs_seed);
}

PendingFactor CoreTest::Factor(const std::vector<TestSystem>& systems, FactorParams params,
                               const CallOptions& call) {
  auto pending = std::make_unique<Pending<server::FactorReply>>();
  pending->context->caller = call.caller;
  pending->context->deadline = call.deadline;
  pending->context->may_run_here = call.may_run_here;
  std::vector<BlockTridiagonalView> views;
  for (const TestSystem& system : systems) {
    kept_.push_back(std::make_unique<TestSystem>(system));
    views.push_back(kept_.back()->view());
  }
  if (!systems.empty()) params.form = systems[0].form;
  core_->Factor(pending->context, params, std::move(views), pending->Callback());
  return pending;
}

PendingSolve CoreTest::Solve(const Handle& handle, const Shape& shape, int64_t num_rhs,
                             const CallOptions& call, bool residual, int32_t refinements) {
  auto pending = std::make_unique<Pending<Solved>>();
  pending->context->caller = call.caller;
  pending->context->deadline = call.deadline;
  pending->context->may_run_here = call.may_run_here;
  pending->rhs = NextRhs(shape, num_rhs, call);
  pending->solution.assign(pending->rhs.size(), 0);
  server::SolveParams params;
  params.handle = handle;
  params.num_rhs = num_rhs;
  params.rhs = std::as_bytes(std::span(pending->rhs));
  params.solution = std::as_writable_bytes(std::span(pending->solution));
  params.residual = residual;
  params.max_refinements = refinements;
  core_->Solve(pending->context, params, pending->Callback());
  return pending;
}

void AskOne(server::SolverCore& core, server::ContextPtr context, const OneFactorSolve& one,
            absl::AnyInvocable<void(absl::StatusOr<Solved>)> done) {
  server::FactorSolveParams params;
  static_cast<server::FactorSolveOptions&>(params) = one;
  params.form = one.matrix.form;
  params.matrices = {one.matrix};
  params.solves = {{one.num_rhs, one.rhs, one.solution}};
  if (one.handle) params.handles = {*one.handle};
  core.FactorSolve(
      std::move(context), std::move(params),
      [done = std::move(done)](absl::StatusOr<server::FactorSolveReply> reply) mutable {
        if (!reply.ok()) return done(reply.status());
        const server::FactorSolveOutcome& system = reply->systems[0];
        if (!system.solve.status.ok()) return done(system.solve.status);
        Solved solved;
        solved.backward_error = system.solve.backward_error;
        solved.backward_error_bound = system.solve.backward_error_bound;
        solved.refinements = system.solve.refinements;
        solved.growth = system.growth;
        solved.matrix_kept = system.matrix_kept;
        solved.log_determinant = system.log_determinant;
        solved.cost = reply->cost;
        done(solved);
      });
}

PendingSolve CoreTest::FactorSolve(const TestSystem& system, int64_t num_rhs,
                                   const CallOptions& call, bool residual) {
  auto pending = std::make_unique<Pending<Solved>>();
  pending->context->caller = call.caller;
  pending->context->deadline = call.deadline;
  pending->rhs = NextRhs(system.form.shape, num_rhs, call);
  pending->solution.assign(pending->rhs.size(), 0);
  kept_.push_back(std::make_unique<TestSystem>(system));
  OneFactorSolve params;
  params.matrix = kept_.back()->view();
  params.num_rhs = num_rhs;
  params.rhs = std::as_bytes(std::span(pending->rhs));
  params.solution = std::as_writable_bytes(std::span(pending->solution));
  params.residual = residual;
  params.log_determinant = residual;
  AskOne(*core_, pending->context, params, pending->Callback());
  return pending;
}

Handle CoreTest::Held(const TestSystem& system, FactorParams params) {
  PendingFactor factor = Factor({system}, std::move(params));
  const absl::StatusOr<server::FactorReply>& reply = factor->Wait();
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? reply->systems[0].handle : Handle();
}

absl::Status CoreTest::SolveStatus(const Handle& handle, const Shape& shape) {
  return Solve(handle, shape)->Wait().status();
}

void CoreTest::ExpectSolves(const TestSystem& system, Pending<Solved>& solve) {
  const absl::StatusOr<Solved>& reply = solve.Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_LT(system.Residual(solve.solution, solve.rhs), 1e-12);
}

PendingFactor CoreTest::HoldDevice() {
  // One that woke late would find the gate closed again, and stand there in place of the next one.
  for (const PendingSolve& before : holders_) before->Wait();
  const TestSystem small(3, 1);
  const CallOptions call = {.caller = "holder"};
  PendingFactor held = Factor({small}, {}, call);
  const Handle handle = held->Wait()->systems[0].handle;
  gate_->Close();
  holders_.push_back(Solve(handle, small.form.shape, 1, call));
  gate_->WaitForDevice();                                       // it has left the queue
  EXPECT_TRUE(core_->Release(call.caller, {&handle, 1}).ok());  // it goes with the solve
  PendingFactor holder = Factor({small}, {}, call);
  gate_->WaitForDevice(2);
  return holder;
}

double MetricIn(const server::Metrics& metrics, const std::string& name) {
  std::istringstream text(metrics.Text());
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size() + 1));
  }
  return -1;
}

int64_t CoreTest::Charge(const Shape& shape) {
  absl::StatusOr<EliminationPlan> plan =
      EliminationPlan::Make(shape, 1, core_->backend().costs(shape));
  EXPECT_TRUE(plan.ok());
  return MemoryPool::Rounded(plan->factor_bytes());
}

void RepeatUntil(absl::FunctionRef<bool()> reached, absl::FunctionRef<void()> step) {
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!reached()) {
    ASSERT_LT(absl::Now(), limit) << "not reached within a minute";
    step();
    absl::SleepFor(absl::Milliseconds(1));
  }
}

server::NotFoundReason ReasonOf(const absl::Status& status) {
  const auto detail = server::HandleNotFoundOf(status);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(detail.has_value());
  return detail ? detail->reason : server::NotFoundReason::kNeverExisted;
}

std::string FieldOf(const absl::Status& status) {
  const auto detail = server::InvalidFieldOf(status);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return detail ? detail->field : "";
}

}  // namespace blockd::test
