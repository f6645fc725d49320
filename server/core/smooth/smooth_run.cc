#include "server/core/smooth/smooth_run.h"

#include <algorithm>
#include <any>
#include <new>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/core/smooth/fingerprint.h"

namespace blockd::server {
namespace {

// A is not positive definite in double: the states may be known all the same, but not in
// information form, and there is nothing to keep.
absl::Status NotInInformationForm(size_t system, const NotPositiveDefinite& where) {
  const absl::Status plain = NotSpdError(static_cast<int64_t>(system), where);
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      plain.message(),
      "; the precision of the states has no factorization in double: ask for no form, and "
      "without `keep`"));
  plain.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

// The answer of a kept system's key.
struct KeptAnswer {
  Shape shape;
  double log_determinant = 0;
  std::shared_ptr<const Doubles> variances;  // nx x T
};

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Groups

size_t SmoothRun::MostSystems() const {
  const CoreLimits& limits = admission_->limits();
  const double bytes = 16.0 * static_cast<double>(params_.num_steps * BlockScalars());
  const double fit = static_cast<double>(limits.max_batch_bytes) / bytes;
  return static_cast<size_t>(std::clamp(fit, 1.0, static_cast<double>(limits.max_batch_requests)));
}

void SmoothRun::Start() {
  TouchResults();
  // All that is large, while whoever asks can still be told that there is no memory for it.
  for (System& system : systems_) {
    if (needs_blocks() && params_.covariances != SmoothedCovariances::kFull) {
      system.blocks = Doubles(params_.num_steps * BlockScalars());
    }
    if (!inverts()) system.variances = Doubles(SeriesScalars());
  }
  const std::string model = kept_.keep ? ModelFingerprint(params_, *pool_) : "";
  for (size_t s = 0; s < systems_.size() && kept_.keep; ++s) {
    systems_[s].key = absl::StrCat("smooth/", SystemFingerprint(model, smoother_->patterns(), s));
    if (absl::Status status = FindKept(s); !status.ok()) return EndAll(status);
  }
  {
    absl::MutexLock lock(&mutex_);
    for (size_t s = 0; s < systems_.size(); ++s) waiting_.push_back(s);
  }
  StartGroups();
}

absl::Status SmoothRun::FindKept(size_t s) {
  System& system = systems_[s];
  const auto check_answer = [&](const std::any& answer) {
    const auto* const kept = std::any_cast<KeptAnswer>(&answer);
    if (kept != nullptr && kept->shape == shape()) return absl::OkStatus();
    return InvalidFieldError("options.idempotency_key", "that of a kept model, for another call",
                             "a key of its own for each content");
  };
  const auto check_object = [](const KeptObject&) { return absl::OkStatus(); };
  absl::StatusOr<std::optional<Cache::Found>> found =
      shards_->FindKey(context_->caller, system.key,
                       {.check_answer = check_answer,
                        .check_object = check_object,
                        .lease = Lease(),
                        .tenant = permit_.tenant});
  if (!found.ok() || !found->has_value()) return found.status();
  system.found = true;
  system.handle = (*found)->handles[0];
  const auto& kept = std::any_cast<const KeptAnswer&>((*found)->answer);
  system.log_determinant = kept.log_determinant;
  system.kept_variances = kept.variances;
  AddQuality(s, *FactorizationPin(std::move((*found)->pins[0])));
  return absl::OkStatus();
}

void SmoothRun::StartGroups() {
  while (const std::optional<Group> group = NextGroup()) Begin(*group);
}

std::optional<SmoothRun::Group> SmoothRun::NextGroup() {
  absl::MutexLock lock(&mutex_);
  if (waiting_.empty() || running_ >= most_running_) return std::nullopt;
  ++running_;
  const System& first = systems_[waiting_.front()];
  Group group;
  group.found = first.found;
  const size_t shard = shards_->IndexOf(first.handle);
  const auto joins = [&](const System& system) {
    return system.found == first.found &&
           (!first.found || shards_->IndexOf(system.handle) == shard);
  };
  auto next = waiting_.begin(), left = next;  // what does not join goes before `left`
  for (; next != waiting_.end() && group.systems.size() < most_systems_; ++next) {
    if (joins(systems_[*next])) {
      group.systems.push_back(*next);
    } else {
      *left++ = *next;
    }
  }
  waiting_.erase(left, next);
  return group;
}

// The calling thread may feed a device, or answer what that has done, and has no time to assemble.
void SmoothRun::PostGroups() {
  post_([self = shared_from_this()] { self->StartGroups(); });
}

void SmoothRun::Begin(const Group& group) {
  absl::Status status;
  try {
    status = Prepare(group);
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the server's host has no memory for the model");
  }
  if (status.ok() && group.found) return BeginKept(group);
  if (status.ok()) status = Place(group);
  if (!status.ok()) End(group, status);
}

absl::Status SmoothRun::Prepare(const Group& group) {
  for (const size_t s : group.systems) {
    System& system = systems_[s];
    // b is where the means will be.
    absl::Status status = smoother_->RightHandSides(system.series, results_.means.data());
    if (!status.ok()) return status;
    if (group.found || system.made) continue;
    system.whitened = {};
    system.matrix = {};
    status = IsForDevice() ? smoother_->Whiten(s, &system.whitened)
                           : smoother_->Assemble(s, &system.matrix);
    if (!status.ok()) return status;
    system.made = true;
  }
  return absl::OkStatus();
}

Permit SmoothRun::PartPermit() const {
  Permit permit;
  permit.tenant = permit_.tenant;
  permit.is_part = true;
  return permit;
}

// -----------------------------------------------------------------------------------------------------
// On a device

void SmoothRun::Solve(const Group& group) {
  SolveManyParams params;
  for (const size_t s : group.systems) {
    for (const int64_t k : systems_[s].series) {
      const std::span<double> means = MeansOf(k);
      params.handles.push_back(systems_[s].handle);
      params.solves.push_back({1, std::as_bytes(means), std::as_writable_bytes(means)});
    }
  }
  solves_->StartPart(context_, PartPermit(), std::move(params),
                     [self = shared_from_this(), group](absl::StatusOr<SolveManyReply> reply) {
                       self->OnSolved(group, std::move(reply));
                     });
}

void SmoothRun::OnSolved(const Group& group, absl::StatusOr<SolveManyReply> reply) {
  if (!reply.ok()) return End(group, reply.status());
  AddCost(reply->cost);
  absl::Status status;
  std::vector<size_t> lost;
  size_t next = 0;
  for (const size_t s : group.systems) {
    bool is_lost = false;
    for (size_t i = 0; i < systems_[s].series.size(); ++i) {
      const SolveOutcome& outcome = reply->outcomes[next++];
      is_lost |= absl::IsNotFound(outcome.status);
      if (!absl::IsNotFound(outcome.status)) status.Update(outcome.status);
    }
    if (is_lost) lost.push_back(s);
  }
  if (status.ok()) Lose(lost);
  End(group, status);
}

SmoothPart SmoothRun::MakePart(size_t s) {
  System& system = systems_[s];
  SmoothPart part;
  part.system = s;
  part.is_held = system.found;
  if (!system.found && IsForDevice()) {
    part.information = &system.whitened.form;
    part.matrix = {.form = system.whitened.form.matrix()};
  } else if (!system.found) {
    part.matrix = system.matrix.view();
  }
  for (const int64_t k : system.series) part.means.push_back(MeansOf(k));
  if (params_.covariances == SmoothedCovariances::kFull) {
    part.diagonal = CovariancesOf(s);
  } else if (needs_blocks()) {
    part.diagonal = {system.blocks.data(), static_cast<size_t>(system.blocks.size())};
  } else if (inverts()) {
    part.parts = InverseParts::kDiagonalEntries;
    part.diagonal = CovariancesOf(s);
  } else if (!system.found) {  // for the estimates
    part.parts = InverseParts::kDiagonalEntries;
    part.diagonal = {system.variances.data(), static_cast<size_t>(system.variances.size())};
  }
  if (params_.lag_one) {
    const int64_t scalars = (params_.num_steps - 1) * BlockScalars();
    part.parts = InverseParts::kWithCouplings;
    part.coupling = Part(results_.lag_one, static_cast<int64_t>(s) * scalars, scalars);
  }
  // Series that follow one another are drawn together.
  const int64_t each = params_.num_samples;
  for (size_t i = 0, end = 0; i < system.series.size() && each > 0; i = end) {
    const int64_t first = system.series[i];
    for (end = i; end < system.series.size(); ++end) {
      if (system.series[end] != first + static_cast<int64_t>(end - i)) break;
    }
    const int64_t count = static_cast<int64_t>(end - i) * each;
    part.draws.push_back({.first_sample = static_cast<uint64_t>(first * each),
                          .num_samples = count,
                          .samples = Part(results_.samples, first * each * SeriesScalars(),
                                          count * SeriesScalars())});
  }
  return part;
}

std::unique_ptr<SmoothTask> SmoothRun::MakeTask(const Group& group, size_t shard) {
  auto task = std::make_unique<SmoothTask>(
      &(*operations_)[shard], context_, PartPermit(), admission_->Now(),
      [self = shared_from_this(), group, shard](SmoothTask& task) {
        self->OnRan(group, (*self->shards_)[shard], task);
      });
  task->seed = params_.seed;
  // Later calls that find it kept are told it too.
  task->log_determinant = params_.log_likelihood || kept_.keep;
  for (const size_t s : group.systems) task->parts.push_back(MakePart(s));
  return task;
}

absl::Status SmoothRun::Place(const Group& group) {
  std::vector<std::unique_ptr<SmoothTask>> tasks(shards_->size());
  const absl::StatusOr<std::vector<Shard*>> order = shards_->Order([&](Shard& shard, Offer& offer) {
    std::unique_ptr<SmoothTask>& task = tasks[shard.index()];
    task = MakeTask(group, shard.index());
    absl::Status status = (*operations_)[shard.index()].Ask(*task);
    offer.asked_bytes = task->device_bytes;
    offer.work_seconds = task->ticket().seconds;
    return status;
  });
  if (!order.ok()) return order.status();
  return FirstWithRoom(*order, [&](Shard& shard) {
    absl::Status status = Submit(shard, tasks[shard.index()]);
    if (!status.ok()) tasks[shard.index()].reset();  // with what it has taken
    return status;
  });
}

void SmoothRun::BeginKept(Group group) {
  if (!inverts() && params_.num_samples == 0) return Solve(group);
  Shard& shard = shards_->Of(systems_[group.systems[0]].handle);
  std::vector<FactorizationPin> pins;
  std::vector<size_t> lost;
  for (const size_t s : group.systems) {
    auto pin = shard.cache().Lookup<FactorizationPin>(context_->caller, systems_[s].handle);
    if (pin.ok()) {
      pins.push_back(*std::move(pin));
    } else {
      lost.push_back(s);
    }
  }
  std::erase_if(group.systems,
                [&](size_t s) { return std::find(lost.begin(), lost.end(), s) != lost.end(); });
  Lose(lost);
  absl::Status status;
  if (!group.systems.empty()) {
    std::unique_ptr<SmoothTask> task = MakeTask(group, shard.index());
    for (size_t i = 0; i < pins.size(); ++i) {
      task->parts[i].factorization = pins[i].factorization();
      task->parts[i].held = std::move(pins[i]);
    }
    status = (*operations_)[shard.index()].Ask(*task);
    if (status.ok()) status = Submit(shard, task);
    if (status.ok()) return;
  }
  End(group, status);
}

absl::Status SmoothRun::Submit(Shard& shard, std::unique_ptr<SmoothTask>& task) {
  const bool keeps = kept_.keep && !task->parts[0].is_held;
  if (keeps) {
    const int64_t count = std::ssize(task->parts);
    const int64_t pinned_bytes =
        Lease() > absl::ZeroDuration() ? count * Shard::FactorCharge(*task->plan, 0) : 0;
    absl::Status status =
        admission_->handles().Extend(permit_.tenant, count, &task->permit.handles);
    if (status.ok()) {
      status = shard.pinned().Extend(permit_.tenant, pinned_bytes, &task->permit.pinned);
    }
    if (!status.ok()) return status;
  }
  absl::Status status =
      shard.device().Extend(permit_.tenant, task->device_bytes, &task->permit.device);
  if (!status.ok()) return status;
  shard.Submit(std::move(task));
  return absl::OkStatus();
}

void SmoothRun::OnRan(const Group& group, Shard& shard, SmoothTask& task) {
  AddCost(task.cost);
  absl::Status status = task.status;
  if (const auto failure = NotSpdOf(status)) {
    // Where nothing is kept, all of the group go on without.
    for (const SmoothPart& part : task.parts) systems_[part.system].has_no_factorization = true;
    status = kept_.keep || params_.form
                 ? NotInInformationForm(static_cast<size_t>(failure->system), failure->where)
                 : absl::OkStatus();
  }
  for (SmoothPart& part : task.parts) {
    if (part.is_held || !part.factorization) continue;
    System& system = systems_[part.system];
    system.log_determinant = part.log_determinant;
    AddQuality(part.system, *part.factorization);
    // It stays where another system fails: asked again, the call finds it.
    if (kept_.keep && !system.has_no_factorization && !absl::IsResourceExhausted(status)) {
      status.Update(Keep(shard, task, part));
    }
  }
  // Gives everything back before the caller learns of the answer.
  task.GiveBack();
  End(group, status);
}

absl::Status SmoothRun::Keep(Shard& shard, SmoothTask& task, SmoothPart& part) {
  System& system = systems_[part.system];
  // Another call may have kept the same since.
  absl::Status status = FindKept(part.system);
  if (!status.ok() || std::exchange(system.found, false)) return status;
  const int64_t charge = Shard::FactorCharge(*task.plan, 0);
  std::vector<KeptObjectPtr> made;
  made.push_back(std::make_shared<KeptFactorization>(task.permit.device.Split(charge),
                                                     std::move(part.factorization)));
  Cache::EntryOptions options;
  options.lease = Lease();
  options.idempotency_key = system.key;
  options.answer = KeptAnswer{shape(), part.log_determinant, CopyVariances(part.system)};
  Cache::EntryGrants grants{task.permit.handles.Split(1), {}};
  if (task.permit.pinned.amount() > 0) grants.pinned = task.permit.pinned.Split(charge);
  system.handle =
      shard.cache().Insert(context_->caller, std::move(made), options, std::move(grants))[0];
  return absl::OkStatus();
}

// -----------------------------------------------------------------------------------------------------
// The end

void SmoothRun::Lose(std::span<const size_t> systems) {
  absl::MutexLock lock(&mutex_);
  for (const size_t s : systems) {
    systems_[s].found = false;
    waiting_.push_back(s);
  }
}

bool SmoothRun::WaitsForRoom(const Group& group) {
  absl::MutexLock lock(&mutex_);
  const bool alone = running_ == 1 && group.systems.size() == 1;
  if (alone || !status_.ok()) return false;
  waiting_.insert(waiting_.begin(), group.systems.begin(), group.systems.end());
  most_systems_ = std::min(most_systems_, (group.systems.size() + 1) / 2);
  --running_;
  most_running_ = std::max<size_t>(running_, 1);
  if (running_ == 0) PostGroups();
  return true;
}

void SmoothRun::End(const Group& group, const absl::Status& status) {
  if (absl::IsResourceExhausted(status) && WaitsForRoom(group)) return;
  // Kept systems have no matrices, and those that were lost belong to another group.
  for (const size_t s : group.systems) {
    if (group.found) break;
    systems_[s].matrix = {};
    systems_[s].whitened = {};
    systems_[s].made = false;
  }
  bool over = false;
  absl::Status all;
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    all = status_;
    if (!all.ok()) waiting_.clear();
    --running_;
    if (!waiting_.empty()) PostGroups();
    over = running_ == 0 && waiting_.empty();
  }
  if (over) EndAll(all);
}

void SmoothRun::EndAll(const absl::Status& status) {
  const std::shared_ptr<SmoothRun> self = shared_from_this();
  // Gives everything back before the caller learns of the answer.
  permit_.GiveBack();
  SmoothDone done = std::move(done_);  // it may hold whoever will hold this
  if (!status.ok()) return done(status);
  done(self);
}

void SmoothRun::AddQuality(size_t s, const Factorization& factorization) {
  systems_[s].growth = factorization.conditioning().growth;
  absl::MutexLock lock(&mutex_);
  growth_ = std::max(growth_, factorization.conditioning().growth);
  backward_error_bound_ = std::max(backward_error_bound_, factorization.backward_error_bound());
}

void SmoothRun::AddCost(const Cost& cost) {
  absl::MutexLock lock(&mutex_);
  cost_.Add(cost);
}

}  // namespace blockd::server
