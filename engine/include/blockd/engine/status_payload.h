// Typed details inside of an absl::Status, which therefore stays the one error type everywhere.
//
// A payload never leaves its process: it has native byte order, integers of 8 bytes, and strings
// behind their length. Pure, thread-safe.
#ifndef BLOCKD_ENGINE_STATUS_PAYLOAD_H_
#define BLOCKD_ENGINE_STATUS_PAYLOAD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace blockd {

class PayloadWriter {
 public:
  PayloadWriter& Int(int64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  PayloadWriter& Double(double value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  PayloadWriter& Text(std::string_view value) {
    Int(static_cast<int64_t>(value.size()));
    text_.append(value);
    return *this;
  }
  // `status`, which then has this payload under `url`.
  absl::Status AddTo(absl::Status status, const char* url) {
    status.SetPayload(url, absl::Cord(std::move(text_)));
    return status;
  }

 private:
  std::string text_;
};

// Reads the values of a PayloadWriter in their order.
class PayloadReader {
 public:
  PayloadReader(const absl::Status& status, const char* url) {
    if (auto payload = status.GetPayload(url)) {
      text_ = std::string(*payload);
      found_ = true;
    }
  }
  bool found() const { return found_; }
  int64_t Int() { return Number<int64_t>(); }
  double Double() { return Number<double>(); }
  std::string Text() {
    const size_t length = std::min(static_cast<size_t>(Int()), text_.size() - at_);
    std::string value = text_.substr(at_, length);
    at_ += length;
    return value;
  }

 private:
  template <typename T>
  T Number() {
    T value = 0;
    if (text_.size() - at_ < sizeof(value)) return 0;
    std::memcpy(&value, text_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }

  std::string text_;
  size_t at_ = 0;
  bool found_ = false;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_STATUS_PAYLOAD_H_
