#include "engine/gpu/vectors/vector_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/reachable_memory.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// A launch's entries lie at the beginning of a pinned piece, what is staged behind them.
struct VectorCalls::Move {
  struct Staged {
    std::byte* host;    // the caller's
    std::byte* pinned;  // of as many bytes
    int64_t bytes;
  };

  Move(const Shape& shape, bool first, std::byte* pinned)
      : shape(shape),
        first(first),
        entries(reinterpret_cast<ColumnEntry*>(pinned)),
        data(pinned + kTableBytes),
        end(pinned + Device::kStagingBytes) {}

  static constexpr int64_t kTableBytes =
      MemoryPool::Rounded(kEntriesALaunch * int64_t{sizeof(ColumnEntry)});
  static_assert(kTableBytes <= Device::kStagingBytes / 2);

  const Shape& shape;
  const bool first;
  ColumnEntry* const entries;
  int64_t count = 0, most_pieces = 0;
  std::byte* data;  // what is free begins here
  std::byte* const end;
  std::vector<Staged> staged;

  bool full() const { return count == kEntriesALaunch; }
  void Add(const ColumnEntry& entry) {
    entries[count++] = entry;
    most_pieces = std::max(most_pieces, entry.pieces);
  }
};

void VectorCalls::CopyStaged(bool pack, const Move& move) {
  for (const Move::Staged& part : move.staged) {
    std::memcpy(pack ? part.pinned : part.host, pack ? part.host : part.pinned, part.bytes);
  }
}

absl::Status VectorCalls::Launch(bool pack, bool last, Move& move) {
  if (pack) CopyStaged(pack, move);
  Marks& marks = device_.marks();
  const MoveArgs args = {.entries = move.count == 1 ? nullptr : move.entries,
                         .only = move.entries[0],
                         .count = move.count,
                         .most_pieces = move.most_pieces,
                         .blocks = move.shape.num_blocks,
                         .n = move.shape.block_size,
                         .first = move.first,
                         .last = last,
                         .times = pack ? marks.pack() : marks.unpack(),
                         .number = marks.number(),
                         .counter = device_.move_counter()};
  const Stream stream = device_.stream();
  const bool wide = move.shape.scalar == Scalar::kFloat64;
  absl::Status status = device_.Launched(
      pack ? (wide ? ScatterColumns<double>(args, stream) : ScatterColumns<float>(args, stream))
           : (wide ? GatherColumns<double>(args, stream) : GatherColumns<float>(args, stream)));
  if (status.ok()) status = device_.MarkPinned();
  if (status.ok() && !pack && !move.staged.empty()) {
    status = device_.Synchronize();
    if (status.ok()) CopyStaged(pack, move);
  }
  return status;
}

absl::Status VectorCalls::MoveAll(bool pack, const Shape& shape,
                                  std::span<const HostColumns> columns) {
  absl::Status status = device_.Begin();
  if (!status.ok() || columns.empty()) return status;
  const int64_t bytes = shape.block_size * ScalarBytes(shape.scalar);
  const ReachableMemory::Look reachable;
  std::optional<Move> move;
  bool first_move = true;
  // Launches what has been added if `needed`, and has a place for another entry.
  const auto next = [&](bool needed) {
    absl::Status done;
    if (move.has_value() && (needed || move->full())) {
      done = Launch(pack, /*last=*/false, *move);
      move.reset();
    }
    if (!done.ok() || move.has_value()) return done;
    absl::StatusOr<void*> pinned = device_.NextPinned();
    if (pinned.ok()) {
      move.emplace(shape, std::exchange(first_move, false), static_cast<std::byte*>(*pinned));
    }
    return pinned.status();
  };
  for (const HostColumns& some : columns) {
    const int64_t pieces = shape.num_blocks * some.columns;
    auto* host = static_cast<std::byte*>(some.host);
    if (reachable.Has(host, pieces * bytes) || device_.InPool(host)) {
      status = next(false);
      if (!status.ok()) return status;
      move->Add({host, some.packed, 0, pieces, some.first_column, some.total_columns});
      continue;
    }
    for (int64_t first = 0; first < pieces;) {
      status = next(move.has_value() && move->end - move->data < bytes);
      if (!status.ok()) return status;
      const int64_t part = std::min(pieces - first, (move->end - move->data) / bytes);
      move->staged.push_back({host + first * bytes, move->data, part * bytes});
      move->Add({move->data, some.packed, first, part, some.first_column, some.total_columns});
      move->data += part * bytes;
      first += part;
    }
  }
  status = Launch(pack, /*last=*/true, *move);
  if (!status.ok()) return status;
  pack ? device_.marks().PackLaunched() : device_.marks().UnpackLaunched();
  return status;
}

absl::Status VectorCalls::Pack(const Shape& shape, std::span<const HostColumns> columns) {
  return MoveAll(/*pack=*/true, shape, columns);
}

