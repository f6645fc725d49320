#include "server/transport/calls/reflection.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

namespace proto = grpc::reflection::v1;
namespace protobuf = google::protobuf;

constexpr size_t kMostReflectionBytes = 4096;  // of a request

void AddFile(const protobuf::FileDescriptor* file,
             absl::flat_hash_set<const protobuf::FileDescriptor*>& added,
             proto::FileDescriptorResponse* reply) {
  if (!added.insert(file).second) return;
  protobuf::FileDescriptorProto description;
  file->CopyTo(&description);
  description.SerializeToString(reply->add_file_descriptor_proto());
  for (int i = 0; i < file->dependency_count(); ++i) AddFile(file->dependency(i), added, reply);
}

// Null for what the process does not know.
const protobuf::FileDescriptor* FileOf(const proto::ServerReflectionRequest& request) {
  const protobuf::DescriptorPool& pool = *protobuf::DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case proto::ServerReflectionRequest::kFileByFilename:
      return pool.FindFileByName(request.file_by_filename());
    case proto::ServerReflectionRequest::kFileContainingSymbol:
      return pool.FindFileContainingSymbol(request.file_containing_symbol());
    case proto::ServerReflectionRequest::kFileContainingExtension: {
      const proto::ExtensionRequest& extension = request.file_containing_extension();
      const auto* const type = pool.FindMessageTypeByName(extension.containing_type());
      const protobuf::FieldDescriptor* const field =
          type == nullptr ? nullptr
                          : pool.FindExtensionByNumber(type, extension.extension_number());
      return field == nullptr ? nullptr : field->file();
    }
    default:
      return nullptr;
  }
}

void SetError(grpc::StatusCode code, const std::string& message,
              proto::ServerReflectionResponse* reply) {
  reply->mutable_error_response()->set_error_code(code);
  reply->mutable_error_response()->set_error_message(message);
}

void FindExtensions(const std::string& name, proto::ServerReflectionResponse* reply) {
  const protobuf::DescriptorPool& pool = *protobuf::DescriptorPool::generated_pool();
  const auto* const type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, "no such type", reply);
  std::vector<const protobuf::FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  proto::ExtensionNumberResponse* const numbers = reply->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(name);
  for (const protobuf::FieldDescriptor* extension : extensions) {
    numbers->add_extension_number(extension->number());
  }
}

proto::ServerReflectionResponse AnswerOf(const std::vector<std::string>& services,
                                         proto::ServerReflectionRequest request) {
  proto::ServerReflectionResponse reply;
  reply.set_valid_host(request.host());
  switch (request.message_request_case()) {
    case proto::ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        reply.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case proto::ServerReflectionRequest::kAllExtensionNumbersOfType:
      FindExtensions(request.all_extension_numbers_of_type(), &reply);
      break;
    case proto::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "nothing is asked", &reply);
      break;
    default:
      if (const protobuf::FileDescriptor* const file = FileOf(request); file != nullptr) {
        absl::flat_hash_set<const protobuf::FileDescriptor*> added;
        AddFile(file, added, reply.mutable_file_descriptor_response());
      } else {
        SetError(grpc::StatusCode::NOT_FOUND, "not known here", &reply);
      }
  }
  *reply.mutable_original_request() = std::move(request);
  return reply;
}

}  // namespace

// Answers one request after another, on a work thread, until none comes any more.
class Reflection::Call final : public ServerCall {
 public:
  Call(Reflection* reflection, std::unique_ptr<IncomingCall> incoming)
      : ServerCall(&reflection->calls_, std::move(incoming)), reflection_(reflection) {}

 private:
  void OnBegin() override { Read(); }
  void OnRead(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    const bool valid =
        message().Length() <= kMostReflectionBytes && ParseMessage(message(), &request_);
    message().Clear();
    if (!valid) {
      return End(
          {grpc::StatusCode::INVALID_ARGUMENT, "no ServerReflectionRequest, or a very long one"});
    }
    reflection_->work_->Post(Shared(shared_from_this(), &answer_));
  }
  void Answer() noexcept {
    Guard([this] {
      const grpc::ByteBuffer answer =
          SerializeMessage(AnswerOf(reflection_->services_, std::move(request_)));
      absl::MutexLock lock(&mutex_);
      if (!ended_) Write(answer);
    });
  }
  void OnWritten(bool ok) override {
    if (!ok) return End(grpc::Status::CANCELLED);
    absl::MutexLock lock(&mutex_);
    if (!ended_) Read();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {}
  void OnFailure(const absl::Status& status) override { End(ToGrpcStatus(status)); }

  // Whatever else another thread is about to start is not started any more.
  void End(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    Finish(status);
  }

  Reflection* const reflection_;
  proto::ServerReflectionRequest request_;
  MemberTask<Call, &Call::Answer> answer_{this};
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<ServerCall> Reflection::MakeCall(std::string_view method,
                                                 std::unique_ptr<IncomingCall>* incoming) {
  if (method != "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" &&
      method != "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") {
    return nullptr;
  }
  return std::make_shared<Call>(this, std::move(*incoming));
}

}  // namespace blockd::server
