// The right-hand sides and solutions of blocks.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/blockctl/formats/blocks.h"

namespace blockd::blockctl {

std::string RowsText(int64_t rows, int64_t arrow_size, int64_t padding) {
  const char* sum = arrow_size == 0 ? "N*n" : "N*n + p";
  return absl::StrCat(sum, padding == 0 ? "" : " less the padding", " = ", rows);
}

Array Columns::ToMatrix() const {
  Array array;
  array.scalar = scalar;
  array.shape = {rows, count};
  array.fortran_order = true;
  array.data = data;
  return array;
}

Array Columns::ToArray() const {
  Array array = ToMatrix();
  array.shape = shape;
  // Block rows stand one after another in C order, and in Fortran order they do not.
  array.fortran_order = shape.size() == 2 && shape[0] == rows;
  if (!array.fortran_order && count > 1) {
    const int64_t width = client::ScalarBytes(scalar);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < count; ++c) {
        std::copy_n(&data[(c * rows + r) * width], width, &array.data[(r * count + c) * width]);
      }
    }
  }
  return array;
}

Columns Columns::WithRows(int64_t at, int64_t more) const {
  const int64_t width = client::ScalarBytes(scalar);
  Columns wider = *this;
  wider.rows = rows + more;
  wider.data.assign(wider.rows * count * width, std::byte{0});
  for (int64_t c = 0; c < count; ++c) {
    const std::byte* from = data.data() + c * rows * width;
    std::byte* to = wider.data.data() + c * wider.rows * width;
    std::copy_n(from, at * width, to);
    std::copy_n(from + at * width, (rows - at) * width, to + (at + more) * width);
  }
  return wider;
}

Columns Columns::WithoutRows(int64_t at, int64_t fewer) const {
  const int64_t width = client::ScalarBytes(scalar);
  Columns narrower = *this;
  narrower.rows = rows - fewer;
  narrower.data.resize(narrower.rows * count * width);
  for (int64_t c = 0; c < count; ++c) {
    const std::byte* from = data.data() + c * rows * width;
    std::byte* to = narrower.data.data() + c * narrower.rows * width;
    std::copy_n(from, at * width, to);
    std::copy_n(from + (at + fewer) * width, (narrower.rows - at) * width, to + at * width);
  }
  return narrower;
}

absl::StatusOr<Columns> ColumnsFromArray(const Array& array, int64_t num_blocks, int64_t block_size,
                                         int64_t arrow_size, int64_t padding) {
  const int64_t rows = num_blocks * block_size + arrow_size - padding;
  const std::vector<int64_t>& shape = array.shape;
  const bool by_rows = !shape.empty() && shape.size() <= 2 && shape[0] == rows;
  const bool has_blocks = arrow_size == 0 && padding == 0;
  const bool by_blocks = has_blocks && (shape.size() == 2 || shape.size() == 3) &&
                         shape[0] == num_blocks && shape[1] == block_size;
  if ((!by_rows && !by_blocks) || array.size() == 0) {
    const std::string blocks =
        absl::StrCat(", or by block rows ", ShapeText({num_blocks, block_size}), " or (",
                     num_blocks, ", ", block_size, ", d)");
    return absl::InvalidArgumentError(
        absl::StrCat("the right-hand sides have the shape ", ShapeText(shape), ", expected ",
                     ShapeText({rows}), " or (", rows, ", d), ",
                     RowsText(rows, arrow_size, padding), " rows", has_blocks ? blocks : ""));
  }
  Columns columns;
  columns.scalar = array.scalar;
  columns.rows = rows;
  columns.count = array.size() / rows;
  columns.shape = shape;
  columns.data.resize(array.data.size());
  // Row i n + j of column c.
  const int64_t d = columns.count;
  const int64_t count = by_rows ? rows : num_blocks, n = by_rows ? 1 : block_size;
  int64_t step_i = n * d, step_j = d, step_c = 1;
  if (array.fortran_order) {
    step_i = 1;
    step_j = num_blocks;
    step_c = rows;
  }
  const int64_t width = client::ScalarBytes(array.scalar);
  std::byte* out = columns.data.data();
  for (int64_t c = 0; c < d; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        out = std::copy_n(&array.data[(i * step_i + j * step_j + c * step_c) * width], width, out);
      }
    }
  }
  return columns;
}

}  // namespace blockd::blockctl
