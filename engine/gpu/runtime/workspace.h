// How the device's workspace is laid out. First the tables of systems to factor and to solve with;
// then what a launch leaves as the next one wants it: a ticket and flags of factorizations by
// segments, and what others count in; then lists of tasks; the rest is for one call at a time.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_WORKSPACE_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_WORKSPACE_H_

#include <cstdint>

namespace blockd::gpu::workspace {

inline constexpr int64_t kBytes = int64_t{104} << 20;

// Systems of one launch: a grid's dimensions end at 65535.
inline constexpr int64_t kSystemsALaunch = 32768;
inline constexpr int64_t kTableBytes = int64_t{3} << 20;
inline constexpr int64_t kFactorTable = 0, kSolveTable = kTableBytes;

inline constexpr int64_t kTicket = 2 * kTableBytes, kTicketBytes = 256;
inline constexpr int64_t kMoveCounter =
    kTicket + kTicketBytes / 2;  // of launches that move columns
inline constexpr int64_t kNumFlags = int64_t{2} << 20;
inline constexpr int64_t kFlags = kTicket + kTicketBytes;

// Launches take turns with two of these: each clears the one that the launch before used.
inline constexpr int64_t kCounters = kFlags + kNumFlags * int64_t{sizeof(uint32_t)};
inline constexpr int64_t kCountersBytes = int64_t{32} << 20;

inline constexpr int64_t kLists = kCounters + 2 * kCountersBytes;
inline constexpr int64_t kMostLists = 8, kListBytes = int64_t{2} << 20;

inline constexpr int64_t kCall = kLists + kMostLists * kListBytes;
inline constexpr int64_t kCallBytes = kBytes - kCall;

}  // namespace blockd::gpu::workspace

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_WORKSPACE_H_
