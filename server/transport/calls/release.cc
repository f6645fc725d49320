// Release: factorizations that are not needed any more.
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

struct Released {
  int64_t bytes = 0;
  Cost cost;
};

class ReleaseCall final : public CoreCallWith<v1::ReleaseRequest, Released> {
 public:
  bool is_work() const override { return false; }
  // Each handle of it is work.
  size_t ShortBytes() const override { return 4096; }

  absl::Status Read(const RequestData& /*data*/) override {
    if (request_.handle_size() == 0) {
      return InvalidFieldError("handle", "0 handles", "at least 1");
    }
    handles_.reserve(request_.handle_size());
    for (int i = 0; i < request_.handle_size(); ++i) {
      const absl::StatusOr<Handle> handle =
          ToHandle(absl::StrCat("handle[", i, "]"), request_.handle(i));
      if (!handle.ok()) return handle.status();
      handles_.push_back(*handle);
    }
    return absl::OkStatus();
  }
  void Describe(CallRecord* /*record*/) const override {}

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    const absl::StatusOr<int64_t> bytes = core.Release(context->caller, handles_);
    if (bytes.ok()) reply_.bytes = *bytes;
    done(bytes.status());
  }
  bool replies_here() const override { return true; }
  std::unique_ptr<google::protobuf::Message> Reply(size_t /*room*/) override {
    auto wire = std::make_unique<v1::ReleaseReply>();
    wire->set_released_bytes(reply_.bytes);
    return wire;
  }

 private:
  std::vector<Handle> handles_;
};

}  // namespace

std::unique_ptr<CoreCall> NewRelease() { return std::make_unique<ReleaseCall>(); }

}  // namespace blockd::server
