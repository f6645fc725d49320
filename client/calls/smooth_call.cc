#include "client/calls/smooth_call.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/rpc/chunked_answer.h"
#include "client/wire/requests.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

using Array = std::span<const double>;

// False where the sizes overflow.
bool Multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// Checks and counts the arrays of a model while it makes the header.
class Request {
 public:
  static absl::StatusOr<Request> Of(const StateSpaceModel& model, Array observations,
                                    const SmoothOptions& options) {
    Request request;
    absl::Status status = request.Read(model, observations);
    if (!status.ok()) return status;
    request.ReadOptions(options);
    return request;
  }

  const v1::SmoothHeader& header() const { return header_; }
  std::vector<Bytes> regions() const {
    std::vector<Bytes> regions;
    regions.reserve(arrays_.size());
    for (const Array array : arrays_) regions.push_back(std::as_bytes(array));
    return regions;
  }

 private:
  absl::Status Read(const StateSpaceModel& model, Array observations) {
    const int64_t steps = model.num_steps, n = model.state_size, ny = model.observation_size;
    for (const auto& [name, count] : {std::pair("num_steps", steps), std::pair("state_size", n),
                                      std::pair("observation_size", ny)}) {
      if (count < 1) return InvalidFieldError(name, absl::StrCat(count), "at least 1");
    }
    header_.set_num_steps(steps);
    header_.set_state_size(n);
    header_.set_observation_size(ny);
    absl::Status status;
    const auto add = [&](const char* name, const ModelArray& array, bool may_be_absent,
                         int64_t count, int64_t rows, int64_t columns) {
      if (!status.ok()) return v1::MODEL_ARRAY_UNSPECIFIED;
      return Add(name, array, may_be_absent, count, rows, columns, &status);
    };
    const bool one = steps == 1;
    header_.set_transition(add("transition", model.transition, one, steps - 1, n, n));
    header_.set_transition_covariance(
        add("transition_covariance", model.transition_covariance, one, steps - 1, n, n));
    header_.set_observation(add("observation", model.observation, false, steps, ny, n));
    header_.set_observation_covariance(
        add("observation_covariance", model.observation_covariance, false, steps, ny, ny));
    header_.set_transition_offset(
        add("transition_offset", model.transition_offset, true, steps - 1, n, 1));
    header_.set_observation_offset(
        add("observation_offset", model.observation_offset, true, steps, ny, 1));
    header_.set_diffuse(model.initial_mean.empty() && model.initial_covariance.empty() &&
                        model.initial_diffuse.empty());
    if (!header_.diffuse()) {
      add("initial_mean", {model.initial_mean}, false, 1, n, 1);
      add("initial_covariance", {model.initial_covariance}, false, 1, n, n);
      header_.set_diffuse_columns(std::ssize(model.initial_diffuse) / n);
      add("initial_diffuse", {model.initial_diffuse}, true, 1, n, header_.diffuse_columns());
    }
    if (!status.ok()) return status;
    int64_t series = 0;
    if (!Multiply(ny, steps, &series) || observations.empty() ||
        std::ssize(observations) % series != 0) {
      return InvalidFieldError("observations", absl::StrCat(observations.size(), " numbers"),
                               absl::StrCat("ny T of each series, ny = ", ny, ", T = ", steps));
    }
    header_.set_num_series(std::ssize(observations) / series);
    arrays_.push_back(observations);
    return absl::OkStatus();
  }

  v1::ModelArray Add(const char* name, const ModelArray& array, bool may_be_absent, int64_t steps,
                     int64_t rows, int64_t columns, absl::Status* status) {
    if (array.values.empty() && may_be_absent) return v1::MODEL_ARRAY_UNSPECIFIED;
    int64_t size = 0;
    // With one step there are no transitions: what is there for them is not sent.
    const bool fits = Multiply(rows, columns, &size) &&
                      (!array.per_step || Multiply(size, steps, &size)) &&
                      std::ssize(array.values) == size;
    if (!fits) {
      *status =
          InvalidFieldError(name, absl::StrCat(array.values.size(), " numbers"),
                            absl::StrCat(array.per_step ? steps : 1, " of ", rows, " x ", columns));
      return v1::MODEL_ARRAY_UNSPECIFIED;
    }
    if (steps > 0) arrays_.push_back(array.values);
    return array.per_step ? v1::PER_STEP : v1::CONSTANT;
  }

