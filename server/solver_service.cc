#include "server/solver_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/factor_stream.h"
#include "server/raw_message.h"
#include "server/solve_stream.h"
#include "server/wire.h"

namespace blockd::server {
namespace {

template <typename Request>
class CallOf : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

 protected:
  Request request_;

 private:
  google::protobuf::MessageLite* request() final { return &request_; }
};

class FactorCall final : public CallOf<v1::FactorRequest> {
 public:
  using CallOf::CallOf;

 private:
  void Start() override {
    if (absl::Status status = state()->CheckAcceptsWork(); !status.ok()) return Fail(status);
    absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return Fail(form.status());
    record().SetShape(form->shape, request_.system_size());
    if (request_.system_size() == 0) {
      return Fail(InvalidFieldError("system", "0 systems", "at least 1"));
    }
    absl::StatusOr<FactorParams> params =
        ToFactorParams(*form, request_.system_size(), request_.options());
    if (!params.ok()) return Fail(params.status());
    std::vector<BlockTridiagonalView> views;
    views.reserve(request_.system_size());
    for (int k = 0; k < request_.system_size(); ++k) {
      absl::StatusOr<BlockTridiagonalView> view =
          ToView(*form, request_.spec(), request_.system(k), absl::StrCat("system[", k, "]"));
      if (!view.ok()) return Fail(view.status());
      views.push_back(*view);
    }
    core().Factor(record().context(), *params, std::move(views),
                  [this](absl::StatusOr<FactorReply> reply) { Answer(std::move(reply)); });
  }

  void Answer(absl::StatusOr<FactorReply> reply) {
    if (!reply.ok()) return Fail(reply.status());
    record().SetCost(reply->cost);
    v1::FactorReply wire;
    ToWire(*reply, &wire);
    Succeed(SerializeMessage(wire));
  }
};

class SolveCall final : public CallOf<v1::SolveRequest> {
 public:
  using CallOf::CallOf;

 private:
  void Start() override {
    if (absl::Status status = state()->CheckAcceptsWork(); !status.ok()) return Fail(status);
    absl::StatusOr<SolveParams> params = ToSolveParams(request_, "");
    if (!params.ok()) return Fail(params.status());
    record().SetSolve(params->handle, params->num_rhs);
    const auto bytes = static_cast<int64_t>(request_.rhs().size());
    if (absl::Status status = TakeHostBytes(bytes); !status.ok()) return Fail(status);
    solution_ = Payload(bytes);
    params->rhs = AsBytes(request_.rhs());
    params->solution = solution_.span();
    core().Solve(record().context(), *params,
                 [this](absl::StatusOr<SolveReply> reply) { Answer(std::move(reply)); });
  }

  void Answer(absl::StatusOr<SolveReply> reply) {
    if (!reply.ok()) return Fail(reply.status());
    record().SetCost(reply->cost);
    v1::SolveReply wire;
    ToWire(*reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::SolveReply::kSolutionFieldNumber, solution_));
  }

  Payload solution_;
};

class FactorSolveCall final : public CallOf<v1::FactorSolveRequest> {
 public:
  using CallOf::CallOf;

 private:
  void Start() override {
    absl::StatusOr<FactorSolveParams> params = Params();
    if (!params.ok()) return Fail(params.status());
    core().FactorSolve(record().context(), *params,
                       [this](absl::StatusOr<SolveReply> reply) { Answer(std::move(reply)); });
  }

  absl::StatusOr<FactorSolveParams> Params() {
    if (absl::Status status = state()->CheckAcceptsWork(); !status.ok()) return status;
    absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return form.status();
    record().SetShape(form->shape, 1);
    absl::StatusOr<BlockTridiagonalView> view =
        ToView(*form, request_.spec(), request_.system(), "system");
    if (!view.ok()) return view.status();
    absl::StatusOr<int64_t> bytes = RhsBytes(form->shape, request_.num_rhs(), "num_rhs");
    if (!bytes.ok()) return bytes.status();
    if (*bytes != static_cast<int64_t>(request_.rhs().size())) {
      return InvalidFieldError("rhs", absl::StrCat(request_.rhs().size(), " bytes"),
                               absl::StrCat(*bytes, " bytes"));
    }
    if (absl::Status status = TakeHostBytes(*bytes); !status.ok()) return status;
    solution_ = Payload(*bytes);
    FactorSolveParams params;
    params.matrix = *view;
    params.num_rhs = request_.num_rhs();
    params.rhs = AsBytes(request_.rhs());
    params.solution = solution_.span();
    params.residual = request_.options().residual();
    params.max_refinements = request_.options().max_refinements();
    params.check_finite = request_.check_finite();
    params.check_finite_rhs = request_.check_finite() || request_.options().check_finite();
    params.log_determinant = request_.log_determinant();
    absl::StatusOr<Accuracy> accuracy = ToAccuracy("accuracy", request_.accuracy());
    if (!accuracy.ok()) return accuracy.status();
    params.accuracy = *accuracy;
    return params;
  }

