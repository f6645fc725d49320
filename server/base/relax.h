// A pause of the processor between two reads of memory that another thread writes.
#ifndef BLOCKD_SERVER_BASE_RELAX_H_
#define BLOCKD_SERVER_BASE_RELAX_H_

namespace blockd::server {

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_RELAX_H_
