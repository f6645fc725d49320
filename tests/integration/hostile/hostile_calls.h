// Bytes of calls that mean a server ill: for tests, and for the benchmark of what others notice.
#ifndef BLOCKD_TESTS_INTEGRATION_HOSTILE_HOSTILE_CALLS_H_
#define BLOCKD_TESTS_INTEGRATION_HOSTILE_HOSTILE_CALLS_H_

#include <cstdint>
#include <string>

namespace blockd::test {

// Zeros as gRPC's `encoding` has them, "gzip" or "deflate": a thousandth of their bytes.
std::string CompressedZeros(const std::string& encoding, int64_t bytes);

// Fields of a header block: short entries, each of another name.
std::string ShortEntries(int count);

// A piece of a header block that does not end, some 15 KiB.
std::string EndlessHeaders(uint32_t stream);

// A call for which its caller spends nothing more: its message does not come, or its reply is not
// taken.
struct IdleCall {
  std::string method;
  std::string body;  // empty: nothing but headers
  bool body_is_all = false;
  std::string field = {};  // one more of its headers

  // All frames that the call sends, to be sent at once.
  std::string Frames(uint32_t stream) const;
};

inline const std::string kEmptyMessage(5, '\0');
inline const IdleCall kNoMessage{"Solve", ""};
inline const IdleCall kHalfAMessage{"Factor", std::string("\0\0\0\x01\0half", 9)};
inline const IdleCall kIdleWatch{"/grpc.health.v1.Health/Watch", kEmptyMessage, true};
inline const IdleCall kIdleReflection{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                      ""};
inline const IdleCall kIdleSmooth{"Smooth", ""};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_HOSTILE_HOSTILE_CALLS_H_
