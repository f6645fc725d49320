// Writes JSON, in order, with no tree in between.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_JSON_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_JSON_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace blockd::blockctl {

// The caller opens and closes in order; not thread-safe. Numbers that JSON has not are null.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);
  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) { return Value(std::string_view(text)); }
  JsonWriter& Value(double number);
  JsonWriter& Value(bool flag);
  template <std::integral T>
  JsonWriter& Value(T number) {
    return Raw(std::to_string(number));
  }
  template <typename T>
  JsonWriter& Field(std::string_view key, const T& value) {
    return Key(key).Value(value);
  }
  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  JsonWriter& Raw(std::string_view token);
  void Separate();

  std::string text_;
  bool first_ = true;  // in the innermost bracket, or after a key
};

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_JSON_H_
