#include "tests/soak/tenant.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace blockd::soak {
namespace {

constexpr size_t kMostHeld = 16;
using enum grpc::StatusCode;

// SHA-256 of kToken, as `blockd --hash_token` prints it.
constexpr char kToken[] = "soak-token-of-the-batch-tenant";
constexpr char kTokenHash[] = "fd839ac887b3232270794f7f862f58e75545d0bbb3ed1934bc190bae8ce5fbd5";

std::chrono::system_clock::time_point After(std::chrono::microseconds time) {
  return std::chrono::system_clock::now() + time;
}

}  // namespace

const std::vector<Tenant>& Tenants() {
  static const auto& all = *new std::vector<Tenant>{
      {"control", "", "weight: 4 highest_class: REALTIME"},
      {"smoothing", "", R"(quotas { device_bytes: "6MiB" upload_bytes_per_second: "32MiB" })"},
      {"batch", kToken,
       "weight: 0.5 highest_class: BULK quotas { requests_per_second: 1500 queue_slots: 6 }"},
      {"careless", "", R"(quotas { handles: 12 pinned_bytes: "64KiB" host_bytes: "384KiB" })"},
  };
  return all;
}

std::string TenantsFile() {
  std::string file;
  for (const Tenant& tenant : Tenants()) {
    const std::string identity = tenant.token.empty()
                                     ? absl::StrCat("metadata: \"", tenant.name, "\"")
                                     : absl::StrCat("token_sha256: \"", kTokenHash, "\"");
    absl::StrAppend(&file, "tenant { name: \"", tenant.name, "\" identity { ", identity, " } ",
                    tenant.file, " }\n");
  }
  return file;
}

void SayWho(const Tenant& tenant, grpc::ClientContext* context) {
  if (tenant.token.empty()) {
    context->AddMetadata("blockd-caller", tenant.name);
  } else {
    context->AddMetadata("authorization", "Bearer " + tenant.token);
  }
}

Caller::Caller(const Tenant& tenant, int port, uint64_t seed, Tally* tally)
    : tenant_(tenant), tally_(tally), random_(seed) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::Solver::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
}

grpc::ClientContext* Caller::NewContext() {
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_deadline(After(std::chrono::seconds(60)));  // nothing takes so long
  SayWho(tenant_, context_.get());
  return context_.get();
}

void Caller::Count(const std::string& what, const grpc::Status& status,
                   std::initializer_list<Code> allowed, const std::string& wrong) {
  ++asked_;
  std::string why = wrong;
  const std::string kind = KindOf(status);
  // A refusal says of which kind it is, and a quota is one that the tenant has.
  if (status.error_code() == RESOURCE_EXHAUSTED) {
    const bool quota =
        kind.starts_with("quota ") && tenant_.file.find(kind.substr(6) + ":") != std::string::npos;
    if (!quota && kind != "memory") absl::StrAppend(&why, " refused by ", kind);
  }
  if (status.error_code() == UNAVAILABLE && kind != "retry") why += " without a RetryAfter";
  if (status.error_code() == NOT_FOUND && kind.empty()) why += " without a reason";
  tally_->Add(what, status, allowed, why);
}

