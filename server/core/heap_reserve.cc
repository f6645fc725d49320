#include "server/core/heap_reserve.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

namespace blockd::server {
namespace {

// What the system must have, beside what the reserve holds, before new work is accepted again.
constexpr size_t kProbeBytes = size_t{16} << 20;

void* MapBytes(size_t bytes) {
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

bool SystemHasMore() {
  void* const probe = MapBytes(kProbeBytes);
  if (probe != nullptr) munmap(probe, kProbeBytes);
  return probe != nullptr;
}

thread_local int may_fail = 0;
constinit HeapReserve process_reserve;

}  // namespace

// ------------------------------------------------------------------------------------- a region

bool ReserveRegion::Map() {
  constexpr size_t kLeaves = kBytes >> kLeafBits;
  char* const base = static_cast<char*>(MapBytes(kBytes + kLeaves));
  if (base == nullptr) return false;
  state_ = reinterpret_cast<uint8_t*>(base + kBytes);
  base_.store(base, std::memory_order_release);
  MakeWhole();
  return true;
}

void ReserveRegion::MakeWhole() {
  free_.fill(nullptr);
  Add(0, kOrders - 1);
  free_bytes_ = kBytes;
  touched_ = false;
}

void ReserveRegion::Unmap() {
  char* const base = base_.exchange(nullptr);  // nobody takes what is mapped there next for a piece
  munmap(base, kBytes + (kBytes >> kLeafBits));
  free_bytes_ = 0;
}

void ReserveRegion::Clean() {
  if (!touched_ || free_bytes_ < kBytes) return;
  madvise(base(), kBytes + (kBytes >> kLeafBits), MADV_DONTNEED);
  MakeWhole();
}

void ReserveRegion::Add(size_t offset, int order) {
  FreePiece* const piece = At(offset);
  piece->previous = nullptr;
  piece->next = free_[order];
  if (piece->next != nullptr) piece->next->previous = piece;
  free_[order] = piece;
  StateAt(offset) = static_cast<uint8_t>(order) | kFree;
}

void ReserveRegion::Remove(size_t offset, int order) {
  FreePiece* const piece = At(offset);
  if (piece->next != nullptr) piece->next->previous = piece->previous;
  (piece->previous != nullptr ? piece->previous->next : free_[order]) = piece->next;
  StateAt(offset) = static_cast<uint8_t>(order);
}

void* ReserveRegion::Take(size_t bytes) {
  if (bytes > kBytes || !mapped()) return nullptr;
  const int bits = static_cast<int>(std::bit_width(std::max(bytes, size_t{1}) - 1));
  const int order = std::max(bits, kLeafBits) - kLeafBits;
  int from = order;
  while (from < kOrders && free_[from] == nullptr) ++from;
  if (from == kOrders) return nullptr;
  const size_t offset = reinterpret_cast<char*>(free_[from]) - base();
  Remove(offset, from);
  while (from > order) {
    --from;
    Add(offset + BytesOf(from), from);
  }
  StateAt(offset) = static_cast<uint8_t>(order);
  free_bytes_ -= BytesOf(order);
  touched_ = true;
  return base() + offset;
}

void ReserveRegion::Return(void* piece) {
  size_t offset = static_cast<char*>(piece) - base();
  int order = StateAt(offset);
  free_bytes_ += BytesOf(order);
  for (; order < kOrders - 1; ++order) {
    const size_t other = offset ^ BytesOf(order);
    if (StateAt(other) != (static_cast<uint8_t>(order) | kFree)) break;
    Remove(other, order);
    offset = std::min(offset, other);
  }
  Add(offset, order);
}

size_t ReserveRegion::SizeOf(const void* piece) const {
  return BytesOf(StateAt(static_cast<const char*>(piece) - base()));
}

// ----------------------------------------------------------------------------------- the reserve

HeapReserve& HeapReserve::Process() { return process_reserve; }

void* HeapReserve::Take(size_t bytes, size_t alignment) {
  if (alignment > ReserveRegion::kAlignment) return nullptr;
  // A piece is as aligned as it is large, up to a page.
  const size_t asked = std::max(bytes, alignment);
  const std::lock_guard lock(mutex_);
  for (ReserveRegion& region : regions_) {
    if (void* const piece = region.Take(asked); piece != nullptr) {
      short_.store(true, std::memory_order_relaxed);
      return piece;
    }
  }
  return nullptr;
}

void HeapReserve::Return(void* piece) {
  const std::lock_guard lock(mutex_);
  for (ReserveRegion& region : regions_) {
    if (region.Has(piece)) return region.Return(piece);
  }
}

size_t HeapReserve::SizeOf(const void* piece) const {
  const std::lock_guard lock(mutex_);
  for (const ReserveRegion& region : regions_) {
    if (region.Has(piece)) return region.SizeOf(piece);
  }
  return 0;
}

size_t HeapReserve::FreeLocked() const {
  size_t bytes = 0;
  for (const ReserveRegion& region : regions_) bytes += region.free_bytes();
  return bytes;
}

int64_t HeapReserve::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(FreeLocked());
}

void HeapReserve::DropSurplusLocked() {
  // From the end, so that those that are mapped come first.
  for (auto region = regions_.rbegin(); region != regions_.rend(); ++region) {
    if (!region->mapped()) continue;
    if (region->free_bytes() < ReserveRegion::kBytes) return;
    if (FreeLocked() - ReserveRegion::kBytes < kEnough) return region->Clean();
    region->Unmap();
  }
}

bool HeapReserve::Replenish() {
  const std::lock_guard lock(mutex_);
  for (ReserveRegion& region : regions_) {
    if (FreeLocked() >= kEnough || (!region.mapped() && !region.Map())) break;
  }
  DropSurplusLocked();
  const bool still = FreeLocked() < kEnough || (is_short() && !SystemHasMore());
  short_.store(still, std::memory_order_relaxed);
  return still;
}

// -----------------------------------------------------------------------------------------------

HeapMayFail::HeapMayFail() { ++may_fail; }
HeapMayFail::~HeapMayFail() { --may_fail; }
bool HeapMayFail::Applies() { return may_fail > 0; }

}  // namespace blockd::server
