#include "client/wire/slice_pool.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::client {
namespace {

// Smaller ones the allocator keeps by itself; larger ones are few.
constexpr size_t kLeast = 32 << 10, kMost = 4 << 20, kKept = 16 << 20;

struct Block {
  explicit Block(size_t size) : size(size), bytes(new std::byte[size]) {}
  const size_t size;
  const std::unique_ptr<std::byte[]> bytes;
};

class Pool {
 public:
  // A block of at least so many bytes.
  std::unique_ptr<Block> Take(size_t size) {
    size = std::bit_ceil(size);
    {
      absl::MutexLock lock(&mutex_);
      const auto found = std::find_if(free_.rbegin(), free_.rend(),
                                      [size](const auto& block) { return block->size == size; });
      if (found != free_.rend()) {
        std::unique_ptr<Block> block = std::move(*found);
        free_.erase(std::next(found).base());
        kept_ -= size;
        return block;
      }
    }
    return std::make_unique<Block>(size);
  }
  void Give(std::unique_ptr<Block> block) {
    absl::MutexLock lock(&mutex_);
    if (kept_ + block->size > kKept) return;
    kept_ += block->size;
    free_.push_back(std::move(block));
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_ ABSL_GUARDED_BY(mutex_);  // the last used at the end
  size_t kept_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Never destroyed: gRPC may send until the process ends.
Pool& ThePool() {
  static Pool& pool = *new Pool;
  return pool;
}

}  // namespace

grpc::Slice CopyForSending(Bytes bytes) {
  if (bytes.size() < kLeast || bytes.size() > kMost) return {bytes.data(), bytes.size()};
  Block* const block = ThePool().Take(bytes.size()).release();
  std::copy(bytes.begin(), bytes.end(), block->bytes.get());
  return {block->bytes.get(), bytes.size(),
          [](void* given) { ThePool().Give(std::unique_ptr<Block>(static_cast<Block*>(given))); },
          block};
}

}  // namespace blockd::client
