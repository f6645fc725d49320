#include "client/wire/wire.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <string>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace blockd::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Below this a copy costs less than the bookkeeping of a loan.
constexpr size_t kLeastLoan = 64 << 10;

// The longest that a google.protobuf.Duration may say: 10,000 years.
constexpr absl::Duration kMostDuration = absl::Seconds(315'576'000'000);

void AppendTagAndLength(int field, size_t length, std::string* out) {
  // Not by a stream, which would clear all the room that the string has left.
  uint8_t bytes[20];
  uint8_t* end = CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), bytes);
  end = CodedOutputStream::WriteVarint64ToArray(length, end);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(end - bytes));
}

// Reads a chunk of `length` bytes to where it belongs.
bool ReadChunk(CodedInputStream& in, uint32_t length,
               const std::function<std::byte*(uint64_t, size_t)>& destination, StreamReply* reply) {
  reply->is_chunk = true;
  if (length > INT32_MAX) return false;
  std::byte* to = destination(reply->message.id(), length);
  if (to == nullptr) {
    reply->misplaced = true;
    return in.Skip(static_cast<int>(length));
  }
  return in.ReadRaw(to, static_cast<int>(length));
}

}  // namespace

v1::ScalarType ToProto(Scalar scalar) {
  return scalar == Scalar::kFloat64 ? v1::FLOAT64 : v1::FLOAT32;
}

v1::SystemSpec ToProto(const SystemView& view) {
  v1::SystemSpec spec;
  spec.set_num_blocks(view.num_blocks);
  spec.set_block_size(view.block_size);
  spec.set_scalar(ToProto(view.scalar));
  spec.set_diagonal_form(view.diagonal_form == DiagonalForm::kFull ? v1::FULL : v1::PACKED_LOWER);
  spec.set_coupling_form(view.coupling_form == CouplingForm::kSubdiagonal ? v1::SUBDIAGONAL
                                                                          : v1::SUPERDIAGONAL);
  if (view.is_palette()) {
    v1::Palette& palette = *spec.mutable_palette();
    palette.set_num_diagonal(view.num_diagonal);
    palette.set_num_coupling(view.num_coupling);
    palette.mutable_diagonal_index()->Add(view.diagonal_index.begin(), view.diagonal_index.end());
    palette.mutable_coupling_index()->Add(view.coupling_index.begin(), view.coupling_index.end());
  }
  spec.set_arrow_size(view.arrow_size);
  return spec;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  duration = std::clamp(duration, -kMostDuration, kMostDuration);
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(duration / absl::Nanoseconds(1)));
  return proto;
}

MemoryLoan::~MemoryLoan() { AwaitReturn(absl::InfiniteDuration()); }

grpc::Slice MemoryLoan::Lend(Bytes memory) {
  {
    absl::MutexLock lock(&mutex_);
    ++lent_;
  }
  // gRPC only reads what it sends.
  return grpc::Slice(const_cast<std::byte*>(memory.data()), memory.size(), &MemoryLoan::Return,
                     this);
}

void MemoryLoan::Return(void* loan) {
  auto* self = static_cast<MemoryLoan*>(loan);
  absl::MutexLock lock(&self->mutex_);
  --self->lent_;
}

bool MemoryLoan::AwaitReturn(absl::Duration limit) {
  const auto returned = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&returned), limit);
}

Chunker::Chunker(std::vector<Bytes> regions, size_t chunk_bytes, int chunk_field,
                 std::string prefix, MemoryLoan* loan)
    : regions_(std::move(regions)),
      chunk_bytes_(chunk_bytes),
      chunk_field_(chunk_field),
      prefix_(std::move(prefix)),
      loan_(loan) {
  SkipEmpty();
}

void Chunker::SkipEmpty() {
  while (region_ < regions_.size() && offset_ == regions_[region_].size()) {
    ++region_;
    offset_ = 0;
  }
}

