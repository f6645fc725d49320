#include "client/blockctl/formats/number_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace blockd::blockctl {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// A number as C++ writes it, at the beginning of the text. The rest of the text begins at `end`.
bool TakeDouble(std::string_view text, const char** end, double* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  *end = stop;
  if (error != std::errc::result_out_of_range) return error == std::errc();
  *value = std::strtod(std::string(text.data(), stop).c_str(), nullptr);
  return std::abs(*value) < 1;
}

// An exponent that C++ does not write: D+00, or -102 of three digits.
bool IsFortranExponent(std::string_view text) {
  if (text[0] == 'D' || text[0] == 'd') return true;
  const auto digit = [&](size_t i) { return absl::ascii_isdigit(text[i]); };
  return text.size() == 4 && (text[0] == '+' || text[0] == '-') && digit(1) && digit(2) && digit(3);
}

}  // namespace

NumberLines::NumberLines(std::string_view text) : rest_(text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
}

bool NumberLines::Next() {
  while (NextRaw()) {
    SkipBlanks();
    if (!line_.empty() && line_[0] != '%') return true;
  }
  return false;
}

bool NumberLines::NextRaw() {
  if (rest_.empty()) return false;
  const size_t end = std::min(rest_.find('\n'), rest_.size());
  line_ = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  ++number_;
  return true;
}

bool NumberLines::Take(int64_t* value) {
  SkipSign();
  const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), *value);
  return error == std::errc() && SkipTo(end);
}

bool NumberLines::Take(double* value) {
  SkipSign();
  const char* end = nullptr;
  if (!TakeDouble(line_, &end, value)) return false;
  return SkipTo(end) || TakeFortran(end - line_.data(), value);
}

bool NumberLines::AtEnd() {
  SkipBlanks();
  return line_.empty();
}

absl::Status NumberLines::Bad(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", number_, ": ", what));
}

void NumberLines::SkipBlanks() {
  size_t begin = 0;
  while (begin < line_.size() && IsBlank(line_[begin])) ++begin;
  line_.remove_prefix(begin);
}

// std::from_chars takes no plus.
void NumberLines::SkipSign() {
  SkipBlanks();
  if (line_.size() > 1 && line_[0] == '+' && line_[1] != '-') line_.remove_prefix(1);
}

// A number ends at a blank. False, and nothing is skipped, where this one does not.
bool NumberLines::SkipTo(const char* end) {
  if (end != line_.data() + line_.size() && !IsBlank(*end)) return false;
  line_.remove_prefix(end - line_.data());
  return true;
}

// A number whose exponent begins there, and is not written as C++ does.
bool NumberLines::TakeFortran(size_t exponent, double* value) {
  size_t end = exponent;
  while (end < line_.size() && !IsBlank(line_[end])) ++end;
  std::string_view digits = line_.substr(exponent, end - exponent);
  if (!IsFortranExponent(digits)) return false;
  if (absl::ascii_isalpha(digits[0])) digits.remove_prefix(1);
  const std::string number =
      absl::StrCat(std::string(line_.substr(0, exponent)), "e", std::string(digits));
  const char* stop = nullptr;
  if (!TakeDouble(number, &stop, value) || stop != number.data() + number.size()) return false;
  return SkipTo(line_.data() + end);
}

}  // namespace blockd::blockctl
