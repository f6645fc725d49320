#include "server/transport/wire/shared_data.h"

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {

absl::StatusOr<std::span<std::byte>> SharedMemory::Data(std::string_view name, uint64_t offset,
                                                        uint64_t bytes) const {
  if (Has(offset, bytes)) return mapping.subspan(offset, bytes);
  return InvalidFieldError(name, absl::StrCat(bytes, " bytes from ", offset, " on"),
                           absl::StrCat("a multiple of ", v1::kShmAlignment, ", and bytes from ",
                                        data_offset, " to ", mapping.size()));
}

absl::StatusOr<SharedData> SharedData::Of(const v1::ShmRequest& slot, const SharedMemory& memory) {
  if (slot.num_places == 0) return SharedData(memory, {});
  const auto places = memory.Data("places_offset", slot.places_offset,
                                  uint64_t{slot.num_places} * sizeof(v1::ShmPlace));
  if (!places.ok()) return places.status();
  return SharedData(
      memory, {reinterpret_cast<const v1::ShmPlace*>(places->data()), size_t{slot.num_places}});
}

absl::Status SharedData::Invalid(const std::string& came, const std::string& expected) const {
  return InvalidFieldError(absl::StrCat("places[", taken_ - 1, "]"), came, expected);
}

absl::StatusOr<std::span<std::byte>> SharedData::Take() {
  if (taken_ == places_.size()) {
    return InvalidFieldError("num_places", absl::StrCat(places_.size()), "more of them");
  }
  const v1::ShmPlace place = CopyOnce(places_[taken_++]);
  if (memory_.Has(place.offset, place.bytes)) {
    return memory_.mapping.subspan(place.offset, place.bytes);
  }
  return memory_.Data(absl::StrCat("places[", taken_ - 1, "]"), place.offset, place.bytes);
}

absl::StatusOr<const std::byte*> SharedData::TakeBlocks(int64_t bytes) {
  const auto data = Take();
  if (!data.ok()) return data.status();
  if (data->size() != static_cast<uint64_t>(bytes)) {
    return Invalid(absl::StrCat(data->size(), " bytes"), absl::StrCat(bytes, " bytes"));
  }
  return data->data();
}

absl::Status SharedData::CheckCount(int64_t places) const {
  if (static_cast<int64_t>(places_.size()) == places) return absl::OkStatus();
  return InvalidFieldError("num_places", absl::StrCat(places_.size()), absl::StrCat(places));
}

absl::Status SharedData::TakeMatrix(BlockTridiagonalView* matrix, bool check_finite) {
  const MatrixForm& form = matrix->form;
  const auto diagonal = TakeBlocks(form.diagonal_bytes());
  if (!diagonal.ok()) return diagonal.status();
  const auto others = TakeBlocks(form.bytes() - form.diagonal_bytes());
  if (!others.ok()) return others.status();
  if (check_finite) blocks_ += static_cast<uint64_t>(form.bytes());
  matrix->diagonal = *diagonal;
  matrix->coupling = *others;
  matrix->border = *others + form.coupling_bytes();
  matrix->corner = *others + form.coupling_bytes() + form.border_bytes();
  return absl::OkStatus();
}

// In place, or from one place to another: a copy between two that overlap is undefined.
absl::Status SharedData::TakeColumns(SolveManyParams::Columns* columns) {
  const auto rhs = Take();
  if (!rhs.ok()) return rhs.status();
  const auto solution = Take();
  if (!solution.ok()) return solution.status();
  const size_t bytes = rhs->size();
  if (solution->size() != bytes) {
    return Invalid(absl::StrCat(solution->size(), " bytes"),
                   absl::StrCat("the ", bytes, " of the right-hand sides"));
  }
  const std::byte *const from = rhs->data(), *const to = solution->data();
  if (from != to && from < to + bytes && to < from + bytes) {
    return Invalid("a part of the right-hand sides", "their place, or another");
  }
  columns->rhs = *rhs;
  columns->solution = *solution;
  columns_ += bytes;
  return absl::OkStatus();
}

absl::Status SharedData::CheckTaken() const {
  absl::Status status = CheckCount(static_cast<int64_t>(taken_));
  if (!status.ok()) return status;
  if (columns_ > memory_.mapping.size()) {
    return InvalidFieldError("places", "solutions that overlap",
                             "solutions in places of their own");
  }
  if (blocks_ > memory_.mapping.size()) {
    return InvalidFieldError("places", "matrices that overlap",
                             "matrices in places of their own, with check_finite");
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
