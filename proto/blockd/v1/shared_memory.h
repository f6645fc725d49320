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
inline constexpr uint32_t kShmVersion = 1;
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

enum class ShmOperation : uint32_t {
  kSolve = 1,
  kSolveMany = 2,
  kFactor = 3,
  kRelease = 4,  // one handle
  kCancel = 5,   // the request `other_id`, if it is not answered yet; itself always succeeds
  // These two where a server knows them: one that is older answers INVALID_ARGUMENT for the field
  // `operation`, and the session goes on.
  kFactorSolve = 6,  // with a handle a refactor in place, without one nothing is kept
  kFactorSolveMany = 7,
};

// ShmRequest::flags.
inline constexpr uint32_t kShmResidual = 1, kShmCheckFinite = 2;  // of a Solve and a SolveMany

struct alignas(64) ShmRequest {
  uint64_t id;  // the reply has it; no two that are not answered yet have the same
  ShmOperation operation;
  uint32_t flags;
  int32_t priority;  // blockd.v1.PriorityClass; of a Factor its options say it
  int32_t max_refinements;
  int64_t timeout_nanoseconds;  // from when the server takes it; 0: none; less: it is over
  uint8_t handle[24];           // of a Solve and a Release
  // Solve: its right-hand sides. SolveMany: the number of ShmSolve. FactorSolve (1) and
  // FactorSolveMany: the number of ShmFactorSolve.
  int64_t num_rhs;
  // Solve: the right-hand sides, and where the solution goes, of `bytes` each; the same place, or
  // two that have nothing in common.
  // SolveMany: `rhs_offset` is where the ShmSolve lie; FactorSolve and FactorSolveMany: where the
  // ShmFactorSolve do.
  // Factor: `rhs_offset` and `bytes` are the matrices, as the chunks of a FactorStream have them.
  uint64_t rhs_offset, solution_offset, bytes;
  // Factor: a serialized blockd.v1.FactorStreamHeader. FactorSolve and FactorSolveMany: the
  // FactorSolveRequest or FactorSolveManyRequest, with its handles and options, and without
  // `system`, `matrix` and `rhs`: they lie in the mapping. At most --max_message_bytes.
  uint64_t message_offset, message_bytes;
  // Where the reply's message goes. Enough for all but a Solve, a Release and a kCancel:
  // kShmReplyBytes and kShmReplyBytesEach for each system or solve; less is refused. Of those three
  // only errors have one, and one that has no room is left out.
  uint64_t reply_offset, reply_bytes;
  uint64_t other_id;
};
static_assert(sizeof(ShmRequest) == 128);

inline constexpr uint64_t kShmReplyBytes = 4096, kShmReplyBytesEach = 128;

// One solve of a SolveMany; the offsets and bytes as those of a Solve.
struct ShmSolve {
  uint8_t handle[24];
  int64_t num_rhs;
  uint64_t rhs_offset, solution_offset, bytes;
};
static_assert(sizeof(ShmSolve) == 56);

// One system of a FactorSolve or FactorSolveMany: blocks as the message's spec has them, and the
// columns as those of a Solve, of the message's num_rhs. A solution that lies in a matrix or in
// other columns of the request spoils their solutions.
struct ShmFactorSolve {
  uint64_t diagonal_offset, diagonal_bytes;
  // With arrow_size the border and its corner follow the coupling blocks, and the bytes are of all.
  uint64_t coupling_offset, coupling_bytes;
  uint64_t rhs_offset, solution_offset, bytes;
};
static_assert(sizeof(ShmFactorSolve) == 56);

struct alignas(64) ShmReply {
  uint64_t id;
  int32_t code;            // 0: OK, else as gRPC's
  uint32_t message_bytes;  // at the request's reply_offset: RpcStatus where it failed, else the
                           // FactorReply, or the FactorSolveReply or SolveManyReply (also of a
                           // FactorSolveMany) without its solution
  // Solve only, as in SolveReply.
  double backward_error;  // negative: not measured
  double backward_error_bound;
  int64_t refinements;
  double queue_seconds, upload_seconds, compute_seconds, download_seconds;
  int64_t batch_requests, batch_items;
  int64_t released_bytes;  // of a Release
};
static_assert(sizeof(ShmReply) == 128);

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
