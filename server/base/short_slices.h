// Threads that hand requests on, on a machine whose processors compute.
#ifndef BLOCKD_SERVER_BASE_SHORT_SLICES_H_
#define BLOCKD_SERVER_BASE_SHORT_SLICES_H_

#include <cstdint>

namespace blockd::server {

// Asks the scheduler for short time slices of the calling thread. A thread that wakes then runs at
// once beside threads with longer ones, and not when their slices, of some 3 ms, are over; it gets
// no larger share of a processor. Linux 6.12 and later; nothing happens elsewhere.
void AskForShortSlices();
// The calling thread's slice; 0 where the system does not say.
int64_t SliceNanoseconds();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_SHORT_SLICES_H_
