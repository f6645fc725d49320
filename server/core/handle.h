// The name of a held factorization: 128 random bits, then 64 bits that are random once a process. A
// handle of another process is thereby told from one that never existed.
#ifndef BLOCKD_SERVER_CORE_HANDLE_H_
#define BLOCKD_SERVER_CORE_HANDLE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace blockd::server {

struct Handle {
  static constexpr size_t kIdBytes = 16;
  static constexpr size_t kEpochBytes = 8;
  static constexpr size_t kBytes = kIdBytes + kEpochBytes;
  std::array<char, kBytes> bytes{};

  // A new one from the system's random source, with this process's epoch. Thread-safe.
  static Handle Random();
  static std::string ProcessEpoch();                               // kEpochBytes bytes
  static std::optional<Handle> FromBytes(std::string_view bytes);  // nullopt: wrong length
  std::string_view view() const { return {bytes.data(), bytes.size()}; }
  bool of_this_process() const;
  std::string hex() const;

  friend bool operator==(const Handle&, const Handle&) = default;
  // As unsigned bytes.
  friend auto operator<=>(const Handle& a, const Handle& b) { return a.view() <=> b.view(); }
  template <typename H>
  friend H AbslHashValue(H h, const Handle& handle) {
    return H::combine(std::move(h), handle.bytes);
  }
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_HANDLE_H_
