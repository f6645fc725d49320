#include "server/core/common/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = prometheus::Labels;

constexpr int kStatusCodes = 17;  // OK .. UNAUTHENTICATED
constexpr std::array<const char*, kStatusCodes> kStatusNames = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};
constexpr std::array<const char*, kMethods> kMethodNames = {
    "Factor",
    "FactorStream",
    "Solve",
    "SolveStream",
    "SolveMany",
    "FactorSolve",
    "FactorSolveMany",
    "SelectedInverse",
    "Sample",
    "Smooth",
    "Release",
    "GetFactorization",
    "ListFactorizations",
    "GetServerInfo",
    "GetPlan",
    "Admin",
};
// Each method has these from the start, so that the first such answer too is an increase. A line of
// every scrape for each of the others would be of what hardly ever happens.
constexpr absl::StatusCode kCommonStatuses[] = {
    absl::StatusCode::kOk, absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal,
    absl::StatusCode::kUnavailable};
constexpr int kPhases = 5;
constexpr std::array<const char*, kPhases> kPhaseNames = {"total", "queue", "upload", "compute",
                                                          "download"};
constexpr std::array<const char*, kWorkKinds> kKindNames = {"factor", "solve", "factor_solve",
                                                            "inverse", "smooth"};
constexpr std::array<const char*, kEvictionReasons> kEvictionNames = {
    "memory", "fragmentation", "idle", "released", "failed_refactor", "admin", "device_failed"};
constexpr std::array<const char*, kMissReasons> kMissNames = {
    "NEVER_EXISTED", "RELEASED",        "EVICTED",      "EXPIRED",
    "RESTARTED",     "FAILED_REFACTOR", "OTHER_SERVER", "DEVICE_FAILED"};

// 10 us to 100 s, three a decade.
Histogram::BucketBoundaries SecondsBuckets() {
  Histogram::BucketBoundaries buckets;
  for (double decade = 1e-5; decade < 50; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) buckets.push_back(decade * step);
  }
  buckets.push_back(100);
  return buckets;
}

Histogram::BucketBoundaries PowersOfTwo(int count) {
  Histogram::BucketBoundaries buckets;
  for (int i = 0; i < count; ++i) buckets.push_back(static_cast<double>(int64_t{1} << i));
  return buckets;
}

Histogram::BucketBoundaries PowersOfTen(int first, int last) {
  Histogram::BucketBoundaries buckets;
  double value = 1;
  for (int i = 0; i > first; --i) value /= 10;
  for (int i = first; i <= last; ++i, value *= 10) buckets.push_back(value);
  return buckets;
}

// A family of metrics by tenant or by device, and the value that it takes from each.
template <typename Of>
struct FamilyOf {
  const char* name;
  const char* help;
  prometheus::MetricType type;
  double (*value)(const Of&);
};

template <Resource resource>
double Used(const TenantUse& use) {
  return static_cast<double>(use.used[static_cast<size_t>(resource)]);
}

constexpr std::array<FamilyOf<TenantUse>, 8> kTenantFamilies = {{
    {"blockd_tenant_device_bytes", "Device memory reserved, by tenant.",
     prometheus::MetricType::Gauge, Used<Resource::kDeviceBytes>},
    {"blockd_tenant_pinned_bytes", "Thereof, of factorizations pinned or leased.",
     prometheus::MetricType::Gauge, Used<Resource::kPinnedBytes>},
    {"blockd_tenant_handles", "Factorizations held, by tenant.", prometheus::MetricType::Gauge,
     Used<Resource::kHandles>},
    {"blockd_tenant_host_bytes", "Host memory of requests under way, by tenant.",
     prometheus::MetricType::Gauge, Used<Resource::kHostBytes>},
    {"blockd_tenant_queue_slots", "Places in the queue taken, by tenant.",
     prometheus::MetricType::Gauge, Used<Resource::kQueueSlots>},
    {"blockd_tenant_requests_total", "Requests answered in any way, by tenant.",
     prometheus::MetricType::Counter,
     [](const TenantUse& use) { return static_cast<double>(use.counts.answered); }},
    {"blockd_tenant_over_quota_total", "Requests refused by a quota or a rate, by tenant.",
     prometheus::MetricType::Counter,
     [](const TenantUse& use) { return static_cast<double>(use.counts.over_quota); }},
    {"blockd_tenant_device_seconds_total", "Time of the device that went to it, by tenant.",
     prometheus::MetricType::Counter,
     [](const TenantUse& use) {
       return 1e-9 * static_cast<double>(use.counts.device_nanoseconds);
     }},
}};

template <int64_t DeviceSample::*field>
double FieldOf(const DeviceSample& device) {
  return static_cast<double>(device.*field);
}

