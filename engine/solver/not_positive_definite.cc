#include "engine/solver/not_positive_definite.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/solver/stopwatch.h"

namespace blockd {
namespace {

// The known prefixes: the first `good` blocks are positive definite, the first `bad` blocks are
// not.
struct Bracket {
  int64_t good = 0;
  int64_t bad = 0;

  // The pivot that failed then is the one that the natural order meets: all blocks before its own
  // are eliminated, and none after it.
  bool is_exact() const { return bad - good == 1; }
};

// The bracket that the plan's first failure implies. A pivot on the chain of a level ends the
// elimination of all blocks between two others of that chain.
Bracket BracketOf(const EliminationPlan& plan, const PivotFailure& failure) {
  int64_t l = 0;
  int64_t at = failure.block;  // in the level's chain
  size_t before = 0;           // separators left of it
  for (;; ++l, at = static_cast<int64_t>(before)) {
    const std::vector<int64_t>& separators = plan.levels()[l].separators;
    const auto next = std::lower_bound(separators.begin(), separators.end(), at);
    before = static_cast<size_t>(next - separators.begin());
    if (next == separators.end() || *next != at) break;
  }
  const Level& level = plan.levels()[l];
  Bracket bracket;
  // The segments before it succeeded, of which the first begins at the chain's end; in that one,
  // the blocks before it.
  bracket.good = plan.OriginalBlock(l, before > 0 ? level.separators[0] : at);
  const bool to_the_end = level.segments[before].reversed || at + 1 == level.chain_length;
  bracket.bad = to_the_end ? plan.shape().num_blocks : plan.OriginalBlock(l, at + 1);
  return bracket;
}

class MinorSearch {
 public:
  MinorSearch(Backend& backend, const FailedFactorization& failed)
      : backend_(backend), failed_(failed), plan_(*failed.plan) {}

  absl::StatusOr<std::optional<PivotFailure>> Run() {
    PivotFailure failure = failed_.failure;
    Bracket known = BracketOf(plan_, failure);
    if (known.is_exact()) return failure;
    // The block that failed is the likeliest to be to blame. The middle, every other time, makes
    // the bracket half as long whatever the matrix.
    for (bool middle = false; known.good < known.bad; middle = !middle) {
      const int64_t blocks = middle ? known.good + (known.bad - known.good + 1) / 2
                                    : std::clamp(failure.block + 1, known.good + 1, known.bad);
      const std::optional<EliminationPlan> plan = OpenPlan(blocks);
      if (!plan) break;
      const absl::StatusOr<FactorReport> report = Factor(*plan);
      if (!report.ok()) return report.status();
      if (!report->failure) {
        known.good = blocks;
        continue;
      }
      failure = *report->failure;
      const Bracket bracket = BracketOf(*plan, failure);
      if (bracket.is_exact()) return failure;
      known.good = std::max(known.good, bracket.good);
      // The block that failed is not the last one.
      known.bad = std::min({known.bad, bracket.bad, blocks - 1});
    }
    // One order of elimination succeeded with what failed in another.
    return std::nullopt;
  }

 private:
  bool IsStopped() const { return IsCancelled(failed_.cancelled); }

  bool Fits(const EliminationPlan& plan) const {
    return plan.factor_bytes() <= plan_.factor_bytes() &&
           plan.chain_scalars() <= plan_.chain_scalars() &&
           backend_.FactorScratchBytes(plan, 1) <= failed_.scratch_bytes;
  }

  // An open plan for a prefix with about as many separators a block as the plan that failed or, as
  // one end that is free saves less memory than two, with fewer.
  std::optional<EliminationPlan> OpenPlan(int64_t blocks) const {
    Shape shape = plan_.shape();
    const CostModel costs = backend_.costs(shape);
    double part = static_cast<double>(blocks) / static_cast<double>(shape.num_blocks);
    shape.num_blocks = blocks;
    for (;; part *= 0.75) {
      std::vector<int64_t> separators;
      int64_t chain = blocks;
      for (const Level& level : plan_.levels()) {
        const int64_t wished = std::llround(part * static_cast<double>(level.separators.size()));
        const int64_t cuts = std::min(wished, chain / 2);
        if (cuts == 0) break;
        separators.push_back(cuts);
        chain = cuts;
      }
      absl::StatusOr<EliminationPlan> plan = EliminationPlan::MakeOpen(shape, separators, costs);
      if (plan.ok() && Fits(*plan)) return *std::move(plan);
      if (separators.empty()) return std::nullopt;
    }
  }

  // The prefix that the plan is for.
  absl::StatusOr<FactorReport> Factor(const EliminationPlan& plan) {
    FactorSystem system = failed_.system;
    system.matrix.form.shape = plan.shape();
    FactorBatch batch;
    batch.plan = &plan;
    batch.systems = {&system, 1};
    batch.scratch = failed_.scratch;
    batch.stop = failed_.cancelled;
    absl::StatusOr<std::vector<FactorReport>> reports =
        backend_.Factor(batch, [this] { return !IsStopped(); });
    // The next owner of the memory finds an idle track.
    if (!reports.ok()) backend_.Synchronize(Track::kFactor).IgnoreError();
    if (IsStopped()) return absl::CancelledError("cancelled while factoring");
    if (!reports.ok()) return reports.status();
    return (*reports)[0];
  }

  Backend& backend_;
  const FailedFactorization& failed_;
  const EliminationPlan& plan_;
};

}  // namespace

absl::StatusOr<NotPositiveDefinite> FindFirstBadMinor(Backend& backend,
                                                      const FailedFactorization& failed) {
  const absl::StatusOr<std::optional<PivotFailure>> found = MinorSearch(backend, failed).Run();
  if (!found.ok()) return found.status();
  const PivotFailure& pivot = found->has_value() ? **found : failed.failure;
  NotPositiveDefinite where;
  where.natural_order = found->has_value();
  where.block = pivot.block;
  where.row = pivot.row;
  where.minor = pivot.block * failed.plan->shape().block_size + pivot.row + 1;
  return where;
}

}  // namespace blockd
