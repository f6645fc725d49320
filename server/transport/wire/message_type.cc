#include "server/transport/wire/message_type.h"

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/wire_format.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

int64_t NumberBytes(FieldDescriptor::CppType type) {
  switch (type) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return 8;
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    default:
      return 4;
  }
}

// Every type that was asked for, and those within them.
class MessageTypes {
 public:
  const MessageType& Of(const Message& prototype) {
    absl::MutexLock lock(&mutex_);
    return *Find(prototype);
  }

 private:
  const MessageType* Find(const Message& prototype) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Descriptor* const descriptor = prototype.GetDescriptor();
    std::unique_ptr<MessageType>& slot = types_[descriptor];
    if (slot != nullptr) return slot.get();
    slot = std::make_unique<MessageType>();
    MessageType* const type = slot.get();               // `slot` moves as others are added
    auto* const factory = const_cast<MessageFactory*>(  // its interface is not const
        static_cast<const MessageFactory*>(prototype.GetReflection()->GetMessageFactory()));
    type->object_bytes = static_cast<int64_t>(factory->GetPrototype(descriptor)->SpaceUsedLong());
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* const from = descriptor->field(i);
      MessageField field;
      field.repeated = from->is_repeated();
      field.wire_type = WireFormat::WireTypeForFieldType(from->type());
      field.number_bytes = NumberBytes(from->cpp_type());
      field.index = i;
      field.descriptor = from;
      if (from->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        field.kind = MessageField::Kind::kString;
      } else if (from->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        field.kind = MessageField::Kind::kMessage;
        field.type = Find(*factory->GetPrototype(from->message_type()));
      }
      type->fields.emplace(from->number(), field);
    }
    return type;
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<const Descriptor*, std::unique_ptr<MessageType>> types_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool MessageField::Fits(WireType type_on_wire) const {
  if (type_on_wire == wire_type) return true;
  return repeated && kind == Kind::kNumber &&
         type_on_wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;  // packed
}

const MessageField* MessageType::Find(uint32_t tag) const {
  const auto found = fields.find(WireFormatLite::GetTagFieldNumber(tag));
  if (found == fields.end() || !found->second.Fits(WireFormatLite::GetTagWireType(tag))) {
    return nullptr;
  }
  return &found->second;
}

const MessageType& TypeOf(const Message& message) {
  static auto& types = *new MessageTypes;
  return types.Of(message);
}

bool SkipUnknown(google::protobuf::io::CodedInputStream* in, uint32_t tag) {
  uint64_t number;
  int length;
  if (WireFormatLite::GetTagFieldNumber(tag) == 0) return false;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return in->ReadVarint64(&number);
    case WireFormatLite::WIRETYPE_FIXED64:
      return in->Skip(sizeof(uint64_t));
    case WireFormatLite::WIRETYPE_FIXED32:
      return in->Skip(sizeof(uint32_t));
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return ReadLength(in, &length) && in->Skip(length);
    case WireFormatLite::WIRETYPE_START_GROUP:
      break;
    default:
      return false;
  }
  if (!in->IncrementRecursionDepth()) return false;
  while (const uint32_t inner = ReadTag(in)) {
    if (WireFormatLite::GetTagWireType(inner) == WireFormatLite::WIRETYPE_END_GROUP) {
      in->DecrementRecursionDepth();
      return WireFormatLite::GetTagFieldNumber(inner) == WireFormatLite::GetTagFieldNumber(tag);
    }
    if (!SkipUnknown(in, inner)) return false;
  }
  return false;
}

}  // namespace blockd::server
