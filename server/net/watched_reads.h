// Ends connections of gRPC whose clients send what neither begins a call nor moves one
// (frame_counter.h): gRPC 1.51 does not bound it, and has no place to look at frames.
//
// gRPC reads a socket with recvmsg, and TLS with OpenSSL's SSL_read. Both are defined here, so
// that all libraries of the program call these; they call the C library's and OpenSSL's, and look
// at what has come before gRPC does. A connection that is beyond a limit fails to read, and gRPC
// ends it. Thread-safe.
#ifndef BLOCKD_SERVER_NET_WATCHED_READS_H_
#define BLOCKD_SERVER_NET_WATCHED_READS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace blockd::server {

// Header blocks that are not whole, of all connections together: more than 1 MiB, which is gRPC's
// own limit for one. Above it those are ended that have more than a router lets through (Envoy: 60
// KiB, of 100 entries).
inline constexpr int64_t kMostOpenBlockBytes = int64_t{2} << 20;
inline constexpr int64_t kSmallBlockBytes = int64_t{256} << 10;

// Whole header blocks that are large (FrameCounter::kLargeBlockBytes), of all calls that are not
// over: gRPC keeps them until a call's status is written, and writes nothing to a connection while
// it reads from it. Above it the connection that brings one more is ended. As many are forgotten in
// a second, since gRPC ends some calls without a word.
inline constexpr int64_t kMostLargeBlockBytes = int64_t{16} << 20;

// Watches what is read from this socket, which was accepted and is handed to gRPC after that. If it
// has TLS it is watched behind that, and `peer`, for the log, is not known there.
void WatchReads(int fd, std::string peer);

// Nothing more is read from this socket, if it is watched and has this inode: after a shutdown gRPC
// would read and parse all that had come before it, some MiB.
void StopReads(int fd, ino_t inode);

// A call is over whose metadata had so many bytes in so many entries.
void ForgetHeaders(int64_t bytes, int64_t entries);

// How many connections of the process were ended here.
int64_t EndedReads();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_WATCHED_READS_H_
