#include "client/calls/inverse_call.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/calls/healer.h"
#include "client/rpc/chunked_answer.h"
#include "client/wire/requests.h"

namespace blockd::client {
namespace {

absl::Status CheckScalar(const Factorization& factorization, Scalar scalar) {
  if (factorization.scalar == scalar) return absl::OkStatus();
  return InvalidFieldError("scalar", "another one", "that of the factorization");
}

absl::Status CheckSize(const char* field, size_t bytes, int64_t expected) {
  if (static_cast<int64_t>(bytes) == expected) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat(bytes, " bytes"), absl::StrCat(expected, " bytes"));
}

// The call on what the factorization stands for.
template <typename Reply, typename Request, typename Fits>
absl::StatusOr<v1::Cost> Call(
    const Connection& connection, const Factorization& factorization, absl::Duration timeout,
    std::unique_ptr<grpc::ClientReader<Reply>> (v1::Solver::Stub::*method)(grpc::ClientContext*,
                                                                           const Request&),
    Request& request, const std::vector<std::span<std::byte>>& places, const Fits& fits) {
  const absl::Time deadline = connection.Deadline(timeout);
  v1::Cost cost;
  const absl::Status status = CallHealing(factorization, deadline, [&](const Factorization& now) {
    request.set_handle(now.handle);
    return connection.Retry(
        deadline,
        [&](grpc::ClientContext& context) {
          const auto reader = (connection.stub().*method)(&context, request);
          ChunkPlaces chunks;
          for (const std::span<std::byte> place : places) chunks.Add(place);
          const auto take_head = [&](const auto& head) {
            if (!fits(head)) return WrongAnswer("other sizes than were asked for");
            cost = head.cost();
            return absl::OkStatus();
          };
          return ReadChunkedAnswer<Reply>(context, *reader, take_head, chunks);
        },
        &now);
  });
  if (!status.ok()) return status;
  return cost;
}

v1::InverseParts PartsOf(InverseParts parts) {
  switch (parts) {
    case InverseParts::kDiagonal:
      return v1::DIAGONAL;
    case InverseParts::kDiagonalBlocks:
      return v1::DIAGONAL_BLOCKS;
    case InverseParts::kTridiagonalBlocks:
      return v1::TRIDIAGONAL_BLOCKS;
  }
  return v1::INVERSE_PARTS_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<v1::Cost> CallSelectedInverse(const Connection& connection,
                                             const Factorization& factorization, Scalar scalar,
                                             const InversePlaces& places,
                                             const InverseOptions& options) {
  const int64_t n = factorization.block_size;
  if (options.first_block < 0 || options.first_block >= factorization.num_blocks) {
    return InvalidFieldError("first_block", absl::StrCat(options.first_block),
                             absl::StrCat("0 to ", factorization.num_blocks - 1));
  }
  const int64_t rest = factorization.num_blocks - options.first_block;
  if (options.num_blocks < 0 || options.num_blocks > rest) {
    return InvalidFieldError("num_blocks", absl::StrCat(options.num_blocks),
                             absl::StrCat("0 to ", rest));
  }
  const int64_t blocks = options.num_blocks == 0 ? rest : options.num_blocks;
  const int64_t block = n * n * ScalarBytes(scalar);
  const bool couplings = options.parts == InverseParts::kTridiagonalBlocks;
  absl::Status status = CheckScalar(factorization, scalar);
  status.Update(CheckSize("diagonal", places.diagonal.size(),
                          options.parts == InverseParts::kDiagonal
                              ? blocks * n * ScalarBytes(scalar)
                              : blocks * block));
  status.Update(
      CheckSize("coupling", places.coupling.size(), couplings ? (blocks - 1) * block : 0));
  const int64_t p = factorization.arrow_size;
  const bool border = !places.border.empty() || !places.corner.empty();
  if (border) {
    status.Update(CheckSize("border", places.border.size(), blocks * n * p * ScalarBytes(scalar)));
    status.Update(CheckSize("corner", places.corner.size(), p * p * ScalarBytes(scalar)));
  }
  if (!status.ok()) return status;
  v1::SelectedInverseRequest request;
  request.set_parts(PartsOf(options.parts));
  request.set_first_block(options.first_block);
  request.set_num_blocks(blocks);
  request.set_priority(ToProto(options.priority));
  request.set_border(border);
  return Call(connection, factorization, options.timeout, &v1::Solver::Stub::SelectedInverse,
              request, {places.diagonal, places.coupling, places.border, places.corner},
              [&](const v1::SelectedInverseHead& head) {
                return head.diagonal_bytes() == std::ssize(places.diagonal) &&
                       head.coupling_bytes() == std::ssize(places.coupling) &&
                       head.border_bytes() == std::ssize(places.border) &&
                       head.corner_bytes() == std::ssize(places.corner);
              });
}

absl::StatusOr<v1::Cost> CallSample(const Connection& connection,
                                    const Factorization& factorization, Scalar scalar,
                                    std::span<std::byte> samples, const SampleOptions& options) {
  absl::Status status = CheckScalar(factorization, scalar);
  const int64_t column = factorization.rows() * ScalarBytes(scalar);
  if (samples.empty() || std::ssize(samples) % column != 0) {
    status.Update(InvalidFieldError("samples", absl::StrCat(samples.size(), " bytes"),
                                    absl::StrCat("a multiple of ", column)));
  }
  if (!status.ok()) return status;
  v1::SampleRequest request;
  request.set_seed(options.seed);
  request.set_first_sample(options.first_sample);
  request.set_num_samples(std::ssize(samples) / column);
  request.set_priority(ToProto(options.priority));
  return Call(
      connection, factorization, options.timeout, &v1::Solver::Stub::Sample, request, {samples},
      [&](const v1::SampleHead& head) { return head.samples_bytes() == std::ssize(samples); });
}

}  // namespace blockd::client