grpc::ByteBuffer Chunker::Next() {
  std::vector<grpc::Slice> slices(1);
  std::string copied;
  const auto flush_copied = [&] {
    if (!copied.empty()) slices.emplace_back(copied);
    copied.clear();
  };
  size_t length = 0;
  while (length < chunk_bytes_ && !done()) {
    const Bytes rest = regions_[region_].subspan(offset_);
    const Bytes piece = rest.first(std::min(rest.size(), chunk_bytes_ - length));
    if (loan_ != nullptr && piece.size() >= kLeastLoan) {
      flush_copied();
      slices.push_back(loan_->Lend(piece));
    } else {
      copied.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    length += piece.size();
    offset_ += piece.size();
    SkipEmpty();
  }
  flush_copied();
  std::string head = prefix_;
  AppendTagAndLength(chunk_field_, length, &head);
  slices[0] = grpc::Slice(head);
  sent_bytes_ += static_cast<int64_t>(length);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer SerializeFrame(const v1::SolveStreamRequest& outer, int frame_field,
                                const google::protobuf::MessageLite& frame,
                                std::span<const BytesField> bytes) {
  std::vector<grpc::Slice> slices(1);
  std::string part = frame.SerializeAsString(), first;  // all before the first of the bytes
  size_t length = 0;
  for (const BytesField& each : bytes) {
    AppendTagAndLength(each.field, each.bytes.size(), &part);
    length += part.size() + each.bytes.size();
    if (slices.size() == 1) {
      first.swap(part);
    } else {
      slices.emplace_back(part);
    }
    slices.push_back(each.bytes);
    part.clear();
  }
  std::string head = outer.SerializeAsString();
  AppendTagAndLength(frame_field, length, &head);
  slices[0] = grpc::Slice(head + first);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer SolveMessage(v1::SolveRequest request, const grpc::Slice& rhs) {
  v1::SolveRequest after;
  after.mutable_options()->Swap(request.mutable_options());
  request.clear_options();
  std::string head = request.SerializeAsString();
  AppendTagAndLength(v1::SolveRequest::kRhsFieldNumber, rhs.size(), &head);
  const grpc::Slice slices[] = {grpc::Slice(head), rhs, grpc::Slice(after.SerializeAsString())};
  return {slices, 3};
}

bool Parse(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy(buffer);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

bool ParseInto(const grpc::ByteBuffer& buffer, int field, std::span<std::byte> to, bool* fits,
               google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy(buffer);
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(INT32_MAX);
  const uint32_t wanted = WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::string rest;
  *fits = to.empty();
  {
    google::protobuf::io::StringOutputStream stream(&rest);
    CodedOutputStream out(&stream);
    while (const uint32_t tag = in.ReadTag()) {
      if (tag != wanted) {
        if (!WireFormatLite::SkipField(&in, tag, &out)) return false;
        continue;
      }
      uint32_t length = 0;
      if (!in.ReadVarint32(&length) || length > INT32_MAX) return false;
      const auto bytes = static_cast<int>(length);
      *fits = length == to.size();
      if (!(*fits ? in.ReadRaw(to.data(), bytes) : in.Skip(bytes))) return false;
    }
    if (!in.ConsumedEntireMessage()) return false;
  }
  return message->ParseFromString(rest);
}

bool ParseStreamReply(const grpc::ByteBuffer& buffer,
                      const std::function<std::byte*(uint64_t id, size_t bytes)>& destination,
                      StreamReply* reply) {
  grpc::ByteBuffer copy(buffer);
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok()) return false;
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(INT32_MAX);
  // A chunk's id stands before it (protobuf writes fields in order): where the first field is an id
  // and the next a chunk, the chunk need not pass through a string.
  const uint32_t id_tag = WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_VARINT);
  const uint32_t chunk_tag = WireFormatLite::MakeTag(3, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  uint64_t id = 0;
  if (in.ReadTag() == id_tag && in.ReadVarint64(&id)) {
    reply->message.set_id(id);
    uint32_t length = 0;
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return true;
    if (tag == chunk_tag && in.ReadVarint32(&length)) {
      return ReadChunk(in, length, destination, reply) && in.ReadTag() == 0;
    }
  }
  if (!Parse(buffer, &reply->message)) return false;
  if (reply->message.part_case() == v1::SolveStreamReply::kChunk) {
    const std::string& chunk = reply->message.chunk();
    reply->is_chunk = true;
    std::byte* to = destination(reply->message.id(), chunk.size());
    reply->misplaced = to == nullptr;
    if (to != nullptr) {
      const auto* from = reinterpret_cast<const std::byte*>(chunk.data());
      std::copy(from, from + chunk.size(), to);
    }
    reply->message.clear_chunk();
  }
  return true;
}

}  // namespace blockd::client
