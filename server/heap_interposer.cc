// The program's malloc and operator new: those of the C library, and the reserve where these fail
// (heap_reserve.h).
//
// What is defined here is what all libraries of the program call too: gRPC, OpenSSL, libmicrohttpd,
// the C library itself (its manual, "Replacing malloc"). A function that is not defined here is the
// C library's; its pieces are freed like all others. In the C library's place there may be another
// allocator that is preloaded and has its __libc_malloc and the like, as tcmalloc has: so all forms
// of operator new and delete are defined here, not only those that the others call. Not in programs
// with a sanitizer, which have an allocator of their own.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "server/core/heap_reserve.h"

// Tests name a function here that says whether an allocation is to fail.
#ifndef BLOCKD_MALLOC_FAILS
#define BLOCKD_MALLOC_FAILS(bytes) false
#else
bool BLOCKD_MALLOC_FAILS(size_t bytes);
#endif

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* piece, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* piece);
}

namespace {

using blockd::server::HeapMayFail;
using blockd::server::HeapReserve;
using blockd::server::ReserveRegion;

[[noreturn]] void End() {
  constexpr char kLine[] =
      "blockd: the system has no memory, and the reserve for that is used up\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(1);
}

// Where the system has failed. Null for a large piece that the reserve does not have.
void* FromReserve(size_t bytes, size_t alignment = 1) {
  void* const piece = HeapReserve::Process().Take(bytes, alignment);
  // gRPC reads into pieces of a little more than 64 KiB, and does not look whether it has them.
  if (piece == nullptr && bytes < 2 * HeapReserve::kSmallBytes &&
      alignment <= ReserveRegion::kAlignment) {
    End();
  }
  return piece;
}

void* Must(void* piece) {
  if (piece == nullptr) std::__throw_bad_alloc();
  return piece;
}

bool IsInReserve(const void* piece) { return HeapReserve::Process().Has(piece); }

void* Allocate(size_t bytes) { return BLOCKD_MALLOC_FAILS(bytes) ? nullptr : __libc_malloc(bytes); }

void* AllocateAligned(size_t alignment, size_t bytes) {
  void* const piece = BLOCKD_MALLOC_FAILS(bytes) ? nullptr : __libc_memalign(alignment, bytes);
  return piece != nullptr ? piece : FromReserve(bytes, alignment);
}

// Into a piece elsewhere; the old one stays if there is none.
void* Move(void* from, size_t from_bytes, void* to, size_t to_bytes) {
  if (to == nullptr) return nullptr;
  std::memcpy(to, from, std::min(from_bytes, to_bytes));
  free(from);
  return to;
}

// Null for a large piece where it may fail.
void* AllocateObject(size_t bytes, bool may_fail) {
  if (void* const piece = Allocate(bytes); piece != nullptr) return piece;
  return may_fail && bytes >= HeapReserve::kSmallBytes ? nullptr : FromReserve(bytes);
}

}  // namespace

// The C library's headers name the parameters with leading underscores.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
extern "C" {

void* malloc(size_t bytes) noexcept { return AllocateObject(bytes, HeapMayFail::Applies()); }

void free(void* piece) noexcept {
  if (IsInReserve(piece)) return HeapReserve::Process().Return(piece);
  __libc_free(piece);
}

void* calloc(size_t count, size_t bytes) noexcept {
  size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* piece = BLOCKD_MALLOC_FAILS(all) ? nullptr : __libc_calloc(count, bytes);
  if (piece != nullptr) return piece;
  piece = FromReserve(all);
  return piece != nullptr ? std::memset(piece, 0, all) : nullptr;
}

void* realloc(void* piece, size_t bytes) noexcept {
  if (piece == nullptr) return malloc(bytes);
  if (IsInReserve(piece)) {
    if (bytes > 0) return Move(piece, HeapReserve::Process().SizeOf(piece), malloc(bytes), bytes);
    free(piece);
    return nullptr;
  }
  void* const grown = BLOCKD_MALLOC_FAILS(bytes) ? nullptr : __libc_realloc(piece, bytes);
  if (grown != nullptr || bytes == 0) return grown;
  if (HeapMayFail::Applies() && bytes >= HeapReserve::kSmallBytes) return nullptr;
  return Move(piece, malloc_usable_size(piece), FromReserve(bytes), bytes);
}

void* memalign(size_t alignment, size_t bytes) noexcept {
  return AllocateAligned(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return AllocateAligned(alignment, bytes);
}

int posix_memalign(void** piece, size_t alignment, size_t bytes) noexcept {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  void* const made = AllocateAligned(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *piece = made;
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

void* operator new(size_t bytes) {
  return Must(AllocateObject(std::max<size_t>(bytes, 1), HeapMayFail::Applies()));
}
void* operator new(size_t bytes, const std::nothrow_t& /*no_throw*/) noexcept {
  return AllocateObject(std::max<size_t>(bytes, 1), true);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Must(operator new(bytes, alignment, std::nothrow));
}
void* operator new(size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t& /*no_throw*/) noexcept {
  return AllocateAligned(static_cast<size_t>(alignment), std::max<size_t>(bytes, 1));
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& no_throw) noexcept {
  return operator new(bytes, no_throw);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t& no_throw) noexcept {
  return operator new(bytes, alignment, no_throw);
}

void operator delete(void* piece) noexcept { free(piece); }
void operator delete(void* piece, size_t /*bytes*/) noexcept { free(piece); }
void operator delete(void* piece, const std::nothrow_t& /*no_throw*/) noexcept { free(piece); }
void operator delete(void* piece, std::align_val_t /*alignment*/) noexcept { free(piece); }
void operator delete(void* piece, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  free(piece);
}
void operator delete(void* piece, std::align_val_t /*alignment*/,
                     const std::nothrow_t& /*no_throw*/) noexcept {
  free(piece);
}
void operator delete[](void* piece) noexcept { free(piece); }
void operator delete[](void* piece, size_t /*bytes*/) noexcept { free(piece); }
void operator delete[](void* piece, const std::nothrow_t& /*no_throw*/) noexcept { free(piece); }
void operator delete[](void* piece, std::align_val_t /*alignment*/) noexcept { free(piece); }
void operator delete[](void* piece, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  free(piece);
}
void operator delete[](void* piece, std::align_val_t /*alignment*/,
                       const std::nothrow_t& /*no_throw*/) noexcept {
  free(piece);
}
