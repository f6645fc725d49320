// A .npy file of any bytes: what is accepted holds as many numbers as its shape says, and can be
// used as blocks and as columns.
#include <algorithm>
#include <string_view>

#include "client/blockctl/formats/blocks.h"
#include "client/blockctl/formats/npy.h"
#include "tests/fuzz/check.h"

namespace blockd::blockctl {
namespace {

void UseAsBlocks(const Array& array) {
  const absl::StatusOr<Blocks> blocks = BlocksFromArrays(array, &array, true);
  if (!blocks.ok()) return;
  // Only a single block has couplings of the same shape: none.
  FUZZ_CHECK(blocks->num_blocks == 1 || blocks->coupling.size() < blocks->diagonal.size());
  FUZZ_CHECK(blocks->diagonal.size() == array.data.size());
}

void UseAsColumns(const Array& array, int64_t num_blocks, int64_t block_size) {
  const absl::StatusOr<Columns> columns = ColumnsFromArray(array, num_blocks, block_size);
  if (!columns.ok()) return;
  FUZZ_CHECK(columns->data.size() == array.data.size());
  // A solution in these places would be written as the array, in one order or the other.
  const Array back = columns->ToArray();
  FUZZ_CHECK(back.shape == array.shape);
  const absl::StatusOr<Columns> again = ColumnsFromArray(back, num_blocks, block_size);
  FUZZ_CHECK(again.ok() && again->data == columns->data);
}

}  // namespace
}  // namespace blockd::blockctl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::blockctl;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Array> array = ParseNpy(bytes);
  if (!array.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(array.status()));
    return 0;
  }
  FUZZ_CHECK(
      std::all_of(array->shape.begin(), array->shape.end(), [](int64_t n) { return n >= 0; }));
  const int64_t wanted = array->size() * blockd::client::ScalarBytes(array->scalar);
  FUZZ_CHECK(wanted == static_cast<int64_t>(array->data.size()));
  UseAsBlocks(*array);
  for (const int64_t block_size : {1, 2, 3}) {
    const int64_t rows = array->shape.empty() ? 1 : array->shape[0];
    UseAsColumns(*array, rows, block_size);
    UseAsColumns(*array, rows / block_size, block_size);
  }
  return 0;
}