  void ReadOptions(const SmoothOptions& options) {
    v1::SmoothOptions& wire = *header_.mutable_options();
    switch (options.covariances) {
      case SmoothedCovariances::kNone:
        break;
      case SmoothedCovariances::kVariances:
        wire.set_covariances(v1::VARIANCES);
        break;
      case SmoothedCovariances::kFull:
        wire.set_covariances(v1::COVARIANCES);
        break;
    }
    wire.set_lag_one_covariances(options.lag_one_covariances);
    wire.set_log_likelihood(options.log_likelihood);
    wire.set_residuals(options.residuals);
    wire.set_num_samples(options.num_samples);
    wire.set_seed(options.seed);
    wire.set_keep(options.keep);
    if (options.lease != absl::ZeroDuration()) *wire.mutable_lease() = ToProto(options.lease);
    wire.set_priority(ToProto(options.priority));
    wire.set_form(options.form);
    const std::set<v1::SmoothOutput> outputs(options.outputs.begin(), options.outputs.end());
    wire.mutable_output()->Add(outputs.begin(), outputs.end());
  }

  v1::SmoothHeader header_;
  std::vector<Array> arrays_;
};

// Takes the head, and says where the chunks belong.
class Reply {
 public:
  explicit Reply(const v1::SmoothHeader& header) : header_(header) {}

  absl::Status TakeHead(const v1::SmoothHead& head) {
    const v1::SmoothOptions& asked = header_.options();
    const int64_t n = header_.state_size(), steps = header_.num_steps();
    const int64_t series = header_.num_series(), systems = head.num_systems();
    if (systems < 1 || systems > series || head.system_of_series_size() != series ||
        head.observed_size() != series ||
        head.log_likelihood_size() != (asked.log_likelihood() ? series : 0) ||
        head.handle_size() != (asked.keep() ? systems : 0) || head.system_size() != systems) {
      return WrongAnswer("other counts than were asked for");
    }
    const int64_t covariance = asked.covariances() == v1::COVARIANCES ? n * n
                               : asked.covariances() == v1::VARIANCES ? n
                                                                      : 0;
    SmoothResult& result = answer_.result;
    const bool fits =
        Place(head.means_bytes(), n * steps * series, &result.means) &&
        Place(head.covariances_bytes(), covariance * steps * systems, &result.covariances) &&
        Place(head.lag_one_bytes(), asked.lag_one_covariances() ? n * n * (steps - 1) * systems : 0,
              &result.lag_one_covariances) &&
        Place(head.residuals_bytes(),
              asked.residuals() ? header_.observation_size() * steps * series : 0,
              &result.standardized_residuals) &&
        Place(head.samples_bytes(), n * steps * asked.num_samples() * series, &result.samples) &&
        PlaceOutputs(head);
    if (!fits) return WrongAnswer("other sizes than were asked for");
    for (const uint32_t system : head.system_of_series()) {
      if (system >= systems) return WrongAnswer("a system that it does not have");
    }
    result.num_series = series;
    result.num_systems = systems;
    result.system_of_series.assign(head.system_of_series().begin(), head.system_of_series().end());
    result.log_likelihood.assign(head.log_likelihood().begin(), head.log_likelihood().end());
    result.observed.assign(head.observed().begin(), head.observed().end());
    result.found = head.found();
    result.systems.assign(head.system().begin(), head.system().end());
    result.growth = head.growth();
    result.backward_error_bound = head.backward_error_bound();
    result.cost = head.cost();
    answer_.handles.assign(head.handle().begin(), head.handle().end());
    return absl::OkStatus();
  }

  SmoothAnswer Take() { return std::move(answer_); }
  SmoothAnswer& answer() { return answer_; }
  ChunkPlaces& places() { return places_; }

 private:
  bool Place(int64_t bytes, int64_t expected, std::vector<double>* values) {
    if (bytes != expected * static_cast<int64_t>(sizeof(double))) return false;
    values->resize(static_cast<size_t>(expected));
    places_.Add(std::as_writable_bytes(std::span(*values)));
    return true;
  }