constexpr std::array<FamilyOf<DeviceSample>, 7> kShardFamilies = {{
    {"blockd_shard_healthy", "1 while the device is in service, 0 since it failed.",
     prometheus::MetricType::Gauge,
     [](const DeviceSample& device) { return device.healthy ? 1.0 : 0.0; }},
    {"blockd_shard_factorizations", "Factorizations held, by device.",
     prometheus::MetricType::Gauge, FieldOf<&DeviceSample::factorizations>},
    {"blockd_shard_budget_bytes", "Memory that may be reserved, by device.",
     prometheus::MetricType::Gauge, FieldOf<&DeviceSample::budget_bytes>},
    {"blockd_shard_budget_reserved_bytes", "Thereof reserved, by device.",
     prometheus::MetricType::Gauge, FieldOf<&DeviceSample::budget_reserved_bytes>},
    {"blockd_shard_budget_evictable_bytes", "Thereof idle, which may be evicted, by device.",
     prometheus::MetricType::Gauge, FieldOf<&DeviceSample::budget_evictable_bytes>},
    {"blockd_shard_backlog_seconds", "Predicted time until what waits and runs is done, by device.",
     prometheus::MetricType::Gauge,
     [](const DeviceSample& device) { return device.backlog_seconds; }},
    {"blockd_shard_busy_seconds_total", "Time at work, by device.", prometheus::MetricType::Counter,
     [](const DeviceSample& device) { return device.busy_seconds; }},
}};

// Which tenants there are changes while the server runs: these families are made for each scrape.
template <typename Of, size_t families_count, typename NameOf>
void Append(const std::array<FamilyOf<Of>, families_count>& made, const char* label,
            const std::vector<Of>& all, NameOf name_of,
            std::vector<prometheus::MetricFamily>* families) {
  for (const FamilyOf<Of>& made_of : made) {
    prometheus::MetricFamily& family = families->emplace_back();
    family.name = made_of.name;
    family.help = made_of.help;
    family.type = made_of.type;
    for (size_t i = 0; i < all.size(); ++i) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({label, name_of(i)});
      // The serializer reads the one of the family's type.
      metric.gauge.value = metric.counter.value = made_of.value(all[i]);
    }
  }
}

}  // namespace

class Metrics::Impl : public prometheus::Collectable {
 public:
  explicit Impl(const BuildInfo& build) {
    MakeRequestFamilies();
    MakeWorkFamilies();
    MakeGauges();
    prometheus::BuildGauge()
        .Name("blockd_build_info")
        .Help("Version, backend, device and name of this server; always 1.")
        .Register(registry_)
        .Add({{"version", build.version},
              {"backend", build.backend},
              {"device", build.device},
              {"server", build.server}})
        .Set(1);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    const GaugeSample sample = Sample();
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    Append(
        kTenantFamilies, "tenant", sample.tenants, [&](size_t i) { return sample.tenants[i].name; },
        &families);
    Append(
        kShardFamilies, "device", sample.devices, [](size_t i) { return std::to_string(i); },
        &families);
    return families;
  }

  void SetSampler(absl::AnyInvocable<GaugeSample()> sampler) {
    absl::MutexLock lock(&sampler_mutex_);
    sampler_ = std::move(sampler);
  }

  // Made when they are first asked for.
  Counter& Requests(size_t method, size_t status) {
    return Made(&requests_[method][status], [&]() -> Counter& {
      return requests_family_->Add(
          {{"method", kMethodNames[method]}, {"status", kStatusNames[status]}});
    });
  }
  Histogram& Seconds(size_t method, size_t phase) {
    return Made(&seconds_[method][phase], [&]() -> Histogram& {
      return seconds_family_->Add({{"method", kMethodNames[method]}, {"phase", kPhaseNames[phase]}},
                                  SecondsBuckets());
    });
  }

  std::array<Histogram*, kWorkKinds> batch_requests_{};
  std::array<Histogram*, kWorkKinds> batch_items_{};
  std::array<Counter*, kWorkKinds> flops_{};
  std::array<Counter*, kEvictionReasons> evictions_{};
  std::array<Counter*, kMissReasons> misses_{};
  Counter* hits_ = nullptr;
  Counter* busy_seconds_ = nullptr;
  Counter* not_positive_definite_ = nullptr;
  Histogram* backward_error_ = nullptr;

 private:
  template <typename Metric, typename Make>
  static Metric& Made(std::atomic<Metric*>* metric, Make make) {
    Metric* made = metric->load(std::memory_order_acquire);
    if (made == nullptr) {
      made = &make();  // a family gives all who ask at once the same
      metric->store(made, std::memory_order_release);
    }
    return *made;
  }

