#include "server/transport/calls/admin_service.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "blockd/v1/admin.pb.h"
#include "server/base/steady_time.h"
#include "server/log/logging.h"
#include "server/transport/rpc/unary_call.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr RoleSet kChanges = {Role::kAdmin};
constexpr RoleSet kReads = {Role::kAdmin, Role::kMetrics};

// One call. Its `Start` says by `audit` what was asked, as far as it is known.
template <typename Request>
class AdminCallOf : public CallOf<Request> {
 public:
  AdminCallOf(const AdminService* service, const char* name, RoleSet roles,
              std::unique_ptr<IncomingCall> incoming)
      : CallOf<Request>(service->state(), Method::kAdmin, std::move(incoming), roles),
        service_(service),
        name_(name) {}

 protected:
  const AdminActions& actions() const { return service_->actions(); }
  // Goes into the line of the log.
  void Audit(std::string asked) { asked_ = std::move(asked); }

 private:
  // They look at much, read files, or wait for streams: nothing for a thread that serves.
  bool IsLong() const final { return true; }

  void Publish() final {
    const CallRecord& record = this->record();
    record.Count();
    const absl::Status& status = record.status();
    LogLine line(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "audit");
    line.Add("request_id", record.context()->request_id)
        .Add("call", name_)
        .Add("caller", record.context()->caller)
        .Add("peer", this->rpc()->peer())
        .Add("status", absl::StatusCodeToString(status.code()));
    if (!status.ok()) line.Add("message", std::string(status.message()));
    if (!asked_.empty()) line.Add("asked", asked_);
    line.WriteAlways();
  }

  const AdminService* const service_;
  const char* const name_;
  std::string asked_;
};

// ------------------------------------------------------------------------------------- handles

// The first bytes of each, as other lines of the log say a handle.
std::string Names(const std::vector<Handle>& handles) {
  return absl::StrJoin(handles, ",", [](std::string* out, const Handle& handle) {
    absl::StrAppend(out, handle.hex(4));
  });
}

std::string AuditText(const std::vector<Handle>& handles, const Cache::Changed& changed) {
  return absl::StrCat(changed.handles, " of ", handles.size(), " handles, of tenants ",
                      changed.callers.empty() ? "none" : absl::StrJoin(changed.callers, ","), ": ",
                      Names(handles));
}

constexpr int kMaxHandles = 1000;

template <typename Request>
absl::StatusOr<std::vector<Handle>> HandlesOf(const Request& request) {
  if (request.handle_size() < 1 || request.handle_size() > kMaxHandles) {
    return InvalidFieldError("handle", absl::StrCat(request.handle_size(), " handles"),
                             absl::StrCat("1 to ", kMaxHandles));
  }
  std::vector<Handle> handles;
  for (int i = 0; i < request.handle_size(); ++i) {
    absl::StatusOr<Handle> handle = ToHandle(absl::StrCat("handle[", i, "]"), request.handle(i));
    if (!handle.ok()) return handle.status();
    handles.push_back(*handle);
  }
  return handles;
}

void Tell(const Cache::Changed& evicted, v1::EvictReply* wire) {
  wire->set_evicted(evicted.handles);
  wire->set_evicted_bytes(evicted.bytes);
}
void Tell(const Cache::Changed& unpinned, v1::UnpinReply* wire) {
  wire->set_unpinned(unpinned.handles);
}

// Changes the handles that it names, and says which of them are not held.
template <typename Request, typename Reply, auto change>
class HandlesCall final : public AdminCallOf<Request> {
 public:
  using AdminCallOf<Request>::AdminCallOf;

 private:
  void Start() override {
    const absl::StatusOr<std::vector<Handle>> handles = HandlesOf(this->request_);
    if (!handles.ok()) return this->Fail(handles.status());
    std::vector<Handle> missing;
    const Cache::Changed changed = (this->core().shards().*change)(*handles, &missing);
    this->Audit(AuditText(*handles, changed));
    Reply wire;
    Tell(changed, &wire);
    for (const Handle& handle : missing) wire.add_not_held(std::string(handle.view()));
    this->Succeed(SerializeMessage(wire));
  }
};
using EvictCall = HandlesCall<v1::EvictRequest, v1::EvictReply, &Shards::EvictHandles>;
using UnpinCall = HandlesCall<v1::UnpinRequest, v1::UnpinReply, &Shards::UnpinHandles>;

