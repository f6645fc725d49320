#include "server/transport/solver_service.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/admin_service.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/core_unary_call.h"
#include "server/transport/calls/factor_stream.h"
#include "server/transport/calls/inverse.h"
#include "server/transport/calls/reflection.h"
#include "server/transport/calls/smooth.h"
#include "server/transport/rpc/unary_call.h"
#include "server/transport/stream/solve_stream.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class GetFactorizationCall final : public CallOf<v1::GetFactorizationRequest> {
 public:
  using CallOf::CallOf;

 private:
  void Start() override {
    absl::StatusOr<Handle> handle = ToHandle("handle", request_.handle());
    if (!handle.ok()) return Fail(handle.status());
    absl::StatusOr<FactorizationStats> stats = core().Get(record().context()->caller, *handle);
    if (!stats.ok()) return Fail(stats.status());
    v1::FactorizationInfo wire;
    ToWire(*stats, &wire);
    Succeed(SerializeMessage(wire));
  }
};

class ListFactorizationsCall final : public CallOf<v1::ListFactorizationsRequest> {
 public:
  using CallOf::CallOf;

 private:
  bool IsLong() const override { return true; }

  void Start() override {
    const absl::StatusOr<AskedPage> asked = ToPage(request_.page_size(), request_.page_token());
    if (!asked.ok()) return Fail(asked.status());
    const int64_t page = asked->size;
    // One more than the page says whether another page follows.
    const std::vector<FactorizationStats> all =
        core().List(record().context()->caller, asked->after, page + 1);
    v1::ListFactorizationsReply wire;
    for (size_t i = 0; i < all.size() && i < static_cast<size_t>(page); ++i) {
      ToWire(all[i], wire.add_factorization());
    }
    if (all.size() > static_cast<size_t>(page)) {
      wire.set_next_page_token(std::string(all[page - 1].handle.view()));
    }
    Succeed(SerializeMessage(wire));
  }
};

void FillDevice(const Shard::State& state, v1::Device* wire) {
  wire->set_backend(state.backend);
  wire->set_name(state.name);
  wire->set_parallelism(state.parallelism);
  wire->set_memory_bytes(state.memory_bytes + state.solve_reserve_bytes);
  wire->set_memory_free_bytes(state.free_bytes);
  wire->set_memory_evictable_bytes(state.evictable_bytes);
  wire->set_factorizations(state.factorizations);
  wire->set_state(state.failure.ok() ? v1::Device::IN_SERVICE : v1::Device::FAILED);
  wire->set_failure(std::string(state.failure.message()));
  wire->set_backlog_seconds(absl::ToDoubleSeconds(state.backlog));
}

class GetServerInfoCall final : public CallOf<v1::GetServerInfoRequest> {
 public:
  using CallOf::CallOf;

 private:
  void Start() override {
    const DeviceInfo& device = core().backend().device();
    const SolverCore::MemoryStats memory = core().memory();
    v1::ServerInfo wire;
    wire.set_version(Version());
    for (const std::string& name : BuiltBackends()) wire.add_built_backends(name);
    wire.set_backend(device.backend);
    wire.set_device_name(device.name);
    wire.set_device_parallelism(device.parallelism);
    wire.set_memory_bytes(memory.total_bytes + memory.solve_reserve_bytes);
    wire.set_memory_free_bytes(memory.free_bytes);
    wire.set_memory_evictable_bytes(memory.evictable_bytes);
    wire.set_factorizations(memory.factorizations);
    wire.set_uptime_seconds(absl::ToDoubleSeconds(SteadyNow() - state()->start));
    wire.set_server_epoch(std::string(state()->identity.epoch.view()));
    wire.set_server_name(state()->identity.name);
    bool some_failed = false;
    for (size_t i = 0; i < core().shards().size(); ++i) {
      FillDevice(core().shards()[i].state(), wire.add_device());
      some_failed |= wire.device(static_cast<int>(i)).state() == v1::Device::FAILED;
    }
    wire.set_health(!core().healthy() ? v1::ServerInfo::NOT_SERVING
                    : some_failed     ? v1::ServerInfo::DEGRADED
                                      : v1::ServerInfo::SERVING);
    for (OptionValue& option : Limits(state()->options)) {
      v1::Limit* limit = wire.add_limit();
      limit->set_name(std::move(option.name));
      limit->set_value(std::move(option.value));
      limit->set_help(std::move(option.help));
    }
    Succeed(SerializeMessage(wire));
  }
};

class GetPlanCall final : public CallOf<v1::GetPlanRequest> {
 public:
  using CallOf::CallOf;

 private:
  bool IsLong() const override { return true; }

