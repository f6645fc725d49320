// Values that were made for keys of bytes, kept for the keys that were used last: recorded graphs,
// lists of tasks.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_RECENTLY_USED_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_RECENTLY_USED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace blockd::gpu {

// Appends plain data to a key.
template <typename Data>
void AppendToKey(std::span<const Data> data, std::vector<std::byte>& key) {
  static_assert(std::has_unique_object_representations_v<Data>);
  const std::span<const std::byte> bytes = std::as_bytes(data);
  key.insert(key.end(), bytes.begin(), bytes.end());
}

// From one thread at a time.
template <typename Value>
class RecentlyUsed {
 public:
  using Key = std::span<const std::byte>;

  // Null: nothing was made for this key. Otherwise it is the one used last from now on.
  Value* Find(Key key) {
    for (Entry& entry : entries_) {
      if (std::equal(key.begin(), key.end(), entry.key.begin(), entry.key.end())) {
        entry.last_use = ++uses_;
        return &entry.value;
      }
    }
    return nullptr;
  }
  // The key is new. The address is good until the next Add or TakeOldest.
  Value* Add(Key key, Value value) {
    entries_.push_back({{key.begin(), key.end()}, std::move(value), ++uses_});
    return &entries_.back().value;
  }
  // There is one.
  Value TakeOldest() {
    const auto oldest =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
    Value value = std::move(oldest->value);
    entries_.erase(oldest);
    return value;
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::vector<std::byte> key;
    Value value;
    uint64_t last_use;
  };

  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_RECENTLY_USED_H_