class ListAllCall final : public AdminCallOf<v1::ListAllFactorizationsRequest> {
 public:
  using AdminCallOf::AdminCallOf;

 private:
  // Looked at for one page, at most: a page whose filters leave out most may be short.
  static constexpr int kMaxLooks = 64;

  void Start() override {
    Audit(absl::StrCat("tenant=", request_.has_tenant() ? request_.tenant() : "(all)"));
    absl::StatusOr<AskedPage> asked = ToPage(request_.page_size(), request_.page_token());
    if (!asked.ok()) return Fail(asked.status());
    absl::StatusOr<absl::Duration> min_idle = ToDuration("min_idle", request_.min_idle());
    if (!min_idle.ok()) return Fail(min_idle.status());
    min_idle_ = *min_idle;
    if (request_.min_held_bytes() < 0) {
      return Fail(InvalidFieldError("min_held_bytes", absl::StrCat(request_.min_held_bytes()),
                                    "0 or more"));
    }
    Succeed(SerializeMessage(Page(asked->size, asked->after)));
  }

  v1::ListAllFactorizationsReply Page(int64_t page, std::optional<Handle> after) {
    v1::ListAllFactorizationsReply wire;
    for (int looks = 0; looks < kMaxLooks; ++looks) {
      const std::vector<Cache::OwnedStats> some = Some(after);
      for (const auto& [caller, stats] : some) {
        if (wire.factorization_size() == page) {
          wire.set_next_page_token(std::string(after->view()));
          return wire;
        }
        after = stats.handle;
        if (!IsAskedFor(stats)) continue;
        v1::TenantFactorization& one = *wire.add_factorization();
        one.set_tenant(caller);
        ToWire(ToFactorizationStats(stats), one.mutable_info());
        one.mutable_info()->clear_idempotency_key();
      }
      if (some.size() < size_t{kMaxPageSize}) return wire;  // the last
    }
    wire.set_next_page_token(std::string(after->view()));
    return wire;
  }

  std::vector<Cache::OwnedStats> Some(std::optional<Handle> after) {
    const Shards& shards = core().shards();
    if (!request_.has_tenant()) return shards.ListAll(after, kMaxPageSize);
    std::vector<Cache::OwnedStats> some;
    for (KeptStats& stats : shards.List(request_.tenant(), after, kMaxPageSize)) {
      some.push_back({request_.tenant(), std::move(stats)});
    }
    return some;
  }

  bool IsAskedFor(const KeptStats& stats) const {
    if (request_.pinned_only() && !stats.pinned && stats.lease_left == absl::ZeroDuration()) {
      return false;
    }
    return stats.idle >= min_idle_ && stats.held_bytes >= request_.min_held_bytes();
  }

  absl::Duration min_idle_;
};

// ------------------------------------------------------------------------------------- tenants

v1::PriorityClass ClassToWire(PriorityClass priority) {
  switch (priority) {
    case PriorityClass::kRealtime:
      return v1::REALTIME;
    case PriorityClass::kInteractive:
      return v1::INTERACTIVE;
    case PriorityClass::kBulk:
      return v1::BULK;
  }
  return v1::PRIORITY_CLASS_UNSPECIFIED;
}

void AddRate(const char* quota, const TokenBucket& bucket, absl::Time now, v1::Tenant* wire) {
  v1::QuotaUse& use = *wire->add_quota();
  use.set_quota(quota);
  use.set_used(bucket.TakenOfLate(now));
  if (bucket.rate() < std::numeric_limits<double>::infinity()) use.set_limit(bucket.rate());
}

void TenantToWire(Tenants::Known known, absl::Time now, v1::Tenant* wire) {
  Tenant& tenant = *known.tenant;
  wire->set_name(tenant.name());
  wire->set_configured(known.listed);
  wire->set_weight(tenant.weight());
  wire->set_highest_class(ClassToWire(tenant.highest_class()));
  for (size_t i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    v1::QuotaUse& use = *wire->add_quota();
    use.set_quota(std::string(QuotaName(resource)));
    use.set_used(static_cast<double>(tenant.used(resource)));
    if (const int64_t limit = tenant.quota(resource); limit >= 0) {
      use.set_limit(static_cast<double>(limit));
    }
  }
  AddRate("requests_per_second", tenant.requests(), now, wire);
  AddRate("upload_bytes_per_second", tenant.upload_bytes(), now, wire);
  const TenantCounts counts = tenant.counts();
  wire->set_requests(counts.answered);
  wire->set_refused(counts.over_quota);
  wire->set_device_seconds(1e-9 * static_cast<double>(counts.device_nanoseconds));
}

