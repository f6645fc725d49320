// A cache of factorizations without a device: their memory is never looked at.
#ifndef BLOCKD_TESTS_SERVER_CORE_CACHE_FACTORIZATION_CACHE_FIXTURE_H_
#define BLOCKD_TESTS_SERVER_CORE_CACHE_FACTORIZATION_CACHE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/cache/factorization_cache.h"
#include "tests/server/base/fake_clock.h"
#include "tests/server/core/core_fixture.h"

namespace blockd::test {

class FactorizationCacheTest : public testing::Test {
 protected:
  using Cache = server::FactorizationCache;
  static constexpr int64_t kTotal = 1 << 20;
  static inline const server::ServerIdentity kServer{"this", server::Epoch::Start("this")};

  FactorizationCacheTest() { budget_.set_evictor(&cache_); }

  static std::shared_ptr<const EliminationPlan> MakePlan(int64_t num_blocks) {
    return std::make_shared<const EliminationPlan>(
        *EliminationPlan::Make({num_blocks, 4, Scalar::kFloat64}, 1, CostModel()));
  }
  server::Holding Make(bool keep_matrix = false) {
    server::Holding holding;
    MatrixForm form;
    form.shape = plan_->shape();
    const int64_t matrix = StagedMatrix::BufferBytes(form);
    holding.reservation =
        *budget_.Reserve(nullptr, charge() + (keep_matrix ? MemoryPool::Rounded(matrix) : 0));
    StagedMatrix kept;
    if (keep_matrix) kept = StagedMatrix(form, *pool_.Allocate(matrix));
    holding.factorization = std::make_shared<Factorization>(
        plan_, *pool_.Allocate(plan_->factor_bytes()), std::move(kept), Conditioning());
    return holding;
  }
  std::vector<server::Holding> MakeSome(int count, bool keep_matrix = false) {
    std::vector<server::Holding> some;
    for (int i = 0; i < count; ++i) some.push_back(Make(keep_matrix));
    return some;
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
  void EndSolve(absl::StatusOr<Cache::Pin>& pin, int64_t num_rhs) {
    Cache::EndedSolve ended{std::move(*pin), num_rhs};
    cache_.EndSolves({&ended, 1});
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

#endif  // BLOCKD_TESTS_SERVER_CORE_CACHE_FACTORIZATION_CACHE_FIXTURE_H_
