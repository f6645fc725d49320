#include "server/identity/token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace blockd::server {

std::optional<TokenHash> HashToken(absl::string_view token) {
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes ||
      !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return std::nullopt;
  }
  TokenHash hash{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

std::optional<TokenHash> ParseTokenHash(absl::string_view hex) {
  TokenHash hash{};
  if (hex.size() != 2 * hash.size() || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
    return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

bool SameHash(const TokenHash& a, const TokenHash& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<std::string> TokenHashDigits(absl::string_view input) {
  absl::ConsumeSuffix(&input, "\n");
  absl::ConsumeSuffix(&input, "\r");
  const std::optional<TokenHash> hash = HashToken(input);
  if (!hash) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hash_token: expected a token on standard input, ", kMinTokenBytes, " to ",
                     kMaxTokenBytes, " printable characters without blanks, and no more lines"));
  }
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash->data()), hash->size()});
}

}  // namespace blockd::server
