#include "engine/gpu/vectors/vector_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/gpu/plan/plan_args.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

absl::Status VectorCalls::Pack(void* packed, const void* columns_in, const ColumnArgs& args,
                               int64_t columns) {
  const std::byte* in = static_cast<const std::byte*>(columns_in);
  return ForEachPinnedPart(args, columns, [&](void* pinned, const ColumnArgs& part) {
    std::memcpy(pinned, in + part.first_piece * part.bytes, part.count * part.bytes);
    return device_.Launched(ScatterColumns(packed, pinned, part, device_.stream()));
  });
}

absl::Status VectorCalls::Unpack(void* columns_out, const void* packed, const ColumnArgs& args,
                                 int64_t columns) {
  std::byte* out = static_cast<std::byte*>(columns_out);
  return ForEachPinnedPart(args, columns, [&](void* pinned, const ColumnArgs& part) {
    absl::Status status = device_.Launched(GatherColumns(pinned, packed, part, device_.stream()));
    if (status.ok()) status = device_.Synchronize();
    if (status.ok()) {
      std::memcpy(out + part.first_piece * part.bytes, pinned, part.count * part.bytes);
    }
    return status;
  });
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

absl::Status VectorCalls::ForEachPinnedPart(
    ColumnArgs args, int64_t columns,
    absl::FunctionRef<absl::Status(void*, const ColumnArgs&)> body) {
  absl::Status status = device_.Begin();
  const int64_t pieces = args.blocks * columns, most = Device::kStagingBytes / args.bytes;
  for (int64_t first = 0; status.ok() && first < pieces; first += most) {
    args.first_piece = first;
    args.count = std::min(most, pieces - first);
    absl::StatusOr<void*> pinned = device_.NextPinned();
    if (!pinned.ok()) return pinned.status();
    status = body(*pinned, args);
    if (status.ok()) status = device_.MarkPinned();
  }
  return status;
}

}  // namespace blockd::gpu
