#include "server/base/byte_size.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace blockd::server {
namespace {

constexpr std::array<std::pair<absl::string_view, int>, 5> kUnits = {
    {{"", 0}, {"k", 10}, {"m", 20}, {"g", 30}, {"t", 40}}};

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  *error = "expected a number of bytes such as 1048576, 512MiB or 8GiB";
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  const size_t digits = lower.find_first_not_of("0123456789.");
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(lower.substr(0, digits), &number)) return false;
  absl::string_view unit =
      digits == std::string::npos
          ? absl::string_view()
          : absl::StripLeadingAsciiWhitespace(absl::string_view(lower).substr(digits));
  if (!absl::ConsumeSuffix(&unit, "ib")) absl::ConsumeSuffix(&unit, "b");
  for (const auto& [name, shift] : kUnits) {
    if (unit != name) continue;
    const double bytes = number * static_cast<double>(int64_t{1} << shift);
    if (!(bytes < 4.6e18)) {  // 2^62
      *error = "more bytes than any machine has";
      return false;
    }
    size->bytes = static_cast<int64_t>(bytes);
    return true;
  }
  return false;
}

std::string AbslUnparseFlag(const ByteSize& size) {
  constexpr absl::string_view kNames[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int64_t number = size.bytes;
  int unit = 0;
  while (number != 0 && number % 1024 == 0 && unit < 4) {
    number /= 1024;
    ++unit;
  }
  return absl::StrCat(number, kNames[unit]);
}

}  // namespace blockd::server
