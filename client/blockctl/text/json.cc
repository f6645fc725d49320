#include "client/blockctl/text/json.h"

#include <cmath>
#include <cstdio>

namespace blockd::blockctl {
namespace {

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void JsonWriter::Separate() {
  if (!first_) text_ += ", ";
  first_ = false;
}

JsonWriter& JsonWriter::Raw(std::string_view token) {
  Separate();
  text_ += token;
  return *this;
}

JsonWriter& JsonWriter::Open(char bracket) {
  Raw(std::string_view(&bracket, 1));
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Raw(Quote(key));
  text_ += ": ";
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view text) { return Raw(Quote(text)); }

JsonWriter& JsonWriter::Value(bool flag) { return Raw(flag ? "true" : "false"); }

JsonWriter& JsonWriter::Value(double number) {
  if (!std::isfinite(number)) return Raw("null");
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  double back = 0;
  for (int digits = 6; digits <= 17; ++digits) {  // the shortest that reads back as the same number
    std::snprintf(text, sizeof(text), "%.*g", digits, number);
    std::sscanf(text, "%lf", &back);
    if (back == number) break;
  }
  return Raw(text);
}

}  // namespace blockd::blockctl
