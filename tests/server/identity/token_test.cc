// Bearer tokens: what is one, what its hash is.
#include "server/identity/token.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"

namespace blockd::server {
namespace {

constexpr char kToken[] = "abcdefghijklmnopqrstuvwxyz";
// printf %s abcdefghijklmnopqrstuvwxyz | sha256sum
constexpr char kDigits[] = "71c480df93d6ae2f1efad1447c66c9525e316218cf51fc8d9ed832f2daf18b73";

TEST(TokenTest, ItsHashIsSha256) {
  EXPECT_EQ(TokenHashDigits(kToken).value(), kDigits);
  ASSERT_TRUE(ParseTokenHash(kDigits).has_value());
  EXPECT_TRUE(SameHash(*HashToken(kToken), *ParseTokenHash(kDigits)));
  EXPECT_FALSE(SameHash(*HashToken(std::string(kToken) + "x"), *ParseTokenHash(kDigits)));
}

TEST(TokenTest, ALineEndIsNotPartOfIt) {
  EXPECT_EQ(TokenHashDigits(std::string(kToken) + "\n").value(), kDigits);
  EXPECT_EQ(TokenHashDigits(std::string(kToken) + "\r\n").value(), kDigits);
}

TEST(TokenTest, WhatCanBeGuessedOrSplitIsNone) {
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string(kMinTokenBytes - 1, 'x'),
        std::string(kMaxTokenBytes + 1, 'x'), std::string("abcdefghijklm nopqrstuvwxyz"),
        std::string(kToken) + "\n\n", std::string(kToken) + '\0', std::string(kToken) + "\xc3\xa4",
        std::string(kToken) + "\n" + kToken}) {
    const auto digits = TokenHashDigits(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(digits.status())) << bad.size();
    // The message must not repeat the input, which may be a secret.
    EXPECT_FALSE(absl::StrContains(digits.status().message(), "abcdefgh")) << digits.status();
  }
  EXPECT_TRUE(HashToken(std::string(kMinTokenBytes, 'x')).has_value());
  EXPECT_TRUE(HashToken(std::string(kMaxTokenBytes, '~')).has_value());
}

TEST(TokenTest, AHashIs64DigitsOfEitherCase) {
  const std::string digits = kDigits;
  EXPECT_EQ(ParseTokenHash(std::string(64, 'a')), ParseTokenHash(std::string(64, 'A')));
  for (const std::string& bad : {std::string(), digits.substr(1), digits + "0",
                                 digits.substr(1) + "g", digits.substr(1) + " "}) {
    EXPECT_FALSE(ParseTokenHash(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace blockd::server
