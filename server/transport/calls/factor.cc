// Factor: matrices in one message, or in shared memory. (FactorStream brings them in pieces.)
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// A Factor of fewer bytes is taken by the thread that reads it: to hand it on takes longer.
constexpr size_t kShortFactorBytes = 128 << 10;

// True if a message has the field more than once.
bool HasSeveral(const grpc::ByteBuffer& message, int field) {
  using google::protobuf::internal::WireFormatLite;
  MessageReader reader(message);
  google::protobuf::io::CodedInputStream in(&reader);
  int found = 0;
  while (const uint32_t tag = ReadTag(&in)) {
    if (WireFormatLite::GetTagFieldNumber(tag) == field && ++found > 1) return true;
    if (!WireFormatLite::SkipField(&in, tag)) return false;
  }
  return false;
}

// `Request` has a spec and FactorOptions.
template <typename Request>
class FactorCallOf : public CoreCallWith<Request, FactorReply> {
 public:
  void Describe(CallRecord* record) const final {
    if (has_form_) record->SetShape(params_.form.shape, systems_);
  }

  void Ask(SolverCore& core, const ContextPtr& context, CoreCall::Done done) final {
    core.Factor(context, params_, std::move(views_), this->Take(std::move(done)));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t room) final {
    auto wire = std::make_unique<v1::FactorReply>();
    ToWire(this->reply_, wire.get());
    if (wire->ByteSizeLong() > room) ClearWords(wire->mutable_system());
    return wire;
  }

 protected:
  absl::Status ReadHead(int64_t systems) {
    const absl::StatusOr<MatrixForm> form = ToForm(this->request_.spec());
    if (!form.ok()) return form.status();
    params_.form = *form;
    has_form_ = true;
    systems_ = systems;
    return absl::OkStatus();
  }
  absl::Status ReadOptions() {
    this->priority_ = this->request_.options().priority();
    absl::StatusOr<FactorParams> params =
        ToFactorParams(params_.form, systems_, this->request_.options());
    if (!params.ok()) return params.status();
    params_ = *std::move(params);
    return absl::OkStatus();
  }

  FactorParams params_;
  bool has_form_ = false;
  int64_t systems_ = 0;
  std::vector<BlockTridiagonalView> views_;
};

class FactorCall final : public FactorCallOf<v1::FactorRequest> {
 public:
  size_t ShortBytes() const override { return kShortFactorBytes; }
  // Each system is parsed, checked and placed.
  bool IsLong(const grpc::ByteBuffer& message) const override {
    return HasSeveral(message, v1::FactorRequest::kSystemFieldNumber);
  }

  absl::Status Read(int64_t /*lifted*/, std::span<const Handle> /*handles*/) override {
    absl::Status status = ReadHead(request_.system_size());
    if (!status.ok()) return status;
    if (systems_ == 0) return InvalidFieldError("system", "0 systems", "at least 1");
    status = ReadOptions();
    if (!status.ok()) return status;
    views_.reserve(request_.system_size());
    for (int k = 0; k < request_.system_size(); ++k) {
      absl::StatusOr<BlockTridiagonalView> view = ToView(
          params_.form, request_.spec(), request_.system(k), absl::StrCat("system[", k, "]"));
      if (!view.ok()) return view.status();
      views_.push_back(*view);
    }
    return absl::OkStatus();
  }
};

class SharedFactorCall final : public FactorCallOf<v1::FactorStreamHeader> {
 public:
  bool ChecksFinite(const v1::ShmRequest& /*slot*/) const override {
    return request_.options().check_finite();
  }
  absl::Status ReadShared(const SharedRequest& request) override {
    absl::Status status = ReadHead(request_.num_systems());
    if (!status.ok()) return status;
    const int64_t most = request.max_systems();
    if (systems_ < 1 || systems_ > most) {
      return InvalidFieldError("num_systems", absl::StrCat(systems_), absl::StrCat("1 to ", most));
    }
    status = request.CheckReplyRoom(systems_);
    if (status.ok()) status = ReadOptions();
    if (!status.ok()) return status;
    const MatrixForm& form = params_.form;
    const uint64_t came = request.slot().bytes;
    const absl::StatusOr<int64_t> bytes = CheckedProduct(form.bytes(), systems_);
    if (!bytes.ok() || static_cast<uint64_t>(*bytes) != came) {
      return InvalidFieldError("bytes", absl::StrCat(came),
                               absl::StrCat(systems_, " times ", form.bytes()));
    }
    const auto matrices = request.Data("rhs_offset", request.slot().rhs_offset, came);
    if (!matrices.ok()) return matrices.status();
    views_.assign(static_cast<size_t>(systems_), ViewWithoutBlocks(form, request_.spec()));
    const std::byte* next = matrices->data();
    for (BlockTridiagonalView& view : views_) {
      view.SetParts(next);
      next += form.bytes();
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<CoreCall> NewFactor() { return std::make_unique<FactorCall>(); }
std::unique_ptr<CoreCall> NewSharedFactor() { return std::make_unique<SharedFactorCall>(); }

}  // namespace blockd::server
