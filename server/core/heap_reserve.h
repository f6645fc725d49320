// Memory for pieces that must not fail, once the system gives the process no more.
//
// Much code cannot go on without a small piece: a hash table that throws while it grows is broken,
// what is noexcept ends the process, and gRPC aborts or follows a null pointer. So the program
// blockd answers malloc and operator new from this reserve (heap_interposer.cc) where the system
// fails, and refuses new work until the system has memory again. A reserve that is used up ends the
// process.
//
// It is address space, which costs no memory before it is needed. That is what runs out where
// malloc fails: under a limit of address space, or where the system promises no more than it has.
// Where a control group is full, malloc does not fail, and no reserve helps.
//
// Nothing here allocates. Thread-safe; usable before the first constructor has run.
#ifndef BLOCKD_SERVER_CORE_HEAP_RESERVE_H_
#define BLOCKD_SERVER_CORE_HEAP_RESERVE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace blockd::server {

// A piece of address space that pieces are cut from, by halves (a buddy allocator).
class ReserveRegion {
 public:
  static constexpr size_t kBytes = size_t{64} << 20;
  static constexpr size_t kAlignment = 4096;  // the most that a piece may ask for

  bool Map();  // false if the system has none
  void Unmap();
  // Gives what was touched back to the system, if no piece is taken.
  void Clean();
  bool mapped() const { return base_.load(std::memory_order_acquire) != nullptr; }
  bool Has(const void* piece) const {
    const char* const base = base_.load(std::memory_order_acquire);
    return base != nullptr && static_cast<size_t>(static_cast<const char*>(piece) - base) < kBytes;
  }
  size_t free_bytes() const { return free_bytes_; }

  // Null if there is no such piece.
  void* Take(size_t bytes);
  void Return(void* piece);
  size_t SizeOf(const void* piece) const;

 private:
  static constexpr int kLeafBits = 8, kBits = 26;  // of the smallest and the largest piece
  static constexpr int kOrders = kBits - kLeafBits + 1;
  static_assert(size_t{1} << kBits == kBytes);
  static constexpr uint8_t kFree = 0x80;
  struct FreePiece {
    FreePiece *next, *previous;
  };

  static size_t BytesOf(int order) { return size_t{1} << (kLeafBits + order); }
  uint8_t& StateAt(size_t offset) const { return state_[offset >> kLeafBits]; }
  FreePiece* At(size_t offset) const { return reinterpret_cast<FreePiece*>(base() + offset); }
  char* base() const { return base_.load(std::memory_order_relaxed); }
  void MakeWhole();
  void Add(size_t offset, int order);
  void Remove(size_t offset, int order);

  std::atomic<char*> base_{nullptr};
  uint8_t* state_ =
      nullptr;  // of the piece that begins at a leaf: its order, and whether it is free
  size_t free_bytes_ = 0;
  bool touched_ = false;  // since it was clean
  std::array<FreePiece*, kOrders> free_{};
};

class HeapReserve {
 public:
  // Where HeapMayFail applies, only pieces below this come from the reserve.
  static constexpr size_t kSmallBytes = size_t{64} << 10;

  constexpr HeapReserve() = default;
  HeapReserve(const HeapReserve&) = delete;
  HeapReserve& operator=(const HeapReserve&) = delete;
  // The one that the program's heap has. It has nothing unless something replenishes it.
  static HeapReserve& Process();

  // Null if there is none. From then on the process is short of memory, until Replenish says
  // otherwise.
  void* Take(size_t bytes, size_t alignment = 1);
  // Whether it is a piece of the reserve; only such may be returned, or asked for its size.
  bool Has(const void* piece) const {
    for (const ReserveRegion& region : regions_) {
      if (region.Has(piece)) return true;
      if (!region.mapped()) return false;  // those that are mapped come first
    }
    return false;
  }
  void Return(void* piece);
  size_t SizeOf(const void* piece) const;

  // Whether a piece was taken, and the system has no more since.
  bool is_short() const { return short_.load(std::memory_order_relaxed); }
  int64_t free_bytes() const;
  // From time to time: takes what the reserve lacks from the system, and returns whether the
  // process is still short. What lives long and was taken while the system had nothing stays where
  // it is.
  bool Replenish();

 private:
  static constexpr size_t kEnough = ReserveRegion::kBytes / 4 * 3;

  size_t FreeLocked() const;
  void DropSurplusLocked();

  mutable std::mutex mutex_;  // not Abseil's, which may allocate
  std::array<ReserveRegion, 8> regions_;
  std::atomic<bool> short_{false};
};

// While one lives, large pieces that its thread asks for by operator new may fail: what a caller
// sent, where whoever asks for it can say that there is no memory for that.
class HeapMayFail {
 public:
  HeapMayFail();
  ~HeapMayFail();
  HeapMayFail(const HeapMayFail&) = delete;
  HeapMayFail& operator=(const HeapMayFail&) = delete;
  static bool Applies();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_HEAP_RESERVE_H_
