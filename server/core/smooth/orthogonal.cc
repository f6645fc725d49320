#include "server/core/smooth/orthogonal.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "blockd/engine/orthogonal_smoother.h"

namespace blockd::server {
namespace {

// The part of one system; empty if there is none.
std::span<double> PartOf(std::span<double> all, size_t system, size_t systems) {
  const size_t each = all.size() / systems;
  return all.subspan(system * each, each);
}

class OrthogonalSmooth final : public PendingSmooth {
 public:
  OrthogonalSmooth(const SmoothDevices& devices, ContextPtr context, const MeasuredSmooth& measured,
                   SmoothedSystem::Reason reason, const SmoothResults& results)
      : devices_(devices),
        context_(std::move(context)),
        measured_(measured),
        reason_(reason),
        results_(results) {}

  absl::StatusOr<SmoothReply> Finish() override {
    const MissingPatterns& patterns = *measured_.patterns;
    SmoothReply reply;
    reply.system_of_series = patterns.system_of_series;
    reply.observed = patterns.observed;
    reply.systems.resize(patterns.systems.size());
    for (SmoothedSystem& system : reply.systems) system.reason = reason_;
    if (measured_.params.log_likelihood) reply.log_likelihood.resize(patterns.observed.size());
    std::vector<size_t> systems(patterns.systems.size());
    std::iota(systems.begin(), systems.end(), size_t{0});
    absl::Status status =
        SmoothOrthogonally(devices_, *context_, measured_, systems, results_, &reply);
    if (!status.ok()) return status;
    return reply;
  }

 private:
  const SmoothDevices devices_;
  const ContextPtr context_;
  const MeasuredSmooth measured_;
  const SmoothedSystem::Reason reason_;
  const SmoothResults results_;
};

}  // namespace

absl::Status SmoothOrthogonally(const SmoothDevices& devices, const RequestContext& context,
                                const MeasuredSmooth& measured, std::span<const size_t> systems,
                                const SmoothResults& results, SmoothReply* reply) {
  if (systems.empty()) return absl::OkStatus();
  const absl::Time begun = devices.admission->Now();
  const size_t all = measured.patterns->systems.size();
  const int64_t together = std::min<int64_t>(devices.pool->threads(), std::ssize(systems));
  Reservation bytes;
  absl::Status status = devices.host->Extend(
      context.tenant, OrthogonalSmoother::WorkBytes(measured, together), &bytes);
  if (!status.ok()) return status;
  std::vector<absl::Status> statuses(systems.size());
  try {
    const auto smoother = OrthogonalSmoother::Make(measured);
    if (!smoother.ok()) return smoother.status();
    devices.pool->Run(std::ssize(systems), [&](int64_t i, int) {
      const size_t s = systems[static_cast<size_t>(i)];
      absl::Status& own = statuses[static_cast<size_t>(i)];
      own = context.CheckOngoing(devices.admission->Now());
      if (!own.ok()) return;
      const auto outcome =
          (*smoother)->Smooth(s, {.means = results.means,
                                  .covariances = PartOf(results.covariances, s, all),
                                  .lag_one = PartOf(results.lag_one, s, all),
                                  .residuals = results.residuals,
                                  .samples = results.samples,
                                  .log_likelihood = std::span(reply->log_likelihood),
                                  .outputs = results.outputs});
      own = outcome.status();
      if (!own.ok()) return;
      reply->systems[s].form = outcome->form;
      reply->systems[s].errors = outcome->errors;
    });
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the server's host has no memory for the model");
  }
  for (const absl::Status& own : statuses) status.Update(own);
  reply->cost.compute += devices.admission->Now() - begun;
  return status;
}

std::shared_ptr<PendingSmooth> MakeOrthogonalSmooth(const SmoothDevices& devices,
                                                    ContextPtr context,
                                                    const MeasuredSmooth& measured,
                                                    SmoothedSystem::Reason reason,
                                                    const SmoothResults& results) {
  return std::make_shared<OrthogonalSmooth>(devices, std::move(context), measured, reason, results);
}

}  // namespace blockd::server