  void MakeRequestFamilies();
  void MakeWorkFamilies();
  void MakeGauges();
  // Sets the gauges; what is by tenant or by device is left to do.
  GaugeSample Sample() const ABSL_LOCKS_EXCLUDED(sampler_mutex_);

  Counter& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
  }
  Gauge* AddGauge(const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add({});
  }
  void Bind(const char* name, const char* help, int64_t GaugeSample::*field) {
    sampled_.emplace_back(field, AddGauge(name, help));
  }

  prometheus::Registry registry_;
  prometheus::Family<Counter>* requests_family_ = nullptr;
  prometheus::Family<Histogram>* seconds_family_ = nullptr;
  std::array<std::array<std::atomic<Counter*>, kStatusCodes>, kMethods> requests_{};
  std::array<std::array<std::atomic<Histogram*>, kPhases>, kMethods> seconds_{};
  std::vector<std::pair<int64_t GaugeSample::*, Gauge*>> sampled_;
  std::array<Gauge*, kWorkKinds> queued_{};
  Gauge* healthy_ = nullptr;

  mutable absl::Mutex sampler_mutex_;
  mutable absl::AnyInvocable<GaugeSample()> sampler_ ABSL_GUARDED_BY(sampler_mutex_);
};

void Metrics::Impl::MakeRequestFamilies() {
  requests_family_ = &prometheus::BuildCounter()
                          .Name("blockd_requests_total")
                          .Help("Requests answered, by method and gRPC status.")
                          .Register(registry_);
  seconds_family_ =
      &prometheus::BuildHistogram()
           .Name("blockd_request_seconds")
           .Help("Time of a request by phase: total, queue, upload, compute, download.")
           .Register(registry_);
  for (size_t m = 0; m < kMethods; ++m) {
    for (const absl::StatusCode status : kCommonStatuses) Requests(m, static_cast<size_t>(status));
  }
}

void Metrics::Impl::MakeWorkFamilies() {
  auto& batch_requests = prometheus::BuildHistogram()
                             .Name("blockd_batch_requests")
                             .Help("Requests that ran together in a batch.")
                             .Register(registry_);
  auto& batch_items = prometheus::BuildHistogram()
                          .Name("blockd_batch_items")
                          .Help("Systems or right-hand sides that ran together in a batch.")
                          .Register(registry_);
  auto& flops = prometheus::BuildCounter()
                    .Name("blockd_flops_total")
                    .Help("Floating point operations done, as the plans count them.")
                    .Register(registry_);
  for (int k = 0; k < kWorkKinds; ++k) {
    const Labels labels = {{"kind", kKindNames[k]}};
    batch_requests_[k] = &batch_requests.Add(labels, PowersOfTwo(11));
    batch_items_[k] = &batch_items.Add(labels, PowersOfTwo(17));
    flops_[k] = &flops.Add(labels);
  }
  auto& evictions = prometheus::BuildCounter()
                        .Name("blockd_evictions_total")
                        .Help("Factorizations that ended, by reason.")
                        .Register(registry_);
  for (int r = 0; r < kEvictionReasons; ++r) {
    evictions_[r] = &evictions.Add({{"reason", kEvictionNames[r]}});
  }
  auto& misses = prometheus::BuildCounter()
                     .Name("blockd_cache_misses_total")
                     .Help("Handles that were not found, by reason.")
                     .Register(registry_);
  for (int r = 0; r < kMissReasons; ++r) misses_[r] = &misses.Add({{"reason", kMissNames[r]}});
  hits_ = &AddCounter("blockd_cache_hits_total", "Handles that were found.");
  busy_seconds_ = &AddCounter("blockd_device_busy_seconds_total",
                              "Time that the device worked; its rate is the utilisation.");
  not_positive_definite_ =
      &AddCounter("blockd_not_positive_definite_total", "Systems that were not positive definite.");
  backward_error_ = &prometheus::BuildHistogram()
                         .Name("blockd_backward_error")
                         .Help("Backward errors of the solutions whose residual was asked for.")
                         .Register(registry_)
                         .Add({}, PowersOfTen(-18, 0));
}

