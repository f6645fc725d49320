// A cache of factorizations without a device: their memory is never looked at.
#ifndef BLOCKD_TESTS_SERVER_CORE_CACHE_CACHE_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_CACHE_CACHE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/cache/cache.h"
#include "server/core/operations/kept_factorization.h"
#include "tests/server/base/fake_clock.h"
#include "tests/server/core/core_fixture.h"

namespace blockd::test {

class CacheTest : public testing::Test {
 protected:
  using Cache = server::Cache;
  static constexpr int64_t kTotal = 1 << 20;
  static inline const server::ServerIdentity kServer{"this", server::Epoch::Start("this")};

  CacheTest() { budget_.set_evictor(&cache_); }

  static std::shared_ptr<const EliminationPlan> MakePlan(int64_t num_blocks) {
    return std::make_shared<const EliminationPlan>(
        *EliminationPlan::Make({num_blocks, 4, Scalar::kFloat64}, 1, CostModel()));
  }
  std::shared_ptr<server::KeptFactorization> Make(bool keep_matrix = false, Border border = {}) {
    MatrixForm form;
    form.shape = plan_->shape();
    const int64_t matrix = StagedMatrix::BufferBytes(form);
    server::Reservation reservation =
        *budget_.Reserve(nullptr, charge() + (keep_matrix ? MemoryPool::Rounded(matrix) : 0));
    StagedMatrix kept;
    if (keep_matrix) kept = StagedMatrix(form, *pool_.Allocate(matrix));
    return std::make_shared<server::KeptFactorization>(
        std::move(reservation),
        std::make_shared<Factorization>(plan_, *pool_.Allocate(plan_->factor_bytes()),
                                        std::move(kept), Conditioning(), std::move(border)));
  }
  std::vector<server::KeptObjectPtr> MakeSome(int count, bool keep_matrix = false) {
    std::vector<server::KeptObjectPtr> some;
    for (int i = 0; i < count; ++i) some.push_back(Make(keep_matrix));
    return some;
  }
  absl::StatusOr<server::FactorizationPin> Lookup(const std::string& caller,
                                                  const server::Handle& handle) {
    return cache_.Lookup<server::FactorizationPin>(caller, handle);
  }
  absl::StatusOr<server::FactorizationPin> Peek(const std::string& caller,
                                                const server::Handle& handle) {
    absl::StatusOr<Cache::Pin> pin = cache_.Peek(caller, handle);
    if (!pin.ok()) return pin.status();
    return server::FactorizationPin(*std::move(pin));
  }
  server::Handle Insert(const std::string& caller = "alice",
                        const Cache::EntryOptions& options = {}) {
    return cache_.Insert(caller, MakeSome(1), options)[0];
  }
  int64_t charge() const { return MemoryPool::Rounded(plan_->factor_bytes()); }
  server::NotFoundReason WhyNot(const server::Handle& handle, const std::string& caller = "alice") {
    return ReasonOf(cache_.Peek(caller, handle).status());
  }
  // A solve with this pin, which then is none, was answered.
  void EndSolve(absl::StatusOr<server::FactorizationPin>& pin, int64_t num_rhs) {
    Cache::EndedUse ended{std::move(*pin), num_rhs};
    cache_.EndUses({&ended, 1});
  }
  double Metric(const std::string& name) const { return MetricIn(metrics_, name); }
  // The least recently used that is idle; empty if none is.
  std::vector<server::Evicted> EvictOldest() { return cache_.Evict(1, -1); }
  // Ends the least recently used, and says which of these it was; -1 if none.
  int EvictOneOf(const std::vector<server::Handle>& handles) {
    budget_.Free(EvictOldest());
    for (size_t i = 0; i < handles.size(); ++i) {
      if (!cache_.Get("alice", handles[i]).ok()) return static_cast<int>(i);
    }
    return -1;
  }

  FakeClock clock_;
  server::Metrics metrics_{server::BuildInfo{}};
  std::shared_ptr<const EliminationPlan> plan_ = MakePlan(4);
  MemoryPool pool_{reinterpret_cast<void*>(0x10000), kTotal};
  server::Budget budget_{{.total = kTotal}};
  Cache cache_{{.tombstones = 3, .idle_expiry = absl::Minutes(10)}, kServer, &clock_, &metrics_};
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_CORE_CACHE_CACHE_FIXTURE_H_
