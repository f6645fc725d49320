// gRPC's buffers of bytes, as tests cut them and join what lies in them.
#ifndef BLOCKD_TESTS_SUPPORT_BYTE_BUFFERS_H_
#define BLOCKD_TESTS_SUPPORT_BYTE_BUFFERS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockd::test {

// The bytes as the transport would hold them, `slice_bytes` of them in a slice: by default cut
// within numbers too.
inline grpc::ByteBuffer InSlices(std::string_view bytes, size_t slice_bytes = 7) {
  std::vector<grpc::Slice> slices;
  for (; !bytes.empty(); bytes.remove_prefix(slices.back().size())) {
    const std::string_view slice = bytes.substr(0, slice_bytes);
    slices.emplace_back(slice.data(), slice.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

inline std::string Joined(std::span<const std::span<const std::byte>> pieces) {
  std::string all;
  for (const std::span<const std::byte> piece : pieces) {
    all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return all;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_BYTE_BUFFERS_H_
