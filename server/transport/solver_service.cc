#include "server/transport/solver_service.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/base/steady_time.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/admin_service.h"
#include "server/transport/calls/factor_solve.h"
#include "server/transport/calls/factor_stream.h"
#include "server/transport/calls/inverse.h"
#include "server/transport/calls/reflection.h"
#include "server/transport/calls/smooth.h"
#include "server/transport/rpc/unary_call.h"
#include "server/transport/stream/solve_stream.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/split_message.h"
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

class FactorCall final : public CoreCallOf<v1::FactorRequest, FactorReply> {
 public:
  using CoreCallOf::CoreCallOf;

 private:
  bool IsWork() const override { return true; }
  size_t ShortBytes() const override { return kShortFactorBytes; }
  // Each system is parsed, checked and placed.
  bool IsLong() const override {
    return HasSeveral(message(), v1::FactorRequest::kSystemFieldNumber);
  }

  void Start() override {
    absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return Fail(form.status());
    record().SetShape(form->shape, request_.system_size());
    if (request_.system_size() == 0) {
      return Fail(InvalidFieldError("system", "0 systems", "at least 1"));
    }
    absl::StatusOr<FactorParams> params =
        ToFactorParams(*form, request_.system_size(), request_.options());
    if (!params.ok()) return Fail(params.status());
    absl::Status status =
        ReadPriority("options.priority", request_.options().priority(), record().context().get());
    if (!status.ok()) return Fail(status);
    std::vector<BlockTridiagonalView> views;
    views.reserve(request_.system_size());
    for (int k = 0; k < request_.system_size(); ++k) {
      absl::StatusOr<BlockTridiagonalView> view =
          ToView(*form, request_.spec(), request_.system(k), absl::StrCat("system[", k, "]"));
      if (!view.ok()) return Fail(view.status());
      views.push_back(*view);
    }
    core().Factor(record().context(), *params, std::move(views), Done());
  }

  void Answer(const FactorReply& reply) override {
    v1::FactorReply wire;
    ToWire(reply, &wire);
    Succeed(SerializeMessage(wire));
  }
};

// A call whose right-hand sides, one field of its message, are copied once: to where the solutions
// will be, and the device reads and writes.
template <typename Request, typename Reply>
class SolvingCallOf : public CoreCallOf<Request, Reply> {
 public:
  using CoreCallOf<Request, Reply>::CoreCallOf;

 protected:
  // Parses all but them.
  absl::StatusOr<SplitMessage> SplitRequest() {
    absl::StatusOr<SplitMessage> split = SplitBytes(
        &this->message(), this->request_, {.field = Request::kRhsFieldNumber},
        kMaxSolveManyHeadBytes, StopsReading(this->message(), *this->record().context()));
    if (absl::IsCancelled(split.status())) return CancellationOf(*this->record().context());
    if (!split.ok()) return split.status();
    absl::Status status = this->Parse(AsBuffer(split->rest));
    if (!status.ok()) return status;
    return split;
  }
  // more_bytes: to be counted beside them.
  absl::Status TakeValues(const SplitMessage& split, int64_t more_bytes) {
    absl::StatusOr<Payload> values = this->Allocate(split.bytes, more_bytes);
    if (!values.ok()) return values.status();
    values_ = *std::move(values);
    CopyPieces(split.pieces, values_.span().data());
    return absl::OkStatus();
  }

  Payload values_;

 private:
  bool IsWork() const final { return true; }
};

class SolveCall final : public SolvingCallOf<v1::SolveRequest, SolveReply> {
 public:
  using SolvingCallOf::SolvingCallOf;

 private:
  absl::Status ReadRequest() override {
    absl::StatusOr<SplitMessage> split = SplitRequest();
    return split.ok() ? TakeValues(*split, 0) : split.status();
  }

