#include "client/session/refactor_frame.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace blockd::client {
namespace {

std::byte* BytesOf(const grpc::Slice& slice) {
  // The slice may be written, because nobody else has it yet.
  return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(slice.begin()));
}

}  // namespace

RefactorFrame::RefactorFrame(std::span<const Factorization> factorizations,
                             std::span<const SystemView> systems, const ManySolves& layout,
                             Bytes rhs, std::span<std::byte> solution, const SolveOptions& solve,
                             const FactorOptions& factor)
    : factorizations_(factorizations.begin(), factorizations.end()),
      solves_(layout.solves),
      rhs_(rhs),
      solution_(solution),
      solve_(solve),
      factor_(factor),
      now_(factorizations.size()),
      left_(factorizations.size()) {
  std::iota(left_.begin(), left_.end(), size_t{0});
  result_.solves.resize(factorizations.size());
  for (size_t i = 0; i < systems.size(); ++i) {
    const auto& healer = factorizations[i].healer;
    systems_.push_back(healer != nullptr ? CopySystem(systems[i]) : OwnedSystem{systems[i]});
    if (healer == nullptr) continue;
    max_restores_ = max_restores_ < 0 ? healer->max_restores()
                                      : std::min(max_restores_, healer->max_restores());
  }
  if (heals()) {
    rhs_copy_.assign(rhs.begin(), rhs.end());
    rhs_ = rhs_copy_;
  }
}

RefactorFrame::Message RefactorFrame::Next() {
  Message message;
  std::ranges::sort(left_);
  for (const size_t i : left_) {
    const auto& healer = factorizations_[i].healer;
    now_[i] = healer != nullptr ? healer->current() : Healer::Current{factorizations_[i]};
  }
  message.route = now_[left_[0]].factorization.route;
  const auto elsewhere = std::stable_partition(left_.begin(), left_.end(), [&](size_t i) {
    return now_[i].factorization.route == message.route;
  });
  sent_.assign(left_.begin(), elsewhere);
  left_.erase(left_.begin(), elsewhere);

  const SystemView& first = systems_[sent_[0]].view;
  const auto matrix_bytes = static_cast<size_t>(first.bytes());
  const size_t rhs_bytes = solves_[0].bytes;
  message.request = MakeFactorSolveManyRequest(first, solves_[0].num_rhs, solve_, factor_);
  message.matrix = grpc::Slice(sent_.size() * matrix_bytes);
  message.rhs = grpc::Slice(sent_.size() * rhs_bytes);
  std::byte* matrix = BytesOf(message.matrix);
  std::byte* rhs = BytesOf(message.rhs);
  for (const size_t i : sent_) {
    message.request.add_handle(now_[i].factorization.handle);
    message.heals |= factorizations_[i].healer != nullptr;
    for (const Bytes part : systems_[i].view.parts()) {
      matrix = std::ranges::copy(part, matrix).out;
    }
    rhs = std::ranges::copy(rhs_.subspan(solves_[i].offset, rhs_bytes), rhs).out;
  }
  const bool all = sent_.size() == solves_.size();
  scratch_.resize(all ? 0 : sent_.size() * rhs_bytes);
  message.solution = all ? solution_ : std::span(scratch_);
  return message;
}

void RefactorFrame::Place() {
  const std::byte* from = scratch_.data();
  if (scratch_.empty()) return;
  for (const size_t i : sent_) {
    std::copy_n(from, solves_[i].bytes, solution_.data() + solves_[i].offset);
    from += solves_[i].bytes;
  }
}

std::vector<size_t> RefactorFrame::Take(absl::StatusOr<SolveResult> answer) {
  std::vector<size_t> lost;
  if (answer.ok()) {
    any_answer_ = true;
    result_.cost = std::move(answer->cost);
  }
  for (size_t k = 0; k < sent_.size(); ++k) {
    const size_t i = sent_[k];
    SolveOutcome& outcome = result_.solves[i];
    outcome = answer.ok() ? std::move(answer->solves[k]) : SolveOutcome{answer.status()};
    Healer* const healer = factorizations_[i].healer.get();
    if (healer == nullptr) continue;
    if (!outcome.status.ok()) {
      if (healer->Mends(now_[i].generation, outcome.status)) lost.push_back(i);
    } else if (!healer->Refactored(now_[i].generation, systems_[i].view, factor_)) {
      left_.push_back(i);  // what was restored meanwhile has the values before
    }
  }
  return lost;
}

void RefactorFrame::Restore(size_t lost, Healer::Done done) {
  factorizations_[lost].healer->Restore(now_[lost].generation, result_.solves[lost].status,
                                        std::move(done));
}

void RefactorFrame::Restored(size_t lost, const absl::Status& status) {
  if (status.ok()) {
    left_.push_back(lost);
  } else {
    result_.solves[lost].status = status;
  }
}

void RefactorFrame::Again(const std::vector<size_t>& lost) {
  left_.insert(left_.end(), lost.begin(), lost.end());
}

absl::StatusOr<SolveResult> RefactorFrame::Result() {
  if (!any_answer_) return result_.solves[0].status;
  Summarize(result_);
  return std::move(result_);
}

}  // namespace blockd::client
