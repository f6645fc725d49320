// Bearer tokens, which the server knows only by their SHA-256.
//
// A token has to be random: its hash has no salt, so a guessed token is a found one.
// `openssl rand -base64 32 | tee token | blockd --hash_token` makes one.
#ifndef BLOCKD_SERVER_IDENTITY_TOKEN_H_
#define BLOCKD_SERVER_IDENTITY_TOKEN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace blockd::server {

inline constexpr size_t kMinTokenBytes = 20, kMaxTokenBytes = 4096;

using TokenHash = std::array<uint8_t, 32>;

// Absent for what cannot be a token: a length out of range, blanks, what is not printable.
std::optional<TokenHash> HashToken(absl::string_view token);
// 64 hexadecimal digits, upper or lower case; absent for anything else.
std::optional<TokenHash> ParseTokenHash(absl::string_view hex);
// In a time that depends on neither value.
bool SameHash(const TokenHash& a, const TokenHash& b);

// The digits that the tenants file wants, for `input` as it was read: a newline at the end is not
// the token's. INVALID_ARGUMENT says what is expected, and never what came.
absl::StatusOr<std::string> TokenHashDigits(absl::string_view input);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_TOKEN_H_