void Metrics::Impl::MakeGauges() {
  using S = GaugeSample;
  Bind("blockd_factorizations", "Factorizations held.", &S::factorizations);
  Bind("blockd_factorization_bytes", "Device memory of the factorizations held.",
       &S::factorization_bytes);
  Bind("blockd_pinned_factorizations", "Factorizations held that are never evicted.",
       &S::pinned_factorizations);
  Bind("blockd_budget_bytes", "The most device memory that may be reserved.", &S::budget_bytes);
  Bind("blockd_budget_reserved_bytes", "Device memory reserved, by factorizations and work.",
       &S::budget_reserved_bytes);
  Bind("blockd_budget_peak_reserved_bytes", "The most that was ever reserved.",
       &S::budget_peak_reserved_bytes);
  Bind("blockd_budget_evictable_bytes", "Device memory that eviction could give back now.",
       &S::budget_evictable_bytes);
  Bind("blockd_solve_reserve_bytes", "Device memory for the workspace of Solves alone.",
       &S::solve_reserve_bytes);
  Bind("blockd_host_budget_bytes", "The most host memory that requests under way may have.",
       &S::host_budget_bytes);
  Bind("blockd_host_budget_reserved_bytes", "Host memory that requests under way have.",
       &S::host_budget_reserved_bytes);
  Bind("blockd_host_budget_peak_reserved_bytes", "The most that they ever had.",
       &S::host_budget_peak_reserved_bytes);
  Bind("blockd_pool_bytes", "Size of the device memory pool.", &S::pool_bytes);
  Bind("blockd_pool_used_bytes", "Pool memory handed out.", &S::pool_used_bytes);
  Bind("blockd_pool_peak_used_bytes", "The most pool memory that was ever handed out.",
       &S::pool_peak_used_bytes);
  Bind("blockd_pool_free_bytes", "Pool memory not handed out.", &S::pool_free_bytes);
  Bind("blockd_pool_largest_free_bytes", "The largest free piece of the pool.",
       &S::pool_largest_free_bytes);
  Bind("blockd_device_memory_bytes", "Memory of the device.", &S::device_memory_bytes);
  healthy_ = AddGauge("blockd_healthy", "1 until the device or a library fails, then 0.");
  auto& queued = prometheus::BuildGauge()
                     .Name("blockd_queue_requests")
                     .Help("Requests waiting in the queue.")
                     .Register(registry_);
  for (int k = 0; k < kWorkKinds; ++k) queued_[k] = &queued.Add({{"kind", kKindNames[k]}});
}

GaugeSample Metrics::Impl::Sample() const {
  absl::MutexLock lock(&sampler_mutex_);
  if (!sampler_) return {};
  GaugeSample sample = sampler_();
  for (const auto& [field, gauge] : sampled_) gauge->Set(static_cast<double>(sample.*field));
  for (int k = 0; k < kWorkKinds; ++k) queued_[k]->Set(static_cast<double>(sample.queued[k]));
  healthy_->Set(sample.healthy ? 1 : 0);
  return sample;
}

Metrics::Metrics(const BuildInfo& build) : impl_(std::make_shared<Impl>(build)) {}
Metrics::~Metrics() = default;

void Metrics::RecordRequest(Method method, absl::StatusCode status, absl::Duration total) {
  const auto m = static_cast<size_t>(method);
  const int s = static_cast<int>(status);
  impl_->Requests(m, s >= 0 && s < kStatusCodes ? s : 2).Increment();
  impl_->Seconds(m, 0).Observe(absl::ToDoubleSeconds(total));
}

void Metrics::RecordPhases(Method method, const PhaseTimes& phases) {
  if (method > Method::kSmooth) return;  // one that does not compute
  const absl::Duration times[] = {phases.queue, phases.upload, phases.compute, phases.download};
  for (size_t p = 1; p < kPhases; ++p) {
    impl_->Seconds(static_cast<size_t>(method), p).Observe(absl::ToDoubleSeconds(times[p - 1]));
  }
}

void Metrics::RecordBatch(WorkKind kind, int64_t requests, int64_t items, double flops) {
  const int k = static_cast<int>(kind);
  impl_->batch_requests_[k]->Observe(static_cast<double>(requests));
  impl_->batch_items_[k]->Observe(static_cast<double>(items));
  impl_->flops_[k]->Increment(flops);
}

const char* MethodName(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

void Metrics::RecordDeviceBusy(absl::Duration busy) {
  impl_->busy_seconds_->Increment(absl::ToDoubleSeconds(busy));
}
void Metrics::RecordEviction(EvictionReason reason) {
  impl_->evictions_[static_cast<int>(reason)]->Increment();
}
void Metrics::RecordHit(int64_t handles) { impl_->hits_->Increment(static_cast<double>(handles)); }
void Metrics::RecordMiss(int reason) {
  if (reason >= 0 && reason < kMissReasons) impl_->misses_[reason]->Increment();
}
void Metrics::RecordNotPositiveDefinite() { impl_->not_positive_definite_->Increment(); }
void Metrics::RecordBackwardError(double error) {
  impl_->backward_error_->Observe(std::isfinite(error) ? error : 1);
}

void Metrics::SetSampler(absl::AnyInvocable<GaugeSample()> sampler) {
  impl_->SetSampler(std::move(sampler));
}

std::string Metrics::Text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->Collect());
  return out.str();
}

}  // namespace blockd::server
