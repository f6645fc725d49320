// The wire contract of a shared-memory session: what a caller of the same host and the server lay
// out alike. What a controller needs is here: factor, solve, both in one, release. Other calls
// (lists, plans) go over gRPC beside it.
//
// The caller connects to the Unix socket PATH.shm, where PATH is the server's --unix_socket, and
// sends a ShmHello. The server answers with a ShmWelcome, and with it, as SCM_RIGHTS, the
// descriptor of the mapping; or with the status that refuses it. The socket stays open: its end is
// the session's end. After that each byte on it, in either direction, says "look at your ring".
//
// The mapping, whose size nobody can change, is
//
//   [ShmHeader][requests: `slots` ShmRequest][replies: `slots` ShmReply][data ...]
//
// The caller alone decides what lies where in `data`. Every offset counts from the beginning of the
// mapping, is a multiple of 8, and what it names lies in `data`.
//
// A ring has one writer and one reader. Positions only grow; the entry of position p is p % slots.
// Who writes fills the entry, then publishes the position after it (release); who reads takes the
// position (acquire), then the entry. Each request is answered by one reply, in any order. At most
// `slots` requests may be without a reply that the caller has taken: a caller that sends more, or
// moves a position back or too far, ends its session.
//
// Who finds its ring empty for a while sets its `asleep` flag, looks once more, and waits for the
// socket. Who has published looks at the other's flag and, where it is set, clears it and sends a
// byte. These four accesses are sequentially consistent: so one of the two sees the other.
//
// All numbers are of the host's own byte order and the host's doubles.
#ifndef BLOCKD_PROTO_BLOCKD_V1_SHARED_MEMORY_H_
#define BLOCKD_PROTO_BLOCKD_V1_SHARED_MEMORY_H_

#include <atomic>
#include <cstdint>

namespace blockd::v1 {

inline constexpr char kShmMagic[8] = {'b', 'l', 'o', 'c', 'k', 'd', 's', 'h'};
inline constexpr uint32_t kShmVersion = 2;
inline constexpr uint64_t kShmAlignment = 8;  // of offsets
inline constexpr char kShmSocketSuffix[] = ".shm";
inline constexpr uint32_t kShmMinSlots = 8, kShmMaxSlots = 4096;  // powers of two

// Caller to server, whole and alone.
struct ShmHello {
  char magic[8];
  uint32_t version;
  uint32_t slots;       // of each ring; a power of two
  uint64_t data_bytes;  // wanted; rounded up to pages
  uint32_t caller_bytes;
  uint32_t token_bytes;
  char caller[128];  // what the metadata `blockd-caller` would say; none: 0 bytes
  char token[1024];  // what `authorization: Bearer` would say; none: 0 bytes
};
static_assert(sizeof(ShmHello) == 1184);

// Server to caller. Then `status_bytes` of a serialized blockd.v1.RpcStatus, where it refuses.
struct ShmWelcome {
  char magic[8];
  uint32_t version;
  uint32_t status_bytes;  // 0: the session stands, and the mapping's descriptor has come
  uint32_t slots;
  uint32_t reserved;
  uint64_t mapping_bytes;
  uint64_t requests_offset, replies_offset, data_offset;
};
static_assert(sizeof(ShmWelcome) == 56);

// A request is an operation, its message, and places. The message is the one that gRPC has for the
// call, serialized, without its data: matrices and right-hand sides. They lie in places, and so do
// the solutions. A server that does not know an operation answers INVALID_ARGUMENT for the field
// `operation`, and the session goes on.
enum class ShmOperation : uint32_t {
  kSolve = 1,      // SolveRequest; the places of its columns
  kSolveMany = 2,  // SolveManyRequest without rhs_bytes; the places of each solve's columns
  kFactor = 3,     // FactorRequest; the places of each matrix, whose number is that of the systems
  kRelease = 4,    // ReleaseRequest; no places
  kCancel = 5,     // the request `other_id`, if it is not answered yet; itself always succeeds
  kFactorSolve = 6,      // FactorSolveRequest; the places of its matrix and of its columns
  kFactorSolveMany = 7,  // FactorSolveManyRequest; these of each system
};

// The places of a matrix are two: the diagonal blocks; and the coupling blocks with, where there is
// an arrow_size, the border and the corner behind them. The places of columns are two of as many
// bytes: the right-hand sides, and where the solution goes. They are the same place, or have
// nothing in common. A solution that lies in a matrix or in other columns of its request spoils
// their solutions. Solutions that overlap so much that together they are more than the mapping are
// refused, and so are matrices with check_finite.
struct ShmPlace {
  uint64_t offset, bytes;
};
static_assert(sizeof(ShmPlace) == 16);

struct alignas(64) ShmRequest {
  uint64_t id;  // the reply has it; no two that are not answered yet have the same
  ShmOperation operation;
  uint32_t message_bytes;       // at most --max_message_bytes
  int64_t timeout_nanoseconds;  // from when the server takes it; 0: none; less: it is over
  uint64_t message_offset;
  uint64_t places_offset;  // of the ShmPlace, one after another
  uint32_t num_places;
  uint32_t reply_bytes;   // at least ShmReplyRoom(num_places), but for a kCancel
  uint64_t reply_offset;  // where the reply's message goes
  uint64_t other_id;      // of a kCancel
};
static_assert(sizeof(ShmRequest) == 64);

constexpr uint64_t ShmReplyRoom(uint64_t num_places) { return 4096 + 64 * num_places; }

struct alignas(64) ShmReply {
  uint64_t id;
  int32_t code;            // 0: OK, else as gRPC's
  uint32_t message_bytes;  // at the request's reply_offset: RpcStatus where it failed, else the
                           // reply that gRPC has for the call, without its solution
};
static_assert(sizeof(ShmReply) == 64);

// Each on a cache line of its own: two processors write them.
struct ShmHeader {
  alignas(64) std::atomic<uint64_t> requests_end;  // the caller's: position after the last
  alignas(
      64) std::atomic<uint32_t> server_asleep;    // the server's; a caller that wakes it clears it
  alignas(64) std::atomic<uint64_t> replies_end;  // the server's
  alignas(64) std::atomic<uint64_t> replies_taken;  // the caller's: position after the last it took
  alignas(64) std::atomic<uint32_t> caller_asleep;  // the caller's; the server clears it
  alignas(64) char end_reason[256];  // the server's, before it ends a session: why, as text
};
static_assert(sizeof(ShmHeader) <= 4096 && std::atomic<uint64_t>::is_always_lock_free);
inline constexpr uint64_t kShmHeaderBytes = 4096;  // what follows begins at a page

}  // namespace blockd::v1

#endif  // BLOCKD_PROTO_BLOCKD_V1_SHARED_MEMORY_H_
