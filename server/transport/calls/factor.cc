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

class FactorCall final : public CoreCallWith<v1::FactorRequest, FactorReply> {
 public:
  size_t ShortBytes() const override { return kShortFactorBytes; }
  // Each system is parsed, checked and placed.
  bool IsLong(const grpc::ByteBuffer* message) const override {
    return message == nullptr || HasSeveral(*message, v1::FactorRequest::kSystemFieldNumber);
  }

  absl::Status Read(const RequestData& data) override {
    const absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return form.status();
    params_.form = *form;
    has_form_ = true;
    systems_ = data.shared == nullptr
                   ? request_.system_size()
                   : static_cast<int64_t>(data.shared->num_places()) / kPlacesOfMatrix;
    if (systems_ == 0) return InvalidFieldError("system", "0 systems", "at least 1");
    if (systems_ > data.max_systems) {
      return InvalidFieldError("system", absl::StrCat(systems_, " systems"),
                               absl::StrCat("at most ", data.max_systems));
    }
    priority_ = request_.options().priority();
    absl::StatusOr<FactorParams> params = ToFactorParams(*form, systems_, request_.options());
    if (!params.ok()) return params.status();
    params_ = *std::move(params);
    views_.reserve(static_cast<size_t>(systems_));
    return data.shared == nullptr ? ReadSystems() : TakeSystems(*data.shared);
  }
  bool checks_finite() const override { return params_.check_finite; }
  void Describe(CallRecord* record) const override {
    if (has_form_) record->SetShape(params_.form.shape, systems_);
  }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.Factor(context, params_, std::move(views_), Take(std::move(done)));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t room) override {
    auto wire = std::make_unique<v1::FactorReply>();
    ToWire(reply_, wire.get());
    if (wire->ByteSizeLong() > room) ClearWords(wire->mutable_system());
    return wire;
  }

 private:
  absl::Status ReadSystems() {
    for (int k = 0; k < request_.system_size(); ++k) {
      absl::StatusOr<BlockTridiagonalView> view = ToView(
          params_.form, request_.spec(), request_.system(k), absl::StrCat("system[", k, "]"));
      if (!view.ok()) return view.status();
      views_.push_back(*view);
    }
    return absl::OkStatus();
  }
  absl::Status TakeSystems(SharedData& data) {
    absl::Status status = CheckNoData(request_.system_size() > 0, "system");
    while (status.ok() && std::ssize(views_) < systems_) {
      views_.push_back(ViewWithoutBlocks(params_.form, request_.spec()));
      status = data.TakeMatrix(&views_.back(), params_.check_finite);
    }
    return status;
  }

  FactorParams params_;
  bool has_form_ = false;
  int64_t systems_ = 0;
  std::vector<BlockTridiagonalView> views_;
};

}  // namespace

std::unique_ptr<CoreCall> NewFactor() { return std::make_unique<FactorCall>(); }

}  // namespace blockd::server
