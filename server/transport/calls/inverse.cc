#include "server/transport/calls/inverse.h"

#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockd/v1/blockd.pb.h"
#include "server/transport/rpc/chunked_reply.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

absl::StatusOr<InverseParts> ToParts(v1::InverseParts parts) {
  switch (parts) {
    case v1::DIAGONAL:
      return InverseParts::kDiagonalEntries;
    case v1::INVERSE_PARTS_UNSPECIFIED:
    case v1::DIAGONAL_BLOCKS:
      return InverseParts::kDiagonalBlocks;
    case v1::TRIDIAGONAL_BLOCKS:
      return InverseParts::kWithCouplings;
    default:
      return InvalidFieldError("parts", absl::StrCat(static_cast<int>(parts)), "an InverseParts");
  }
}

// The common part of both calls: a handle, the shape that it stands for, and memory for the answer.
template <typename Request>
class InverseCallOf : public ChunkedCallOf<Request> {
 public:
  using ChunkedCallOf<Request>::ChunkedCallOf;

 protected:
  absl::StatusOr<Handle> TakeHandle() {
    absl::StatusOr<Handle> handle = ToHandle("handle", this->request_.handle());
    if (!handle.ok()) return handle.status();
    const RequestContext& context = *this->record().context();
    absl::Status status =
        ReadPriority("priority", this->request_.priority(), this->record().context().get());
    if (!status.ok()) return status;
    absl::StatusOr<BorderedShape> shape = this->core().ShapeOf(context.caller, *handle);
    if (!shape.ok()) return shape.status();
    shape_ = *shape;
    return handle;
  }
  BorderedShape shape_;
  Payload values_;
};

class SelectedInverseCall final : public InverseCallOf<v1::SelectedInverseRequest> {
 public:
  using InverseCallOf::InverseCallOf;

 private:
  void Start() override {
    absl::Status status = Read();
    if (!status.ok()) return Fail(status);
    core().SelectedInverse(record().context(), params_, Done());
  }

  absl::Status Read() {
    const absl::StatusOr<Handle> handle = TakeHandle();
    if (!handle.ok()) return handle.status();
    params_.handle = *handle;
    const absl::StatusOr<InverseParts> parts = ToParts(request_.parts());
    if (!parts.ok()) return parts.status();
    params_.parts = *parts;
    params_.first_block = request_.first_block();
    params_.num_blocks = request_.num_blocks();
    const Shape& chain = shape_.chain;
    absl::Status status = params_.Resolve(chain);
    if (!status.ok()) return status;
    record().SetSolve(*handle, params_.num_blocks);
    if (request_.border() && shape_.border_rows == 0) {
      return InvalidFieldError("border", "true", "false for a system of arrow_size 0");
    }
    const int64_t p = request_.border() ? shape_.border_rows : 0;
    const int64_t column = p * ScalarBytes(chain.scalar);
    const int64_t bytes[] = {InverseDiagonalBytes(chain, *parts, params_.num_blocks),
                             InverseCouplingBytes(chain, *parts, params_.num_blocks),
                             params_.num_blocks * chain.block_size * column, p * column};
    absl::StatusOr<Payload> values = Allocate(std::reduce(std::begin(bytes), std::end(bytes)));
    if (!values.ok()) return values.status();
    values_ = *std::move(values);
    std::span<std::byte> rest = values_.span();
    std::span<std::byte>* const parts_of[] = {&params_.diagonal, &params_.coupling, &params_.border,
                                              &params_.corner};
    for (size_t i = 0; i < std::size(bytes); ++i) {
      *parts_of[i] = rest.first(static_cast<size_t>(bytes[i]));
      rest = rest.subspan(static_cast<size_t>(bytes[i]));
    }
    return absl::OkStatus();
  }

  void Answer(const CostReply& reply) override {
    v1::SelectedInverseReply wire;
    v1::SelectedInverseHead& head = *wire.mutable_head();
    head.set_num_blocks(params_.num_blocks);
    head.set_block_size(shape_.chain.block_size);
    head.set_scalar(ToWire(shape_.chain.scalar));
    head.set_diagonal_bytes(std::ssize(params_.diagonal));
    head.set_coupling_bytes(std::ssize(params_.coupling));
    head.set_border_bytes(std::ssize(params_.border));
    head.set_corner_bytes(std::ssize(params_.corner));
    ToWire(reply.cost, head.mutable_cost());
    SucceedInChunks(wire, v1::SelectedInverseReply::kChunkFieldNumber, std::move(values_));
  }

  SelectedInverseParams params_;
};

class SampleCall final : public InverseCallOf<v1::SampleRequest> {
 public:
  using InverseCallOf::InverseCallOf;

 private:
  void Start() override {
    absl::Status status = Read();
    if (!status.ok()) return Fail(status);
    core().Sample(record().context(), params_, Done());
  }

  absl::Status Read() {
    const absl::StatusOr<Handle> handle = TakeHandle();
    if (!handle.ok()) return handle.status();
    params_.handle = *handle;
    params_.seed = request_.seed();
    params_.first_sample = request_.first_sample();
    params_.num_samples = request_.num_samples() == 0 ? 1 : request_.num_samples();
    record().SetSolve(*handle, params_.num_samples);
    const int64_t most = core().limits().max_rhs;
    if (params_.num_samples < 1 || params_.num_samples > most) {
      return InvalidFieldError("num_samples", absl::StrCat(params_.num_samples),
                               absl::StrCat("1 to ", most));
    }
    const absl::StatusOr<int64_t> bytes = RhsBytes(shape_, params_.num_samples, "num_samples");
    if (!bytes.ok()) return bytes.status();
    absl::StatusOr<Payload> values = Allocate(*bytes);
    if (!values.ok()) return values.status();
    values_ = *std::move(values);
    params_.samples = values_.span();
    return absl::OkStatus();
  }

  void Answer(const CostReply& reply) override {
    v1::SampleReply wire;
    v1::SampleHead& head = *wire.mutable_head();
    head.set_num_samples(params_.num_samples);
    head.set_num_rows(shape_.rows());
    head.set_scalar(ToWire(shape_.chain.scalar));
    head.set_samples_bytes(std::ssize(params_.samples));
    ToWire(reply.cost, head.mutable_cost());
    SucceedInChunks(wire, v1::SampleReply::kChunkFieldNumber, std::move(values_));
  }

  SampleParams params_;
};

}  // namespace

std::shared_ptr<ServerCall> MakeSelectedInverse(ServiceState* state,
                                                std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<SelectedInverseCall>(state, Method::kSelectedInverse,
                                               std::move(incoming));
}

std::shared_ptr<ServerCall> MakeSample(ServiceState* state,
                                       std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<SampleCall>(state, Method::kSample, std::move(incoming));
}

}  // namespace blockd::server