class ListTenantsCall final : public AdminCallOf<v1::ListTenantsRequest> {
 public:
  using AdminCallOf::AdminCallOf;

 private:
  void Start() override {
    v1::ListTenantsReply wire;
    const absl::Time now = SteadyNow();
    for (const Tenants::Known& known : core().tenants().List()) {
      if (!known.listed && !known.tenant->has_anything()) continue;
      TenantToWire(known, now, wire.add_tenant());
    }
    Succeed(SerializeMessage(wire));
  }
};

// ------------------------------------------------------------------------------------- the process

class DrainCall final : public AdminCallOf<v1::DrainRequest> {
 public:
  using AdminCallOf::AdminCallOf;

 private:
  void Start() override {
    actions().drain();
    v1::DrainReply wire;
    ToWire(state()->options.drain_timeout, wire.mutable_timeout());
    wire.set_requests(std::max<int64_t>(state()->tracker.active() - 1, 0));  // without this one
    Succeed(SerializeMessage(wire));
  }
};

class SetLogLevelCall final : public AdminCallOf<v1::SetLogLevelRequest> {
 public:
  using AdminCallOf::AdminCallOf;

 private:
  void Start() override {
    Audit(absl::StrCat("level=", request_.level()));
    const std::optional<std::string_view> previous = SetLogLevel(request_.level());
    if (!previous.has_value()) {
      return Fail(InvalidFieldError("level", absl::StrCat("\"", request_.level(), "\""),
                                    "one of debug, info, warn, error, off"));
    }
    v1::SetLogLevelReply wire;
    wire.set_previous(std::string(*previous));
    Succeed(SerializeMessage(wire));
  }
};

class ReloadCall final : public AdminCallOf<v1::ReloadRequest> {
 public:
  using AdminCallOf::AdminCallOf;

 private:
  void Start() override {
    const absl::StatusOr<AdminActions::Reloaded> reloaded = actions().reload();
    if (!reloaded.ok()) return Fail(reloaded.status());
    v1::ReloadReply wire;
    wire.set_tenants(reloaded->tenants);
    wire.set_changed(reloaded->changed);
    Succeed(SerializeMessage(wire));
  }
};

using Incoming = std::unique_ptr<IncomingCall>;
struct AdminMethod {
  const char* name;
  RoleSet roles;  // one of them is needed
  std::shared_ptr<ServerCall> (*make)(const AdminService*, const char*, RoleSet, Incoming);
};

template <typename Call>
std::shared_ptr<ServerCall> Make(const AdminService* service, const char* name, RoleSet roles,
                                 Incoming incoming) {
  return std::make_shared<Call>(service, name, roles, std::move(incoming));
}

constexpr std::string_view kPrefix = "/blockd.v1.Admin/";
constexpr AdminMethod kMethodsOfAdmin[] = {
    {"ListAllFactorizations", kReads, Make<ListAllCall>},
    {"Evict", kChanges, Make<EvictCall>},
    {"Unpin", kChanges, Make<UnpinCall>},
    {"ListTenants", kReads, Make<ListTenantsCall>},
    {"Drain", kChanges, Make<DrainCall>},
    {"SetLogLevel", kChanges, Make<SetLogLevelCall>},
    {"Reload", kChanges, Make<ReloadCall>},
};

}  // namespace

std::shared_ptr<ServerCall> AdminService::MakeCall(Incoming* incoming) const {
  std::string_view method = (*incoming)->context.method();
  if (!method.starts_with(kPrefix)) return nullptr;
  method.remove_prefix(kPrefix.size());
  for (const AdminMethod& known : kMethodsOfAdmin) {
    if (method == known.name) {
      return known.make(this, known.name, known.roles, std::move(*incoming));
    }
  }
  return nullptr;
}

}  // namespace blockd::server