  bool PlaceOutputs(const v1::SmoothHead& head) {
    const v1::SmoothOptions& asked = header_.options();
    if (head.output_bytes_size() != asked.output_size()) return false;
    for (int i = 0; i < asked.output_size(); ++i) {
      const v1::SmoothOutput output = asked.output(i);
      if (!Place(head.output_bytes(i), SizeOf(output, head.num_systems()),
                 &answer_.result.outputs[output])) {
        return false;
      }
    }
    return true;
  }
  // Matrices of the score of an array.
  int64_t Steps(v1::ModelArray array) const {
    return array == v1::PER_STEP ? header_.num_steps() : 1;
  }
  int64_t Moves(v1::ModelArray array) const {
    return header_.num_steps() == 1 ? 0 : array == v1::PER_STEP ? header_.num_steps() - 1 : 1;
  }
  int64_t SizeOf(v1::SmoothOutput output, int64_t systems) const {
    const int64_t n = header_.state_size(), ny = header_.observation_size();
    const int64_t steps = header_.num_steps(), series = header_.num_series();
    const bool only_variances = header_.options().covariances() == v1::VARIANCES;
    switch (output) {
      case v1::FILTERED_MEANS:
      case v1::PREDICTED_MEANS:
        return n * steps * series;
      case v1::FILTERED_COVARIANCES:
      case v1::PREDICTED_COVARIANCES:
        return (only_variances ? n : n * n) * steps * systems;
      case v1::OBSERVATION_COVARIANCES:
        return (only_variances ? ny : ny * ny) * steps * systems;
      case v1::STATE_DISTURBANCES:
      case v1::STANDARDIZED_STATE_DISTURBANCES:
        return n * (steps - 1) * series;
      case v1::LOG_LIKELIHOOD_STEPS:
        return steps * series;
      case v1::SCORE_TRANSITION:
        return n * n * series * Moves(header_.transition());
      case v1::SCORE_TRANSITION_COVARIANCE:
        return n * n * series * Moves(header_.transition_covariance());
      case v1::SCORE_TRANSITION_OFFSET:
        return n * series * Moves(header_.transition_offset());
      case v1::SCORE_OBSERVATION:
        return ny * n * series * Steps(header_.observation());
      case v1::SCORE_OBSERVATION_COVARIANCE:
        return ny * ny * series * Steps(header_.observation_covariance());
      case v1::SCORE_OBSERVATION_OFFSET:
        return ny * series * Steps(header_.observation_offset());
      case v1::SCORE_INITIAL_MEAN:
        return n * series;
      case v1::SCORE_INITIAL_COVARIANCE:
        return n * n * series;
      default:
        return ny * steps * series;
    }
  }

  const v1::SmoothHeader& header_;
  SmoothAnswer answer_;
  ChunkPlaces places_;
};

absl::Status Exchange(const Connection& connection, grpc::ClientContext& context,
                      const Request& request, Reply* reply) {
  const auto stream = connection.stub().Smooth(&context);
  v1::SmoothRequest message;
  *message.mutable_header() = request.header();
  bool writing = stream->Write(message);
  const auto chunk_bytes = static_cast<size_t>(connection.options().chunk_bytes);
  for (const Bytes region : request.regions()) {
    for (size_t first = 0; writing && first < region.size(); first += chunk_bytes) {
      const Bytes chunk = region.subspan(first, std::min(chunk_bytes, region.size() - first));
      message.set_chunk(chunk.data(), chunk.size());
      writing = stream->Write(message);
    }
  }
  stream->WritesDone();
  const absl::Status status = ReadChunkedAnswer<v1::SmoothReply>(
      context, *stream, [&](const v1::SmoothHead& head) { return reply->TakeHead(head); },
      reply->places());
  if (status.ok()) reply->answer().route = RouteOf(context);
  return status;
}

}  // namespace

absl::StatusOr<SmoothAnswer> SmoothSeries(const Connection& connection,
                                          const StateSpaceModel& model,
                                          std::span<const double> observations,
                                          const SmoothOptions& options) {
  const absl::StatusOr<Request> request = Request::Of(model, observations, options);
  if (!request.ok()) return request.status();
  SmoothAnswer answer;
  const absl::Status status =
      connection.Retry(connection.Deadline(options.timeout), [&](grpc::ClientContext& context) {
        Reply reply(request->header());
        absl::Status once = Exchange(connection, context, *request, &reply);
        if (once.ok()) answer = reply.Take();
        return once;
      });
  if (!status.ok()) return status;
  return answer;
}

}  // namespace blockd::client
