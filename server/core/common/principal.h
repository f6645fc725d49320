// Who asks: a tenant and what it may do.
//
// Values; no thread is involved. server/identity makes them of certificates, tokens and names.
#ifndef BLOCKD_SERVER_CORE_COMMON_PRINCIPAL_H_
#define BLOCKD_SERVER_CORE_COMMON_PRINCIPAL_H_

#include <cstdint>
#include <initializer_list>
#include <string>

namespace blockd::server {

enum class Role : uint8_t {
  kUse,      // the calls of blockd.v1.Solver
  kAdmin,    // those of blockd.v1.Admin
  kMetrics,  // those of them that change nothing
};

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role role : roles) Add(role);
  }
  constexpr void Add(Role role) { bits_ = static_cast<uint8_t>(bits_ | Bit(role)); }
  constexpr bool Has(Role role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool HasAnyOf(RoleSet roles) const { return (bits_ & roles.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(const RoleSet&, const RoleSet&) = default;

 private:
  static constexpr uint8_t Bit(Role role) {
    return static_cast<uint8_t>(1U << static_cast<uint8_t>(role));
  }
  uint8_t bits_ = 0;
};

struct Principal {
  std::string tenant;  // handles, quotas and shares of the device belong to it
  RoleSet roles;
  friend bool operator==(const Principal&, const Principal&) = default;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_PRINCIPAL_H_