  void Answer(absl::StatusOr<SolveReply> reply) {
    if (!reply.ok()) return Fail(reply.status());
    record().SetCost(reply->cost);
    v1::FactorSolveReply wire;
    ToWire(*reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::FactorSolveReply::kSolutionFieldNumber, solution_));
  }

  Payload solution_;
};

class ReleaseCall final : public CallOf<v1::ReleaseRequest> {
 public:
  using CallOf::CallOf;

 private:
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
  static constexpr int32_t kMaxPage = 1000;

  void Start() override {
    if (request_.page_size() < 0 || request_.page_size() > kMaxPage) {
      return Fail(InvalidFieldError("page_size", absl::StrCat(request_.page_size()),
                                    absl::StrCat("0 to ", kMaxPage)));
    }
    const int64_t page = request_.page_size() == 0 ? kMaxPage : request_.page_size();
    std::optional<Handle> after;
    if (!request_.page_token().empty()) {
      after = Handle::FromBytes(request_.page_token());
      if (!after.has_value()) {
        return Fail(InvalidFieldError("page_token",
                                      absl::StrCat(request_.page_token().size(), " bytes"),
                                      "a next_page_token of this server"));
      }
    }
    // One more than the page says whether another page follows.
    const std::vector<FactorizationStats> all =
        core().List(record().context()->caller, after, page + 1);
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
    wire.set_memory_bytes(memory.total_bytes);
    wire.set_memory_free_bytes(memory.free_bytes);
    wire.set_memory_evictable_bytes(memory.evictable_bytes);
    wire.set_factorizations(memory.factorizations);
    wire.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - state()->start));
    wire.set_server_epoch(std::string(state()->identity.epoch.view()));
    wire.set_server_name(state()->identity.name);
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

template <typename Call>
grpc::ServerUnaryReactor* StartCall(ServiceState* state, Method method,
                                    grpc::CallbackServerContext* rpc,
                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
  auto* call = new Call(state, method, rpc, request, reply);
  call->Begin();
  return call;
}

}  // namespace

using Unary = grpc::ServerUnaryReactor;
using Bytes = grpc::ByteBuffer;

Unary* SolverService::Factor(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<FactorCall>(state_, Method::kFactor, rpc, request, reply);
}

grpc::ServerReadReactor<Bytes>* SolverService::FactorStream(Rpc* rpc, Bytes* reply) {
  return StartFactorStream(state_, rpc, reply);
}

Unary* SolverService::Solve(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<SolveCall>(state_, Method::kSolve, rpc, request, reply);
}

grpc::ServerBidiReactor<Bytes, Bytes>* SolverService::SolveStream(Rpc* rpc) {
  return StartSolveStream(state_, rpc);
}

Unary* SolverService::FactorSolve(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<FactorSolveCall>(state_, Method::kFactorSolve, rpc, request, reply);
}

Unary* SolverService::Release(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<ReleaseCall>(state_, Method::kRelease, rpc, request, reply);
}

Unary* SolverService::GetFactorization(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<GetFactorizationCall>(state_, Method::kGetFactorization, rpc, request, reply);
}

Unary* SolverService::ListFactorizations(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<ListFactorizationsCall>(state_, Method::kListFactorizations, rpc, request,
                                           reply);
}

Unary* SolverService::GetServerInfo(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<GetServerInfoCall>(state_, Method::kGetServerInfo, rpc, request, reply);
}

Unary* SolverService::GetPlan(Rpc* rpc, const Bytes* request, Bytes* reply) {
  return StartCall<GetPlanCall>(state_, Method::kGetPlan, rpc, request, reply);
}

}  // namespace blockd::server
