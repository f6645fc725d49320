// The malloc of the program: tcmalloc where it is linked (BLOCKD_TCMALLOC) or preloaded, else the C
// library's.
#ifndef BLOCKD_SERVER_BASE_ALLOCATOR_H_
#define BLOCKD_SERVER_BASE_ALLOCATOR_H_

#include <cstddef>

namespace blockd::server {

// Received bytes lie in pieces of up to some MiB that live for one message. The C library would map
// each anew and clear its pages, which takes longer than receiving it: it is told to keep them.
// Call it before there are threads.
void KeepLargePieces();

// Both give the system back what malloc keeps, the first but for kKeptBytes, and only tcmalloc's:
// the C library would have to search all of its memory. Thread-safe.
inline constexpr size_t kKeptBytes = size_t{8} << 20;
void ReturnMostFreeMemory();
void ReturnFreeMemory();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_ALLOCATOR_H_
