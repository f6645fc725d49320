// Types of messages as their bytes are walked: what a field of this number has on the wire, and
// takes once it is parsed. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_MESSAGE_TYPE_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_MESSAGE_TYPE_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"

namespace blockd::server {

struct MessageType;

struct MessageField {
  using WireType = google::protobuf::internal::WireFormatLite::WireType;
  enum class Kind { kNumber, kString, kMessage };
  Kind kind = Kind::kNumber;
  WireType wire_type{};  // of one element
  bool repeated = false;
  int64_t number_bytes = 0;  // of a number, parsed
  int index = 0;             // among the fields of its message
  const google::protobuf::FieldDescriptor* descriptor = nullptr;
  const MessageType* type = nullptr;  // of a message

  bool Fits(WireType type_on_wire) const;
};

struct MessageType {
  int64_t object_bytes = 0;
  absl::flat_hash_map<int, MessageField> fields;  // by number

  // Null for one that the message does not know.
  const MessageField* Find(uint32_t tag) const;
};

// It stays for as long as the process.
const MessageType& TypeOf(const google::protobuf::Message& message);

// Skips what comes after the tag of a field that the message does not know, as the parser reads it.
// False for what the parser does not take.
bool SkipUnknown(google::protobuf::io::CodedInputStream* in, uint32_t tag);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_MESSAGE_TYPE_H_
