#include "engine/cpu/columns.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace blockd::cpu {
namespace {

template <typename Piece>
void ForEachPiece(ThreadPool& threads, int64_t blocks, int64_t columns, const Piece& piece) {
  const int64_t tasks = std::min<int64_t>(threads.threads(), blocks);
  threads.Run(tasks, [&](int64_t task, int32_t) {
    for (int64_t block = blocks * task / tasks; block < blocks * (task + 1) / tasks; ++block) {
      for (int64_t c = 0; c < columns; ++c) piece(block, c);
    }
  });
}

template <typename Move>
void MoveColumns(ThreadPool& threads, const Shape& shape, std::span<const HostColumns> all,
                 const Move& move) {
  const int64_t bytes = shape.block_size * ScalarBytes(shape.scalar);
  for (const HostColumns& columns : all) {
    ForEachPiece(threads, shape.num_blocks, columns.columns, [&](int64_t block, int64_t c) {
      const int64_t place = block * columns.total_columns + columns.first_column + c;
      move(static_cast<std::byte*>(columns.packed) + place * bytes,
           static_cast<std::byte*>(columns.host) + (c * shape.num_blocks + block) * bytes, bytes);
    });
  }
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
  ForEachPiece(threads, shape.num_blocks, count, [&](int64_t block, int64_t c) {
    if (!columns[c]) return;
    const int64_t at = (block * count + c) * bytes;
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, bytes);
  });
}

}  // namespace blockd::cpu
