#include "engine/solver/information.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace blockd {
namespace {

// Enough that a device is busy, and little beside the matrix.
constexpr int64_t kPortionBytes = int64_t{32} << 20;

const std::byte* BytesAt(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace

absl::Status CheckInformation(const InformationForm& information) {
  absl::Status status = CheckShape(information.shape);
  if (!status.ok()) return status;
  if (information.rows < 0 || information.rows > kMaxBlockSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("observations of ", information.rows, " rows, at most ", kMaxBlockSize));
  }
  if (information.rows > 0 && information.observations == nullptr) {
    return absl::InvalidArgumentError("observations are missing");
  }
  if (information.shape.num_blocks > 1 &&
      (information.transitions == nullptr || information.whiteners == nullptr)) {
    return absl::InvalidArgumentError("transitions or whiteners are missing");
  }
  return absl::OkStatus();
}

InformationWorkspace::InformationWorkspace(const InformationForm& information)
    : information_(information),
      scalar_(ScalarBytes(information.shape.scalar)),
      block_(information.shape.block_size * information.shape.block_size * scalar_),
      observed_(information.rows * information.shape.block_size * scalar_) {
  const int64_t a_step = 3 * block_ + observed_;
  steps_ = std::clamp<int64_t>(kPortionBytes / a_step, 1,
                               std::min(InformationSteps::kMost, information.shape.num_blocks));
  const auto take = [this](int64_t bytes) {
    return std::exchange(bytes_, bytes_ + MemoryPool::Rounded(bytes));
  };
  take(block_);  // of the step to the first
  transitions_ = take((information.one_transition ? 1 : steps_) * block_);
  whiteners_ = take((information.one_whitener ? 1 : steps_) * block_);
  observations_ = take(steps_ * observed_);
  products_ = take(steps_ * block_);
}

absl::Status InformationWorkspace::Make(Backend& backend, std::byte* base, void* diagonal,
                                        void* coupling, absl::FunctionRef<bool()> wanted) const {
  const int64_t blocks = information_.shape.num_blocks;
  for (int64_t first = 0; first < blocks; first += steps_) {
    if (!wanted()) break;
    InformationSteps steps;
    steps.shape = information_.shape;
    steps.first = first;
    steps.count = std::min(steps_, blocks - first);
    steps.diagonal = static_cast<std::byte*>(diagonal) + first * block_;
    steps.coupling = static_cast<std::byte*>(coupling) + first * block_;
    absl::Status status = MakeSteps(backend, base, steps);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InformationWorkspace::MakeSteps(Backend& backend, std::byte* base,
                                             InformationSteps steps) const {
  const InformationForm& from = information_;
  const int64_t moves = steps.moves();
  std::vector<HostCopy> copies;
  const auto send = [&](int64_t offset, const void* host, int64_t bytes) -> const void* {
    if (bytes > 0) copies.push_back({base + offset, host, bytes});
    return base + offset;
  };
  const void* to_first = from.initial;
  if (steps.first > 0) {
    to_first = BytesAt(from.whiteners, from.one_whitener ? 0 : (steps.first - 1) * block_);
  }
  if (to_first != nullptr) steps.to_first = send(0, to_first, block_);
  // Arrays that all steps share are sent with the first steps.
  const auto send_blocks = [&](int64_t offset, const void* host, bool one) {
    if (!one) return send(offset, BytesAt(host, steps.first * block_), moves * block_);
    return send(offset, host, steps.first == 0 && moves > 0 ? block_ : 0);
  };
  steps.transitions = send_blocks(transitions_, from.transitions, from.one_transition);
  steps.whiteners = send_blocks(whiteners_, from.whiteners, from.one_whitener);
  steps.one_transition = from.one_transition;
  steps.one_whitener = from.one_whitener;
  steps.observations = send(observations_, BytesAt(from.observations, steps.first * observed_),
                            steps.count * observed_);
  steps.rows = from.rows;
  steps.products = base + products_;
  absl::Status status = backend.UploadMany(Track::kFactor, copies);
  return status.ok() ? backend.FormInformation(steps) : status;
}

}  // namespace blockd
