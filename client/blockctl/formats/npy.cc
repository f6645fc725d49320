#include "client/blockctl/formats/npy.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/blockctl/formats/files.h"

namespace blockd::blockctl {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("not a .npy file that can be read: ", what));
}

// The text behind 'key' in the header, a Python dict literal, up to the end of that value.
std::optional<std::string> HeaderValue(std::string_view header, const std::string& key) {
  const std::string quoted = absl::StrCat("'", key, "'");
  size_t at = header.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  at = header.find(':', at + quoted.size());
  if (at == std::string_view::npos) return std::nullopt;
  const size_t begin = header.find_first_not_of(' ', at + 1);
  if (begin == std::string_view::npos) return std::nullopt;
  size_t end = std::string_view::npos;
  if (header[begin] == '(') {
    end = header.find(')', begin);
    if (end != std::string_view::npos) ++end;
  } else {
    end = header.find_first_of(",}", begin);
  }
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(header.substr(begin, end - begin));
}

constexpr char kBoolean[] = "'|b1'";

absl::StatusOr<client::Scalar> ParseType(const std::string& type) {
  if (type == "'<f8'" || type == kBoolean) return client::Scalar::kFloat64;
  if (type == "'<f4'") return client::Scalar::kFloat32;
  return Bad(absl::StrCat("its type is ", type,
                          ", expected '<f8' or '<f4'; convert with a.astype('<f8')"));
}

absl::StatusOr<std::vector<int64_t>> ParseShape(const std::string& text) {
  std::vector<int64_t> shape;
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return Bad("no shape");
  for (absl::string_view part : absl::StrSplit(text.substr(1, text.size() - 2), ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;
    int64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 0 || extent > (int64_t{1} << 40)) {
      return Bad(absl::StrCat("its shape is ", text));
    }
    shape.push_back(extent);
  }
  return shape;
}

// The length of the header and of what stands before it.
absl::Status FindHeader(std::string_view bytes, size_t* begin, size_t* length) {
  if (bytes.size() < 10 || bytes.substr(0, kMagic.size()) != kMagic) {
    return Bad("it does not begin with \\x93NUMPY");
  }
  const int version = bytes[6];
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  if (version == 1) {
    *begin = 10;
    *length = byte(8) | byte(9) << 8;
  } else if ((version == 2 || version == 3) && bytes.size() >= 12) {
    *begin = 12;
    *length = byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  } else {
    return Bad(absl::StrCat("version ", version));
  }
  if (bytes.size() - *begin < *length) return Bad("it ends in the header");
  return absl::OkStatus();
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

absl::StatusOr<Array> ParseNpy(std::string_view bytes) {
  size_t begin = 0, length = 0;
  if (absl::Status status = FindHeader(bytes, &begin, &length); !status.ok()) return status;
  const std::string_view header = bytes.substr(begin, length);
  const std::string_view data = bytes.substr(begin + length);

  const auto type = HeaderValue(header, "descr");
  const auto order = HeaderValue(header, "fortran_order");
  const auto shape = HeaderValue(header, "shape");
  if (!type || !order || !shape) return Bad("its header lacks descr, fortran_order or shape");
  const absl::StatusOr<client::Scalar> scalar = ParseType(*type);
  if (!scalar.ok()) return scalar.status();
  absl::StatusOr<std::vector<int64_t>> extents = ParseShape(*shape);
  if (!extents.ok()) return extents.status();

  Array array;
  array.scalar = *scalar;
  array.shape = *std::move(extents);
  array.fortran_order = absl::StartsWith(*order, "True");
  const bool is_boolean = *type == kBoolean;
  int64_t expected = is_boolean ? 1 : client::ScalarBytes(array.scalar);
  for (const int64_t extent : array.shape) {
    if (__builtin_mul_overflow(expected, extent, &expected)) return Bad("its shape overflows");
  }
  if (static_cast<int64_t>(data.size()) != expected) {
    return Bad(absl::StrCat("it holds ", data.size(), " bytes of data, but its shape ",
                            ShapeText(array.shape), " needs ", expected));
  }
  if (is_boolean) {
    array.data.resize(data.size() * sizeof(double));
    std::transform(data.begin(), data.end(), array.as<double>(),
                   [](char value) { return value == 0 ? 0.0 : 1.0; });
    return array;
  }
  const auto* const first = reinterpret_cast<const std::byte*>(data.data());
  array.data.assign(first, first + expected);
  return array;
}

absl::StatusOr<Array> ReadNpy(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<Array> array = ParseNpy(*bytes);
  if (!array.ok()) return InFile(path, array.status());
  return array;
}

absl::Status WriteNpy(const std::string& path, const Array& array) {
  std::string header =
      absl::StrCat("{'descr': '", array.scalar == client::Scalar::kFloat64 ? "<f8" : "<f4",
                   "', 'fortran_order': ", array.fortran_order ? "True" : "False",
                   ", 'shape': ", ShapeText(array.shape), ", }");
  // The data begins at a multiple of 64 bytes.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string start(kMagic);
  start += '\1';
  start += '\0';
  start += static_cast<char>(header.size() & 0xff);
  start += static_cast<char>(header.size() >> 8);
  return WriteFile(
      path, {start, header, {reinterpret_cast<const char*>(array.data.data()), array.data.size()}});
}

}  // namespace blockd::blockctl
