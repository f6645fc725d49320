// The name of a held factorization: 120 random bits, a byte that says which of the server's devices
// holds it, then the epoch of the server that made it. So a server finds the device without a
// table, and a handle of another server, or of this one before it was restarted, is told from one
// that never existed.
#ifndef BLOCKD_SERVER_CORE_COMMON_HANDLE_H_
#define BLOCKD_SERVER_CORE_COMMON_HANDLE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace blockd::server {

// 4 bytes that the server's name decides, the same at every start, then 4 that are random at each.
struct Epoch {
  static constexpr size_t kNameBytes = 4;
  static constexpr size_t kBytes = 8;
  std::array<char, kBytes> bytes{};

  static Epoch Start(std::string_view server_name);
  std::string_view view() const { return {bytes.data(), bytes.size()}; }
  // True for a handle of a server of this name, whenever it was started.
  bool SameServer(const Epoch& other) const {
    return view().substr(0, kNameBytes) == other.view().substr(0, kNameBytes);
  }
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

struct Handle {
  static constexpr size_t kIdBytes = 16;  // the last of them is the shard's
  static constexpr size_t kBytes = kIdBytes + Epoch::kBytes;
  std::array<char, kBytes> bytes{};

  // A new one from the system's random source. Thread-safe.
  static Handle Random(const Epoch& epoch, uint8_t shard = 0);
  static std::optional<Handle> FromBytes(std::string_view bytes);  // nullopt: wrong length
  std::string_view view() const { return {bytes.data(), bytes.size()}; }
  Epoch epoch() const;
  uint8_t shard() const { return static_cast<uint8_t>(bytes[kIdBytes - 1]); }  // if it is one's own
  std::string hex(size_t first_bytes = kBytes) const;

  friend bool operator==(const Handle&, const Handle&) = default;
  // As unsigned bytes.
  friend auto operator<=>(const Handle& a, const Handle& b) { return a.view() <=> b.view(); }
  template <typename H>
  friend H AbslHashValue(H h, const Handle& handle) {
    return H::combine(std::move(h), handle.bytes);
  }
};

inline constexpr size_t kMaxShards = 256;  // that a handle can tell

// Which server this is, and since which start.
struct ServerIdentity {
  std::string name;
  Epoch epoch;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_HANDLE_H_
