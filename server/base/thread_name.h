// The name of a thread in `top -H`, debuggers and profiles.
#ifndef BLOCKD_SERVER_BASE_THREAD_NAME_H_
#define BLOCKD_SERVER_BASE_THREAD_NAME_H_

#include <pthread.h>

namespace blockd::server {

// The calling one; at most 15 bytes.
inline void NameThread(const char* name) { (void)pthread_setname_np(pthread_self(), name); }

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_THREAD_NAME_H_