absl::Status VectorCalls::Unpack(const Shape& shape, std::span<const HostColumns> columns) {
  return MoveAll(/*pack=*/false, shape, columns);
}

absl::StatusOr<double> VectorCalls::LogDeterminant(const EliminationPlan& plan,
                                                   const void* factor) {
  absl::Status status = device_.Begin();
  const int64_t n = plan.shape().block_size;
  double* partial = reinterpret_cast<double*>(device_.call_memory());
  const auto sum = [&](const auto* scalars, const Level& level) {
    return device_.Launched(
        SumLogs(scalars + level.inverse_offset, level.interiors, n, partial, device_.stream()));
  };
  double total = 0;
  for (const Level& level : plan.levels()) {
    if (status.ok()) {
      status = plan.shape().scalar == Scalar::kFloat64
                   ? sum(static_cast<const double*>(factor), level)
                   : sum(static_cast<const float*>(factor), level);
    }
    double parts[kLogPartials];
    if (status.ok()) status = device_.Download(parts, partial, sizeof(parts));
    if (!status.ok()) return status;
    for (const double part : parts) total += part;
  }
  return -2 * total;
}

absl::StatusOr<std::vector<Backend::ResidualNorms>> VectorCalls::Residual(
    const BlockTridiagonalView& matrix, const void* x, const void* b, void* r, int64_t num_rhs) {
  return matrix.shape().scalar == Scalar::kFloat64
             ? Residuals(matrix, static_cast<const double*>(x), static_cast<const double*>(b),
                         static_cast<double*>(r), num_rhs)
             : Residuals(matrix, static_cast<const float*>(x), static_cast<const float*>(b),
                         static_cast<float*>(r), num_rhs);
}

absl::Status VectorCalls::CopyColumns(const Shape& shape, void* to, const void* from,
                                      const std::vector<bool>& columns) {
  absl::Status status = device_.Begin();
  const int64_t bytes = shape.block_size * ScalarBytes(shape.scalar);
  const auto count = static_cast<int64_t>(columns.size());
  for (int64_t first = 0, end = 0; status.ok() && first < count; first = end) {
    // Columns that go together, or stay.
    for (end = first + 1; end < count && columns[end] == columns[first];) ++end;
    if (!columns[first]) continue;
    const auto pitch = static_cast<size_t>(count * bytes);
    status = ToStatus(BLOCKD_GPU(Memcpy2DAsync)(static_cast<std::byte*>(to) + first * bytes, pitch,
                                                static_cast<const std::byte*>(from) + first * bytes,
                                                pitch, static_cast<size_t>((end - first) * bytes),
                                                static_cast<size_t>(shape.num_blocks),
                                                BLOCKD_GPU(MemcpyDeviceToDevice), device_.stream()),
                      "copying columns");
  }
  return status;
}

absl::Status VectorCalls::Add(Scalar scalar, void* y, const void* x, int64_t scalars) {
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  return device_.Launched(scalar == Scalar::kFloat64
                              ? AddVectors(static_cast<double*>(y), static_cast<const double*>(x),
                                           scalars, device_.stream())
                              : AddVectors(static_cast<float*>(y), static_cast<const float*>(x),
                                           scalars, device_.stream()));
}

template <typename T>
absl::StatusOr<std::vector<Backend::ResidualNorms>> VectorCalls::Residuals(
    const BlockTridiagonalView& matrix, const T* x, const T* b, T* r, int64_t num_rhs) {
  absl::Status status = device_.Begin();
  MatrixArgs args;
  args.matrix = EntryOf(matrix, nullptr, nullptr);
  args.num_blocks = matrix.shape().num_blocks;
  args.n = matrix.shape().block_size;
  constexpr int64_t kColumnsALaunch = 512;
  static_assert(kColumnsALaunch * 32 * (1 + kMostResidualParts) <= workspace::kCallBytes);
  double* norms = reinterpret_cast<double*>(device_.call_memory());
  double* partial = norms + 4 * kColumnsALaunch;
  std::vector<double> host(4 * num_rhs);
  for (int64_t c = 0; status.ok() && c < num_rhs; c += kColumnsALaunch) {
    const int64_t columns = std::min(kColumnsALaunch, num_rhs - c);
    status = device_.Launched(
        ComputeResidual(args, x, b, r, num_rhs, c, columns, partial, norms, device_.stream()));
    if (status.ok()) status = device_.Download(host.data() + 4 * c, norms, columns * 32);
  }
  if (!status.ok()) return status;
  std::vector<ResidualNorms> result(num_rhs);
  for (int64_t c = 0; c < num_rhs; ++c) {
    result[c] = {host[4 * c], host[4 * c + 1], host[4 * c + 2], host[4 * c + 3]};
  }
  return result;
}

}  // namespace blockd::gpu