void Caller::Note(const grpc::Status& status, const Held* held) {
  if (held != nullptr && status.error_code() == NOT_FOUND) Forget(held);
  if (KindOf(status) == "quota requests_per_second") {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Caller::Forget(const Held* held) {
  held_[static_cast<size_t>(held - held_.data())] = std::move(held_.back());
  held_.pop_back();
}

Caller::Held* Caller::Any() {
  if (held_.empty()) Factor();
  return held_.empty() ? nullptr : &held_[Below(held_.size())];
}

v1::SolveRequest Caller::RequestOf(const Held& held, int64_t columns) const {
  v1::SolveRequest request;
  request.set_handle(held.handle);
  request.set_num_rhs(columns);
  request.set_rhs(held.system->RhsBytes(columns));
  return request;
}

v1::FactorRequest Caller::FactorOf(const System& system, bool keep_matrix) const {
  v1::FactorRequest request;
  *request.mutable_spec() = system.spec;
  *request.add_system() = system.data;
  request.mutable_options()->set_keep_matrix(keep_matrix);
  return request;
}

void Caller::Keep(const v1::FactorReply& reply, const System& system, bool keep_matrix) {
  held_.push_back({reply.system(0).handle(), &system, keep_matrix});
  if (held_.size() > kMostHeld) {
    // Half of them are given back; the others are left to eviction.
    if (Chance(0.5)) return Release();
    Forget(&held_[Below(held_.size())]);
  }
}

void Caller::Step() {
  const struct {
    double weight;
    void (Caller::*ask)();
  } kinds[] = {
      {50, &Caller::Solve},
      {14, &Caller::SolveInTime},
      {6, &Caller::SolveCancelled},
      {4, &Caller::SolveWithResidual},
      {2, &Caller::SolveWrongly},
      {1, &Caller::SolveForeign},
      {5, &Caller::Factor},
      {2, &Caller::FactorKeyed},
      {1, &Caller::Refactor},
      {1, &Caller::FactorNotPositiveDefinite},
      {1, &Caller::FactorSolve},
      {1, &Caller::Upload},
      {0.5, &Caller::UploadBroken},
      {2, &Caller::Release},
      {1, &Caller::Ask},
  };
  if (Chance(0.01)) return Stream();
  double all = 0;
  for (const auto& kind : kinds) all += kind.weight;
  double left = std::uniform_real_distribution<double>(0, all)(random_);
  for (const auto& kind : kinds) {
    if ((left -= kind.weight) > 0) continue;
    (this->*kind.ask)();
    break;
  }
}

void Caller::FillPool() {
  for (int i = 0; i < 150; ++i) {
    v1::FactorReply reply;
    const System& system = Systems()[8];  // of some 400 KiB
    Count("Factor", stub_->Factor(NewContext(), FactorOf(system, true), &reply), {});
  }
  ReleaseAll();
}

void Caller::Run(int64_t requests) {
  for (const int64_t end = asked_ + requests; asked_ < end;) Step();
}

void Caller::Solve() {
  const Held* held = Any();
  if (held == nullptr) return;
  const auto columns = static_cast<int64_t>(1 + Below(System::kColumns));
  v1::SolveReply reply;
  v1::SolveRequest request = RequestOf(*held, columns);
  const size_t priority = Below(4);
  if (priority > 0) {
    request.mutable_options()->set_priority(static_cast<v1::PriorityClass>(priority));
  }
  const grpc::Status status = stub_->Solve(NewContext(), request, &reply);
  const std::string wrong = status.ok() ? held->system->CheckSolution(reply.solution(), columns,
                                                                      reply.backward_error_bound())
                                        : "";
  Count("Solve", status, {NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE}, wrong);
  Note(status, held);
}

void Caller::SolveInTime() {
  const Held* held = Any();
  if (held == nullptr) return;
  grpc::ClientContext* context = NewContext();
  context->set_deadline(After(std::chrono::microseconds(1 + Below(2000))));
  v1::SolveRequest request = RequestOf(*held, 1);
  request.mutable_options()->set_priority(v1::REALTIME);
  v1::SolveReply reply;
  const grpc::Status status = stub_->Solve(context, request, &reply);
  const std::string wrong =
      status.ok() ? held->system->CheckSolution(reply.solution(), 1, reply.backward_error_bound())
                  : "";
  Count("Solve with 1 us to 2 ms", status,
        {DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE}, wrong);
  Note(status, held);
}

void Caller::SolveCancelled() {
  const Held* held = Any();
  if (held == nullptr) return;
  grpc::ClientContext* context = NewContext();
  const v1::SolveRequest request = RequestOf(*held, 1);
  v1::SolveReply reply;
  grpc::Status status;
  grpc::CompletionQueue queue;
  const auto call = stub_->AsyncSolve(context, request, &queue);
  call->Finish(&reply, &status, this);
  std::this_thread::sleep_for(std::chrono::microseconds(Below(300)));
  context->TryCancel();
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  const std::string wrong =
      status.ok() ? held->system->CheckSolution(reply.solution(), 1, reply.backward_error_bound())
                  : "";
  Count("Solve that is cancelled", status, {CANCELLED, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE},
        wrong);
  Note(status, held);
}

void Caller::SolveWithResidual() {
  const Held* held = Any();
  if (held == nullptr) return;
  v1::SolveRequest request = RequestOf(*held, 2);
  request.mutable_options()->set_residual(true);
  request.mutable_options()->set_max_refinements(static_cast<int32_t>(Below(3)));
  v1::SolveReply reply;
  const grpc::Status status = stub_->Solve(NewContext(), request, &reply);
  std::string wrong;
  if (status.ok()) {
    wrong = held->system->CheckSolution(reply.solution(), 2, reply.backward_error_bound());
    if (!reply.has_backward_error()) wrong += " no residual";
    if (!held->matrix_kept) wrong += " a residual without the matrix";
  } else if (status.error_code() == FAILED_PRECONDITION && held->matrix_kept) {
    wrong = "the matrix was kept";
  }
  Count("Solve with a residual", status,
        {FAILED_PRECONDITION, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE}, wrong);
  Note(status, held);
}

void Caller::SolveWrongly() {
  const Held* held = Any();
  if (held == nullptr) return;
  v1::SolveRequest request = RequestOf(*held, 1);
  if (Chance(0.5)) {
    request.mutable_rhs()->pop_back();
  } else {
    request.set_num_rhs(0);
  }
  v1::SolveReply reply;
  const grpc::Status status = stub_->Solve(NewContext(), request, &reply);
  Count("Solve with a wrong size", status,
        {INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE},
        status.ok() ? "was taken" : "");
  Note(status, held);
}

void Caller::SolveForeign() {
  if (foreign_.empty()) return Ask();
  v1::SolveRequest request;
  request.set_handle(foreign_);
  request.set_num_rhs(1);
  request.set_rhs(std::string(8, '\0'));
  v1::SolveReply reply;
  const grpc::Status status = stub_->Solve(NewContext(), request, &reply);
  const bool never = status.error_code() != NOT_FOUND || KindOf(status) == "NEVER_EXISTED";
  Count("Solve with another tenant's handle", status, {NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE},
        status.ok() || !never ? "others learn of it" : "");
  Note(status, nullptr);
}

void Caller::Factor() {
  const System& system = Systems()[Below(Systems().size())];
  const bool keep = Chance(0.3);
  v1::FactorRequest request = FactorOf(system, keep);
  // One that forgets what it pins would take the memory of all, but for its quota.
  if (tenant_.name == "careless" && Chance(0.2)) request.mutable_options()->set_pin(true);
  if (Chance(0.1)) request.mutable_options()->mutable_lease()->set_seconds(1);
  v1::FactorReply reply;
  const grpc::Status status = stub_->Factor(NewContext(), request, &reply);
  Count("Factor", status, {RESOURCE_EXHAUSTED, UNAVAILABLE});
  Note(status, nullptr);
  if (status.ok()) return Keep(reply, system, keep);
  // Over its handles or bytes: something goes.
  if (KindOf(status).starts_with("quota") && !held_.empty() && Chance(0.3)) Release();
}

void Caller::FactorKeyed() {
  const System& system = Systems()[Below(4)];
  v1::FactorRequest request = FactorOf(system, false);
  // Some keys come twice.
  request.mutable_options()->set_idempotency_key(
      absl::StrCat(reinterpret_cast<uintptr_t>(this), " ", keys_ += static_cast<int64_t>(Below(2)),
                   " ", system.problem.num_blocks, system.problem.diagonal[0]));
  v1::FactorReply reply;
  const grpc::Status status = stub_->Factor(NewContext(), request, &reply);
  Count("Factor with a key", status, {RESOURCE_EXHAUSTED, UNAVAILABLE});
  Note(status, nullptr);
  if (!status.ok()) return;
  for (const Held& held : held_) {
    if (held.handle == reply.system(0).handle()) return;
  }
  Keep(reply, system, false);
}

void Caller::FactorNotPositiveDefinite() {
  v1::FactorReply reply;
  const grpc::Status status =
      stub_->Factor(NewContext(), FactorOf(NotPositiveDefinite(), false), &reply);
  const bool named = status.error_code() != INVALID_ARGUMENT || KindOf(status) == "not SPD";
  Count("Factor of what is not SPD", status, {INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE},
        status.ok() || !named ? "not said" : "");
  Note(status, nullptr);
}

void Caller::Refactor() {
  const Held* held = Any();
  if (held == nullptr) return;
  v1::FactorRequest request = FactorOf(*held->system, held->matrix_kept);
  request.mutable_options()->add_handle(held->handle);
  request.mutable_options()->set_overwrite(Chance(0.5));
  v1::FactorReply reply;
  const grpc::Status status = stub_->Factor(NewContext(), request, &reply);
  Count("Factor in place", status, {NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE});
  Note(status, held);
}

void Caller::FactorSolve() {
  const System& system = Systems()[Below(Systems().size())];
  v1::FactorSolveRequest request;
  *request.mutable_spec() = system.spec;
  *request.mutable_system() = system.data;
  request.set_num_rhs(2);
  request.set_rhs(system.RhsBytes(2));
  v1::FactorSolveReply reply;
  const grpc::Status status = stub_->FactorSolve(NewContext(), request, &reply);
  Count("FactorSolve", status, {RESOURCE_EXHAUSTED, UNAVAILABLE},
        status.ok() ? system.CheckSolution(reply.solution(), 2, reply.backward_error_bound()) : "");
  Note(status, nullptr);
}

void Caller::Release() {
  const Held* held = Any();
  if (held == nullptr) return;
  v1::ReleaseRequest request;
  request.add_handle(held->handle);
  const bool unknown = Chance(0.2);
  if (unknown) request.add_handle(std::string(24, '?'));
  v1::ReleaseReply reply;
  const grpc::Status status = stub_->Release(NewContext(), request, &reply);
  Count("Release", status, {NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE},
        unknown && status.ok() ? "knows what nobody made" : "");
  Note(status, nullptr);
  if (status.ok() || status.error_code() == NOT_FOUND) Forget(held);
}

void Caller::Ask() {
  grpc::Status status;
  switch (Below(4)) {
    case 0: {
      v1::ServerInfo info;
      status = stub_->GetServerInfo(NewContext(), {}, &info);
      break;
    }
    case 1: {
      v1::ListFactorizationsReply reply;
      status = stub_->ListFactorizations(NewContext(), {}, &reply);
      break;
    }
    case 2: {
      v1::GetFactorizationRequest request;
      v1::FactorizationInfo info;
      request.set_handle(held_.empty() ? std::string(24, '?') : held_.front().handle);
      status = stub_->GetFactorization(NewContext(), request, &info);
      break;
    }
    default: {
      v1::GetPlanRequest request;
      v1::Plan plan;
      *request.mutable_spec() = Systems()[Below(Systems().size())].spec;
      status = stub_->GetPlan(NewContext(), request, &plan);
    }
  }
  Count("Get and List", status, {NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE});
  Note(status, nullptr);
}

void Caller::ReleaseAll() {
  // Releases what was left to eviction too, until nothing is left, whatever the tenant's rate says.
  for (;;) {
    v1::ListFactorizationsReply list;
    const grpc::Status listed = stub_->ListFactorizations(NewContext(), {}, &list);
    if (listed.ok() && list.factorization().empty()) break;
    v1::ReleaseRequest request;
    for (const auto& info : list.factorization()) request.add_handle(info.handle());
    v1::ReleaseReply reply;
    if (listed.ok()) Note(stub_->Release(NewContext(), request, &reply), nullptr);
    Note(listed, nullptr);
  }
  held_.clear();
}

}  // namespace blockd::soak