  void Start() override {
    absl::StatusOr<SolveParams> params = ToSolveParams(request_, "");
    if (!params.ok()) return Fail(params.status());
    absl::Status status =
        ReadPriority("options.priority", request_.options().priority(), record().context().get());
    if (!status.ok()) return Fail(status);
    record().SetSolve(params->handle, params->num_rhs);
    params->rhs = params->solution = values_.span();
    core().Solve(record().context(), *params, Done());
  }

  void Answer(const SolveReply& reply) override {
    v1::SolveReply wire;
    ToWire(reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::SolveReply::kSolutionFieldNumber, values_));
  }
};

class SolveManyCall final : public SolvingCallOf<v1::SolveManyRequest, SolveManyReply> {
 public:
  using SolvingCallOf::SolvingCallOf;

 private:
  absl::Status ReadRequest() override {
    absl::StatusOr<SplitMessage> split = SplitRequest();
    if (!split.ok()) return split.status();
    std::vector<Handle> handles;
    absl::Status status = AddHandles(request_, "", &handles);
    if (!status.ok()) return status;
    absl::StatusOr<int64_t> solves = CountSolves(request_, handles.size(), split->bytes, "");
    if (!solves.ok()) return solves.status();
    status = TakeValues(*split, *solves * kHostBytesPerSolve);
    if (!status.ok()) return status;
    params_ = ToSolveManyParams(request_, handles, values_.span());
    return absl::OkStatus();
  }

  void Start() override {
    absl::Status status =
        ReadPriority("options.priority", request_.options().priority(), record().context().get());
    if (!status.ok()) return Fail(status);
    record().SetSolves(params_);
    solves_ = params_.solves;
    core().SolveMany(record().context(), std::move(params_), Done());
  }

  void Answer(const SolveManyReply& reply) override {
    ClearFailed(reply, solves_);
    v1::SolveManyReply wire;
    ToWire(reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::SolveManyReply::kSolutionFieldNumber, values_));
  }

  SolveManyParams params_;
  std::vector<SolveManyParams::Columns> solves_;
};

class ReleaseCall final : public CallOf<v1::ReleaseRequest> {
 public:
  using CallOf::CallOf;

 private:
  // Each handle of it is work.
  size_t ShortBytes() const override { return 4096; }

  void Start() override {
    if (request_.handle_size() == 0) {
      return Fail(InvalidFieldError("handle", "0 handles", "at least 1"));
    }
    std::vector<Handle> handles;
    handles.reserve(request_.handle_size());
    for (int i = 0; i < request_.handle_size(); ++i) {
      absl::StatusOr<Handle> handle = ToHandle(absl::StrCat("handle[", i, "]"), request_.handle(i));
      if (!handle.ok()) return Fail(handle.status());
      handles.push_back(*handle);
    }
    absl::StatusOr<int64_t> bytes = core().Release(record().context()->caller, handles);
    if (!bytes.ok()) return Fail(bytes.status());
    v1::ReleaseReply wire;
    wire.set_released_bytes(*bytes);
    Succeed(SerializeMessage(wire));
  }
};

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
      {"/blockd.v1.Solver/Factor", MakeUnary<FactorCall, Method::kFactor>},
      {"/blockd.v1.Solver/FactorStream", MakeFactorStream},
      {"/blockd.v1.Solver/Solve", MakeUnary<SolveCall, Method::kSolve>},
      {"/blockd.v1.Solver/SolveMany", MakeUnary<SolveManyCall, Method::kSolveMany>},
      {"/blockd.v1.Solver/SolveStream", MakeSolveStream},
      {"/blockd.v1.Solver/FactorSolve", MakeFactorSolve},
      {"/blockd.v1.Solver/FactorSolveMany", MakeFactorSolveMany},
      {"/blockd.v1.Solver/SelectedInverse", MakeSelectedInverse},
      {"/blockd.v1.Solver/Sample", MakeSample},
      {"/blockd.v1.Solver/Smooth", MakeSmooth},
      {"/blockd.v1.Solver/Release", MakeUnary<ReleaseCall, Method::kRelease>},
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
