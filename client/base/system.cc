#include "blockd/client/system.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"

namespace blockd::client {
namespace {

constexpr int64_t kMaxBlockSize = int64_t{1} << 15;
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int64_t kMaxBytes = int64_t{1} << 62;
constexpr int64_t kMaxArrowSize = 1024;

int64_t DiagonalBlockBytes(const SystemView& view) {
  const int64_t n = view.block_size;
  return (view.diagonal_form == DiagonalForm::kFull ? n * n : n * (n + 1) / 2) *
         ScalarBytes(view.scalar);
}

int64_t CouplingBlockBytes(const SystemView& view) {
  return view.block_size * view.block_size * ScalarBytes(view.scalar);
}

absl::Status Wrong(const std::string& field, int64_t came, const std::string& expected) {
  return InvalidFieldError(field, absl::StrCat(came), expected);
}

absl::Status CheckPalette(const SystemView& view) {
  if (static_cast<int64_t>(view.diagonal_index.size()) != view.num_blocks) {
    return Wrong("spec.palette.diagonal_index", view.diagonal_index.size(),
                 absl::StrCat(view.num_blocks, " entries"));
  }
  if (static_cast<int64_t>(view.coupling_index.size()) != view.num_blocks - 1) {
    return Wrong("spec.palette.coupling_index", view.coupling_index.size(),
                 absl::StrCat(view.num_blocks - 1, " entries"));
  }
  if (view.num_diagonal < 1) {
    return Wrong("spec.palette.num_diagonal", view.num_diagonal, "at least 1");
  }
  if (view.num_blocks > 1 && view.num_coupling < 1) {
    return Wrong("spec.palette.num_coupling", view.num_coupling, "at least 1");
  }
  const int64_t most = kMaxBytes / (2 * CouplingBlockBytes(view));
  if (view.num_diagonal > most || view.num_coupling > most || view.num_coupling < 0) {
    return Wrong("spec.palette", std::max(view.num_diagonal, view.num_coupling),
                 absl::StrCat("at most ", most, " blocks"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SystemView::diagonal_bytes() const {
  return (is_palette() ? num_diagonal : num_blocks) * DiagonalBlockBytes(*this);
}

int64_t SystemView::coupling_bytes() const {
  return (is_palette() ? num_coupling : num_blocks - 1) * CouplingBlockBytes(*this);
}

int64_t SystemView::border_bytes() const {
  return num_blocks * block_size * arrow_size * ScalarBytes(scalar);
}

int64_t SystemView::corner_bytes() const { return arrow_size * arrow_size * ScalarBytes(scalar); }

std::array<std::span<const std::byte>, 4> SystemView::parts() const {
  const auto part = [](const void* data, int64_t bytes) {
    return std::span(static_cast<const std::byte*>(data), static_cast<size_t>(bytes));
  };
  return {part(diagonal, diagonal_bytes()), part(coupling, coupling_bytes()),
          part(border, border_bytes()), part(corner, corner_bytes())};
}

int64_t SystemView::bytes() const {
  return diagonal_bytes() + coupling_bytes() + border_bytes() + corner_bytes();
}

OwnedSystem CopySystem(const SystemView& view) {
  struct Memory {
    std::array<std::vector<std::byte>, 4> parts;
    std::vector<uint32_t> diagonal_index, coupling_index;
  };
  auto memory = std::make_shared<Memory>();
  const auto parts = view.parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    memory->parts[i].assign(parts[i].begin(), parts[i].end());
  }
  memory->diagonal_index.assign(view.diagonal_index.begin(), view.diagonal_index.end());
  memory->coupling_index.assign(view.coupling_index.begin(), view.coupling_index.end());
  OwnedSystem copy{view, memory};
  copy.view.diagonal = memory->parts[0].data();
  copy.view.coupling = memory->parts[1].data();
  copy.view.border = memory->parts[2].data();
  copy.view.corner = memory->parts[3].data();
  copy.view.diagonal_index = memory->diagonal_index;
  copy.view.coupling_index = memory->coupling_index;
  return copy;
}

absl::Status CheckSystem(const SystemView& view) {
  if (view.num_blocks < 1) return Wrong("spec.num_blocks", view.num_blocks, "at least 1");
  if (view.block_size < 1 || view.block_size > kMaxBlockSize) {
    return Wrong("spec.block_size", view.block_size, absl::StrCat("1 to ", kMaxBlockSize));
  }
  if (view.num_blocks > kMaxRows / view.block_size ||
      view.num_blocks > kMaxBytes / (2 * CouplingBlockBytes(view))) {
    return Wrong("spec.num_blocks", view.num_blocks, "a matrix of at most 2^62 bytes");
  }
  if (view.arrow_size < 0 || view.arrow_size > kMaxArrowSize) {
    return Wrong("spec.arrow_size", view.arrow_size, absl::StrCat("0 to ", kMaxArrowSize));
  }
  if (view.is_palette()) {
    if (absl::Status status = CheckPalette(view); !status.ok()) return status;
  }
  if (view.diagonal == nullptr) return InvalidFieldError("system.diagonal", "null", "the blocks");
  if (view.coupling == nullptr && view.num_blocks > 1) {
    return InvalidFieldError("system.coupling", "null", "the blocks");
  }
  if (view.arrow_size > 0 && (view.border == nullptr || view.corner == nullptr)) {
    return InvalidFieldError(view.border == nullptr ? "system.border" : "system.corner", "null",
                             "the border's rows and its corner");
  }
  return absl::OkStatus();
}

}  // namespace blockd::client
