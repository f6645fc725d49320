// Room on the stacks of libraries' threads.
//
// The HTTP server of prometheus-cpp (civetweb) asks for threads with stacks of 100 KiB. glibc takes
// every library's thread-local data out of that: 60 KiB for OpenBLAS and 8 KiB for the CUDA
// runtime, and printf's buffers no longer fit. So pthread_attr_setstacksize is defined here in
// front of glibc's, for this process and its libraries, and gives nobody less than kSmallestStack.
#ifndef BLOCKD_SERVER_THREAD_STACKS_H_
#define BLOCKD_SERVER_THREAD_STACKS_H_

#include <cstddef>

namespace blockd::server {

inline constexpr size_t kSmallestStack = size_t{512} << 10;

// Does nothing; a program that calls it has the definition linked in.
void UseRoomyStacks();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_THREAD_STACKS_H_
