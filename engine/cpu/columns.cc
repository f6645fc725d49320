#include "engine/cpu/columns.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace blockd::cpu {
namespace {

// One thread copies so many bytes before others would have begun.
constexpr int64_t kAloneBytes = int64_t{256} << 10;

// piece(block) for all blocks, each of `bytes`.
template <typename Piece>
void ForEachBlock(ThreadPool& threads, int64_t blocks, int64_t bytes, const Piece& piece) {
  const int64_t tasks =
      blocks * bytes < kAloneBytes ? 1 : std::min<int64_t>(threads.threads(), blocks);
  threads.Run(tasks, [&](int64_t task, int32_t) {
    for (int64_t block = blocks * task / tasks; block < blocks * (task + 1) / tasks; ++block) {
      piece(block);
    }
  });
}

template <typename Move>
void MoveColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> all,
                 const Move& move) {
  const int64_t bytes = shape.block_size * ScalarBytes(shape.scalar);
  int64_t count = 0;
  for (const HostColumns& columns : all) count += columns.columns;
  ForEachBlock(threads, shape.num_blocks, count * bytes, [&](int64_t block) {
    for (const HostColumns& columns : all) {
      const int64_t place = block * columns.total_columns + columns.first_column;
      for (int64_t c = 0; c < columns.columns; ++c) {
        move(static_cast<std::byte*>(columns.packed) + (place + c) * bytes,
             static_cast<std::byte*>(columns.host) + (c * shape.num_blocks + block) * bytes, bytes);
      }
    }
  });
}

}  // namespace

void PackColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> columns) {
  MoveColumns(threads, shape, columns, [](std::byte* packed, std::byte* host, int64_t bytes) {
    std::memcpy(packed, host, bytes);
  });
}

void UnpackColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> columns) {
  MoveColumns(threads, shape, columns, [](std::byte* packed, std::byte* host, int64_t bytes) {
    std::memcpy(host, packed, bytes);
  });
}

void CopyColumns(ThreadPool& threads, const Shape& shape, void* to, const void* from,
                 const std::vector<bool>& columns) {
  const int64_t bytes = shape.block_size * ScalarBytes(shape.scalar);
  const int64_t count = static_cast<int64_t>(columns.size());
  ForEachBlock(threads, shape.num_blocks, count * bytes, [&](int64_t block) {
    for (int64_t c = 0; c < count; ++c) {
      if (!columns[c]) continue;
      const int64_t at = (block * count + c) * bytes;
      std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, bytes);
    }
  });
}

}  // namespace blockd::cpu