  void Start() override {
    absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return Fail(form.status());
    const auto or_one = [](int64_t count) { return count == 0 ? 1 : count; };
    const int64_t systems = or_one(request_.num_systems());
    const int64_t num_rhs = or_one(request_.num_rhs());
    record().SetShape(form->shape, systems);
    absl::StatusOr<PlanReply> plan = core().Plan(*form, systems, num_rhs);
    if (!plan.ok()) return Fail(plan.status());
    v1::Plan wire;
    wire.set_backend(core().backend().device().backend);
    wire.set_device_name(core().backend().device().name);
    ToWire(*plan, &wire);
    Succeed(SerializeMessage(wire));
  }
};

// A call that is answered with a status at once.
class RefusedCall final : public ServerCall {
 public:
  RefusedCall(CallTracker* tracker, std::unique_ptr<IncomingCall> incoming, grpc::Status status)
      : ServerCall(tracker, std::move(incoming)), status_(std::move(status)) {}

 private:
  void OnBegin() override { Finish(status_); }
  void OnCancel() override {}
  void OnDone() override {}
  void OnFailure(const absl::Status& status) override { Finish(ToGrpcStatus(status)); }

  const grpc::Status status_;
};

using Incoming = std::unique_ptr<IncomingCall>;
using Make = std::shared_ptr<ServerCall> (*)(ServiceState*, Incoming);

template <typename Call, Method method>
std::shared_ptr<ServerCall> MakeUnary(ServiceState* state, Incoming incoming) {
  return std::make_shared<Call>(state, method, std::move(incoming));
}

const absl::flat_hash_map<std::string_view, Make>& Methods() {
  static const auto& methods = *new absl::flat_hash_map<std::string_view, Make>{
      {"/blockd.v1.Solver/FactorStream", MakeFactorStream},
      {"/blockd.v1.Solver/SolveStream", MakeSolveStream},
      {"/blockd.v1.Solver/SelectedInverse", MakeSelectedInverse},
      {"/blockd.v1.Solver/Sample", MakeSample},
      {"/blockd.v1.Solver/Smooth", MakeSmooth},
      {"/blockd.v1.Solver/GetFactorization",
       MakeUnary<GetFactorizationCall, Method::kGetFactorization>},
      {"/blockd.v1.Solver/ListFactorizations",
       MakeUnary<ListFactorizationsCall, Method::kListFactorizations>},
      {"/blockd.v1.Solver/GetServerInfo", MakeUnary<GetServerInfoCall, Method::kGetServerInfo>},
      {"/blockd.v1.Solver/GetPlan", MakeUnary<GetPlanCall, Method::kGetPlan>},
  };
  return methods;
}

}  // namespace

std::shared_ptr<ServerCall> MakeSolverCall(ServiceState* state, Incoming incoming) {
  const auto& metadata = incoming->context.client_metadata();
  int64_t metadata_bytes = 0;
  for (const auto& [key, value] : metadata) {
    metadata_bytes += static_cast<int64_t>(key.size() + value.size());
  }
  incoming->headers.Set(metadata_bytes, static_cast<int64_t>(metadata.size()));
  if (metadata_bytes > kMaxMetadataBytes) {
    return std::make_shared<RefusedCall>(
        &state->tracker, std::move(incoming),
        ToGrpcStatus(LimitExceededError("the metadata", {.limit = "metadata_bytes",
                                                         .asked_bytes = metadata_bytes,
                                                         .limit_bytes = kMaxMetadataBytes})));
  }
  const std::string method = incoming->context.method();
  return MakeSolverCallOf(method, state, std::move(incoming));
}

std::shared_ptr<ServerCall> MakeSolverCallOf(std::string_view method, ServiceState* state,
                                             Incoming incoming) {
  if (const CoreCallKind* const kind = FindUnary(method); kind != nullptr) {
    return MakeCoreUnaryCall(state, kind->method, std::move(incoming), kind->make());
  }
  const auto found = Methods().find(method);
  if (found != Methods().end()) return found->second(state, std::move(incoming));
  if (auto call = state->health.MakeCall(method, &incoming); call != nullptr) return call;
  if (state->reflection != nullptr) {
    if (auto call = state->reflection->MakeCall(method, &incoming); call != nullptr) return call;
  }
  if (state->admin != nullptr) {
    if (auto call = state->admin->MakeCall(&incoming); call != nullptr) return call;
  }
  return std::make_shared<RefusedCall>(
      &state->tracker, std::move(incoming),
      grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                   absl::StrCat("blockd ", Version(), " has no such call")));
}

}  // namespace blockd::server
