#include "server/core/operations/factor_solve_requests.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::server {
namespace {

// The answers of several devices, of which the last one to come answers for all.
class Joined {
 public:
  Joined(size_t systems, size_t parts, FactorSolveDone done)
      : done_(std::move(done)), unanswered_(parts) {
    reply_.systems.resize(systems);
  }

  void Take(const std::vector<size_t>& places, absl::StatusOr<FactorSolveReply> part) {
    absl::StatusOr<FactorSolveReply> answer;
    {
      absl::MutexLock lock(&mutex_);
      if (part.ok()) {
        some_ok_ = true;
        reply_.cost.Add(part->cost);
      } else if (failure_.ok()) {
        failure_ = part.status();
      }
      for (size_t i = 0; i < places.size(); ++i) {
        FactorSolveOutcome& outcome = reply_.systems[places[i]];
        if (part.ok()) {
          outcome = std::move(part->systems[i]);
        } else {
          outcome.solve.status = part.status();
        }
      }
      if (--unanswered_ > 0) return;
      if (some_ok_) {
        answer = std::move(reply_);
      } else {
        answer = failure_;
      }
    }
    done_(std::move(answer));
  }

 private:
  FactorSolveDone done_;
  absl::Mutex mutex_;
  size_t unanswered_ ABSL_GUARDED_BY(mutex_);
  bool some_ok_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first of a whole part
  FactorSolveReply reply_ ABSL_GUARDED_BY(mutex_);
};

FactorSolveParams Some(const FactorSolveParams& all, std::vector<size_t> places) {
  FactorSolveParams some;
  static_cast<FactorSolveOptions&>(some) = all;
  some.form = all.form;
  for (const size_t place : places) {
    some.matrices.push_back(all.matrices[place]);
    some.solves.push_back(all.solves[place]);
    some.handles.push_back(all.handles[place]);
  }
  some.places = std::move(places);
  return some;
}

}  // namespace

// Where the memory and the work before it suit it best; any, which then says it, where it is wrong
// or fits nowhere.
FactorSolveOperation& FactorSolveRequests::Choose(const FactorSolveParams& params) {
  if (shards_->size() == 1) return (*operations_)[0];
  const absl::StatusOr<std::vector<Shard*>> order = shards_->Order(
      [&](Shard& shard, Offer& offer) { return (*operations_)[shard.index()].Ask(params, offer); });
  return (*operations_)[(order.ok() ? *(*order)[0] : shards_->front()).index()];
}

void FactorSolveRequests::Start(ContextPtr context, FactorSolveParams params,
                                FactorSolveDone done) {
  if (params.handles.empty()) {
    FactorSolveOperation& chosen = Choose(params);
    return chosen.Start(std::move(context), std::move(params), std::move(done));
  }
  const size_t systems = params.matrices.size();
  std::vector<std::vector<size_t>> places_on(shards_->size());
  // Any operation reports the errors of the message as a whole.
  if (params.handles.size() == systems && params.solves.size() == systems) {
    for (size_t i = 0; i < systems; ++i)
      places_on[shards_->IndexOf(params.handles[i])].push_back(i);
  }
  const auto parts = static_cast<size_t>(
      std::count_if(places_on.begin(), places_on.end(), [](const auto& p) { return !p.empty(); }));
  if (parts <= 1) {
    size_t index = shards_->front().index();
    for (size_t i = 0; i < places_on.size(); ++i) {
      if (!places_on[i].empty()) index = i;
    }
    return (*operations_)[index].Start(std::move(context), std::move(params), std::move(done));
  }
  auto joined = std::make_shared<Joined>(systems, parts, std::move(done));
  for (size_t i = 0; i < places_on.size(); ++i) {
    if (places_on[i].empty()) continue;
    FactorSolveParams some = Some(params, places_on[i]);
    (*operations_)[i].Start(
        context, std::move(some),
        [joined, places = std::move(places_on[i])](absl::StatusOr<FactorSolveReply> part) {
          joined->Take(places, std::move(part));
        });
  }
}

}  // namespace blockd::server
