// A .mtx file of any text: what is accepted lies within the matrix, sorted, each place once, and
// can be cut into blocks.
#include <string_view>

#include "client/blockctl/formats/blocks.h"
#include "client/blockctl/formats/matrix_market.h"
#include "tests/fuzz/check.h"

namespace blockd::blockctl {
namespace {

// Larger ones are a question of memory.
constexpr int64_t kMostRows = 100;

void CheckSparse(const SparseMatrix& matrix) {
  FUZZ_CHECK(matrix.rows >= 1);
  const Entry* last = nullptr;
  for (const Entry& e : matrix.entries) {
    FUZZ_CHECK(e.column >= 0 && e.column <= e.row && e.row < matrix.rows);
    if (last != nullptr) {
      FUZZ_CHECK(last->column < e.column || (last->column == e.column && last->row < e.row));
    }
    last = &e;
  }
  const int64_t n = DetectBlockSize(matrix);
  FUZZ_CHECK(n >= 1 && n <= matrix.rows);
  if (matrix.rows > kMostRows) return;
  const absl::StatusOr<Blocks> blocks = BlocksFromSparse(matrix, 0);
  FUZZ_CHECK(blocks.ok() && blocks->block_size == n && blocks->rows() == matrix.rows);
  FUZZ_CHECK(blocks->num_blocks * n == matrix.rows + blocks->padding && blocks->padding < n);
  for (const int64_t size : {1, 2, 3, 7}) {
    const absl::StatusOr<Blocks> given = BlocksFromSparse(matrix, size);
    FUZZ_CHECK(!given.ok() || (given->block_size == size && size >= n && given->padding == 0));
  }
}

void CheckColumns(const Array& array) {
  FUZZ_CHECK(array.shape.size() == 2 && array.fortran_order);
  FUZZ_CHECK(array.shape[0] >= 1 && array.shape[1] >= 1);
  FUZZ_CHECK(array.data.size() == array.size() * sizeof(double));
  FUZZ_CHECK(ColumnsFromArray(array, array.shape[0], 1).ok());
}

}  // namespace
}  // namespace blockd::blockctl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::blockctl;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<SparseMatrix> matrix = ParseSparse(text);
  const absl::StatusOr<Array> columns = ParseColumns(text);
  FUZZ_CHECK(!matrix.ok() || !columns.ok());
  if (matrix.ok()) CheckSparse(*matrix);
  if (columns.ok()) CheckColumns(*columns);
  FUZZ_CHECK(matrix.ok() || absl::IsInvalidArgument(matrix.status()));
  FUZZ_CHECK(columns.ok() || absl::IsInvalidArgument(columns.status()));
  return 0;
}
