#include "blockd/engine/orthogonal_smoother.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "blockd/engine/doubles.h"
#include "blockd/engine/model_errors.h"
#include "blockd/engine/samples.h"
#include "engine/smoother/diffuse_states.h"
#include "engine/smoother/orthogonal/covariance_factor.h"
#include "engine/smoother/orthogonal/mirror.h"
#include "engine/smoother/orthogonal/system.h"
#include "engine/smoother/residuals.h"

namespace blockd {
namespace {

using orthogonal::Factors;
using orthogonal::Matrices;

Matrices MatricesOf(const ModelArray& array, int64_t size) {
  if (array.values.empty()) return {};
  return {array.values.data(), array.per_step ? size : 0};
}

// Where an output goes, and what it comes from.
enum class Source {
  kSmoother,
  kFilter,
  kFilteredSeries,  // the same, for each series
  kDisturbances,
  kStandardizedDisturbances,
  kScore,
};
struct OutputPlace {
  Source source;
  double* orthogonal::SeriesResults::*of_series = nullptr;
  double* orthogonal::Results::*of_system = nullptr;
};
using OfSeries = orthogonal::SeriesResults;
using OfSystem = orthogonal::Results;
constexpr OutputPlace kOutputPlaces[] = {
    // in the order of SmoothOutput
    {Source::kFilteredSeries, &OfSeries::filtered_means},
    {Source::kFilter, nullptr, &OfSystem::filtered_covariances},
    {Source::kFilteredSeries, &OfSeries::predicted_means},
    {Source::kFilter, nullptr, &OfSystem::predicted_covariances},
    {Source::kFilteredSeries, &OfSeries::innovations},
    {Source::kFilteredSeries, &OfSeries::log_likelihood_steps},
    {Source::kSmoother, &OfSeries::observation_means},
    {Source::kSmoother, nullptr, &OfSystem::observation_covariances},
    {Source::kDisturbances, &OfSeries::state_disturbances},
    {Source::kDisturbances, &OfSeries::observation_disturbances},
    {Source::kStandardizedDisturbances, &OfSeries::standardized_state_disturbances},
    {Source::kStandardizedDisturbances, &OfSeries::standardized_observation_disturbances},
    {Source::kScore, &OfSeries::score_transition},
    {Source::kScore, &OfSeries::score_transition_covariance},
    {Source::kScore, &OfSeries::score_observation},
    {Source::kScore, &OfSeries::score_observation_covariance},
    {Source::kScore, &OfSeries::score_transition_offset},
    {Source::kScore, &OfSeries::score_observation_offset},
    {Source::kScore, &OfSeries::score_initial_mean},
    {Source::kScore, &OfSeries::score_initial_covariance},
};

}  // namespace

// The factors of the covariances, which all systems share.
struct OrthogonalSmoother::Arrays {
  // Factors of the matrices of one kind, n x n each.
  static absl::Status Factorize(const char* name, const ModelArray& array, int64_t n,
                                std::vector<double>* values, std::vector<double>* low,
                                Factors* factors) {
    const int64_t matrices = std::ssize(array.values) / (n * n);
    for (int64_t k = 0; k < matrices; ++k) {
      int32_t rank = 0;
      if (const auto wrong =
              orthogonal::AppendFactor(n, array.values.data() + k * n * n, values, low, &rank)) {
        return NotSemidefiniteError({name, k, wrong->row});
      }
      factors->columns.push_back(rank);
      factors->most_columns = std::max(factors->most_columns, rank);
      values->resize(static_cast<size_t>((k + 1) * n * n));  // the next one begins there
      low->resize(values->size());
    }
    factors->matrices = {values->data(), array.per_step ? n * n : 0};
    factors->low = {low->data(), factors->matrices.stride};
    return absl::OkStatus();
  }

  absl::Status FactorizeObservations(const SmoothParams& params, bool is_diagonal) {
    const int64_t ny = params.observation_size;
    const ModelArray& r = params.observation_covariance;
    if (!is_diagonal) return Factorize("R", r, ny, &s, &s_low, &observation);
    const int64_t matrices = std::ssize(r.values) / (ny * ny);
    for (int64_t i = 0; i < matrices * ny; ++i) {
      const double variance = r.values[static_cast<size_t>(i / ny * ny * ny + i % ny * (ny + 1))];
      if (variance < 0) return NotSemidefiniteError({"R", i / ny, i % ny});
      orthogonal::AppendRoot(variance, &s, &s_low);
    }
    const auto columns = static_cast<int32_t>(ny);
    observation = {{s.data(), r.per_step ? ny : 0},
                   {s_low.data(), r.per_step ? ny : 0},
                   std::vector<int32_t>(static_cast<size_t>(matrices), columns),
                   columns};
    return absl::OkStatus();
  }

  absl::Status FactorizeInitial(const SmoothParams& params) {
    const int64_t n = params.state_size;
    if (params.diffuse) {
      identity.assign(static_cast<size_t>(n * n), 0);
      for (int64_t i = 0; i < n; ++i) identity[static_cast<size_t>(i * (n + 1))] = 1;
      return absl::OkStatus();
    }
    // Diffuse states have no variance of their own.
    std::vector<double> p(params.initial_covariance.begin(), params.initial_covariance.end());
    const std::vector<bool> diffuse = DiffuseStates(params);
    for (int64_t i = 0; i < n * n; ++i) {
      if (diffuse[static_cast<size_t>(i % n)] || diffuse[static_cast<size_t>(i / n)]) p[i] = 0;
    }
    int32_t rank = 0;
    const auto wrong = orthogonal::AppendFactor(n, p.data(), &z, &z_low, &rank);
    if (wrong) return NotSemidefiniteError({"P", 0, wrong->row});
    initial_columns = rank;
    return absl::OkStatus();
  }

  std::vector<double> b, b_low, s, s_low, z, z_low, identity;
  Factors transition, observation;
  int64_t initial_columns = 0;
};

// One call of Smooth.
class OrthogonalSmoother::Work {
 public:
  Work(const OrthogonalSmoother& smoother, size_t system, const Results& results)
      : smoother_(smoother),
        params_(smoother.params_),
        system_(system),
        series_(smoother.series_of_[system]),
        results_(results) {}

  absl::StatusOr<Outcome> Run() {
    WriteSystem();
    WriteWanted();
    std::optional<orthogonal::Mirror> mirror;
    if (needs_mirror_) in_.mirror = &mirror.emplace(in_).system();
    const orthogonal::Arithmetic& arithmetic = orthogonal::SelectArithmetic();
    orthogonal::Report report;
    SmoothForm form = params_.form.value_or(SmoothForm::kOrthogonal);
    if (form == SmoothForm::kOrthogonal) {
      report = arithmetic.in_double(in_, out_);
      const bool may_help = !params_.form && report.outcome != orthogonal::Outcome::kNotIdentified;
      if (may_help && !IsGood(report)) form = SmoothForm::kOrthogonalInDoubleDouble;
    }
    if (form == SmoothForm::kOrthogonalInDoubleDouble) {
      report = arithmetic.in_double_double(in_, out_);
    }
    if (!IsGood(report)) return WhyNot(report, form);
    AddMeans();
    WriteResiduals();
    return Outcome{form, ErrorsOf(report)};
  }

 private:
  void WriteSystem() {
    const int64_t n = params_.state_size, ny = params_.observation_size;
    const Arrays& arrays = *smoother_.arrays_;
    in_.num_steps = params_.num_steps;
    in_.state_size = n;
    in_.observation_size = ny;
    in_.transition = MatricesOf(params_.transition, n * n);
    in_.transition_offset = MatricesOf(params_.transition_offset, n);
    in_.transition_factor = arrays.transition;
    in_.observation = MatricesOf(params_.observation, ny * n);
    in_.observation_offset = MatricesOf(params_.observation_offset, ny);
    in_.observation_factor = arrays.observation;
    in_.observation_covariance = MatricesOf(params_.observation_covariance, ny * ny);
    in_.is_diagonal = smoother_.has_diagonal_noise_;
    if (params_.diffuse) {
      in_.diffuse = arrays.identity.data();
      in_.diffuse_columns = n;
    } else {
      in_.initial_mean = params_.initial_mean.data();
      in_.initial_factor = arrays.z.data();
      in_.initial_low = arrays.z_low.data();
      in_.diffuse = params_.initial_diffuse.data();
      in_.diffuse_columns = std::ssize(params_.initial_diffuse) / n;
      in_.initial_columns = arrays.initial_columns;
    }
    for (const uint32_t mask : smoother_.patterns_->systems[system_]) {
      in_.rows.push_back(&smoother_.patterns_->masks[mask].rows);
    }
    for (const int64_t k : series_) {
      in_.series.push_back(params_.observations.data() + k * ny * params_.num_steps);
    }
  }

  int64_t SeriesScalars() const { return params_.state_size * params_.num_steps; }
  static double* Data(std::span<double> numbers) {
    return numbers.empty() ? nullptr : numbers.data();
  }

  void WriteWanted() {
    means_ = Doubles(results_.means.empty() ? SeriesScalars() * std::ssize(series_) : 0);
    out_.only_variances = params_.covariances == SmoothedCovariances::kVariances;
    out_.series.resize(series_.size());
    for (size_t i = 0; i < series_.size(); ++i) out_.series[i].means = MeansOf(i);
    for (size_t i = 0; i < params_.outputs.size(); ++i) {
      WriteOutput(params_.outputs[i], results_.outputs[i]);
    }
    const bool blocks = !results_.residuals.empty();
    if (params_.covariances == SmoothedCovariances::kFull) {
      out_.covariances = Data(results_.covariances);
    } else {
      out_.variances = Data(results_.covariances);
    }
    if (blocks && out_.covariances == nullptr) {
      blocks_ = Doubles(SeriesScalars() * params_.state_size);
      out_.covariances = blocks_.data();
    }
    out_.lag_one = Data(results_.lag_one);
    likelihoods_.resize(series_.size());
    const std::vector<SmoothOutput>& outputs = params_.outputs;
    const bool by_steps = std::find(outputs.begin(), outputs.end(),
                                    SmoothOutput::kLogLikelihoodSteps) != outputs.end();
    if (!results_.log_likelihood.empty() || by_steps) out_.log_likelihoods = likelihoods_.data();
    if (!results_.samples.empty()) WriteDraws();
  }
  double* MeansOf(size_t i) {
    if (results_.means.empty()) return means_.data() + static_cast<int64_t>(i) * SeriesScalars();
    return results_.means.data() + series_[i] * SeriesScalars();
  }

  void WriteOutput(SmoothOutput output, std::span<double> all) {
    const SmoothOutputShape shape = ShapeOf(params_, output);
    const int64_t each = shape.numbers * shape.steps;
    if (each == 0) return;  // of transitions, where there is one step
    const OutputPlace& place = kOutputPlaces[static_cast<size_t>(output) - 1];
    if (shape.is_of_system) {
      out_.*place.of_system = all.data() + static_cast<int64_t>(system_) * each;
    } else {
      for (size_t i = 0; i < series_.size(); ++i) {
        out_.series[i].*place.of_series = all.data() + series_[i] * each;
      }
    }
    const Source source = place.source;
    const bool is_filtered = source == Source::kFilter || source == Source::kFilteredSeries;
    const bool is_standardized = source == Source::kStandardizedDisturbances;
    needs_mirror_ |= is_filtered || is_standardized;
    out_.has_innovations |= source == Source::kFilteredSeries;
    out_.has_disturbances |= source == Source::kDisturbances || is_standardized;
    out_.has_standardized |= is_standardized;
    out_.has_score |= source == Source::kScore;
  }

  // Sample s of series k is number k num_samples + s of the seed. Its numbers are those of a system
  // of num_steps + 1 blocks (samples.h): z, then u and e of each step.
  void WriteDraws() {
    const int64_t most = std::max<int64_t>(
        {1, in_.initial_columns, in_.transition_factor.most_columns + params_.observation_size});
    const Shape shape{params_.num_steps + 1, most, Scalar::kFloat64};
    const int64_t each = shape.num_blocks * most, count = params_.num_samples;
    draws_ = Doubles(each * count * std::ssize(series_));
    in_.draw_stride = most;
    for (size_t i = 0; i < series_.size(); ++i) {
      double* const to = draws_.data() + static_cast<int64_t>(i) * each * count;
      const int64_t first = series_[i] * count;
      StandardNormals(shape, params_.seed, static_cast<uint64_t>(first), count, to);
      for (int64_t s = 0; s < count; ++s) {
        in_.draws.push_back(to + s * each);
        out_.errors.push_back(results_.samples.data() + (first + s) * SeriesScalars());
      }
    }
  }

  bool IsGood(const orthogonal::Report& report) const {
    if (report.outcome != orthogonal::Outcome::kDone) return false;
    double least = HUGE_VAL;
    for (const double value : likelihoods_) least = std::min(least, std::fabs(value));
    return IsPromised(ErrorsOf(report), out_.log_likelihoods == nullptr ? nullptr : &least);
  }

  static SmoothErrors ErrorsOf(const orthogonal::Report& report) {
    return {report.estimates.means, report.estimates.variances, report.estimates.log_likelihood};
  }

  absl::Status WhyNot(const orthogonal::Report& report, SmoothForm form) const {
    NotSmoothable why;
    why.form = form;
    why.system = static_cast<int64_t>(system_);
    why.step = report.step;
    why.row = report.row;
    why.directions = report.directions;
    if (report.outcome == orthogonal::Outcome::kNotIdentified) {
      why.reason = NotSmoothable::Reason::kNotIdentified;
    } else if (report.outcome == orthogonal::Outcome::kContradiction) {
      why.reason = NotSmoothable::Reason::kContradiction;
    }
    // In double nobody knows what a skipped pivot does to the numbers.
    const bool is_known = report.outcome != orthogonal::Outcome::kSkipped;
    why.errors = is_known ? ErrorsOf(report) : SmoothErrors{HUGE_VAL, HUGE_VAL, HUGE_VAL};
    return NotSmoothableError(why);
  }

  // Log-likelihoods go to their series' places, and means to the samples.
  void AddMeans() {
    for (size_t i = 0; i < series_.size(); ++i) {
      if (!results_.log_likelihood.empty()) {
        results_.log_likelihood[static_cast<size_t>(series_[i])] = likelihoods_[i];
      }
      const double* const means = MeansOf(i);
      for (int64_t s = 0; s < params_.num_samples && !results_.samples.empty(); ++s) {
        double* const sample =
            results_.samples.data() + (series_[i] * params_.num_samples + s) * SeriesScalars();
        for (int64_t j = 0; j < SeriesScalars(); ++j) sample[j] += means[j];
      }
    }
  }

  void WriteResiduals() {
    if (results_.residuals.empty()) return;
    const int64_t n = params_.state_size, ny = params_.observation_size;
    Doubles scratch(2 * n * ny), variances(ny), errors(ny);
    for (int64_t t = 0; t < params_.num_steps; ++t) {
      const MissingPatterns::Mask& mask =
          smoother_.patterns_->masks[smoother_.patterns_->systems[system_][static_cast<size_t>(t)]];
      WriteResidualVariances(params_, mask, t, out_.covariances + t * n * n, scratch.data(),
                             variances.data());
      for (size_t i = 0; i < series_.size(); ++i) {
        WriteErrors(params_, mask, series_[i], t, MeansOf(i) + t * n, errors.data());
        WriteStandardized(params_, mask, errors.data(), variances.data(),
                          results_.residuals.data() + (series_[i] * params_.num_steps + t) * ny);
      }
    }
  }

  const OrthogonalSmoother& smoother_;
  const SmoothParams& params_;
  const size_t system_;
  const std::vector<int64_t>& series_;
  const Results& results_;
  orthogonal::System in_;
  orthogonal::Results out_;
  Doubles means_, blocks_, draws_;
  bool needs_mirror_ = false;
  std::vector<double> likelihoods_;
};

OrthogonalSmoother::OrthogonalSmoother(const MeasuredSmooth& measured)
    : params_(measured.params),
      patterns_(measured.patterns),
      has_diagonal_noise_(measured.has_diagonal_noise),
      series_of_(measured.patterns->systems.size()),
      arrays_(std::make_unique<Arrays>()) {
  for (int64_t k = 0; k < params_.num_series; ++k) {
    series_of_[patterns_->system_of_series[static_cast<size_t>(k)]].push_back(k);
  }
}
OrthogonalSmoother::~OrthogonalSmoother() = default;

absl::StatusOr<std::unique_ptr<OrthogonalSmoother>> OrthogonalSmoother::Make(
    const MeasuredSmooth& measured) {
  std::unique_ptr<OrthogonalSmoother> made(new OrthogonalSmoother(measured));
  const SmoothParams& params = made->params_;
  Arrays& arrays = *made->arrays_;
  absl::Status status = arrays.FactorizeInitial(params);
  if (status.ok()) status = arrays.FactorizeObservations(params, made->has_diagonal_noise_);
  if (status.ok() && params.num_steps > 1) {
    status = Arrays::Factorize("Q", params.transition_covariance, params.state_size, &arrays.b,
                               &arrays.b_low, &arrays.transition);
  }
  if (!status.ok()) return status;
  return made;
}

int64_t OrthogonalSmoother::WorkBytes(const MeasuredSmooth& measured, int64_t together) {
  // In double-double: X before and after the observations and the reflections of each step, then
  // those of each element of y, and four right-hand sides of all of these. Columns have the rows of
  // the step's noises too where R is not diagonal.
  const SmoothParams& params = measured.params;
  const double steps = static_cast<double>(params.num_steps);
  const double n = static_cast<double>(params.state_size) + 4;
  const double rows = static_cast<double>(params.observation_size);
  const double noises = measured.has_diagonal_noise ? 1 : rows + 4;
  const double matrices = 4 * n * n, elements = rows * (2 * (n + noises) + 16);
  const double vectors = 40 * (3 * n + 3 * rows);
  // With outputs the mirror has as much, and copies of the arrays; the filter has five numbers for
  // each state, disturbances have two for each of them and each element of y, and the score has as
  // many as the arrays.
  const bool has_outputs = !params.outputs.empty();
  const double beside = has_outputs ? 8 * n + 4 * rows : 0;
  const auto size = [](const ModelArray& array) {
    return static_cast<double>(array.values.size());
  };
  const double copies =
      2 * (size(params.transition) + size(params.observation)) +
      7 * (size(params.transition_covariance) + size(params.observation_covariance));
  // An array that grows has room for twice as much.
  const double factored = (has_outputs ? 2 : 1) * 4 * (matrices + elements);
  const double each = steps * (factored + vectors + beside) + (has_outputs ? copies : 0);
  const double draws = static_cast<double>(params.num_samples * params.num_series) * (steps + 1);
  const double doubles = static_cast<double>(together) * each + draws * (n + rows);
  return static_cast<int64_t>(std::min(8 * doubles, 0x1p62));
}

absl::StatusOr<OrthogonalSmoother::Outcome> OrthogonalSmoother::Smooth(
    size_t system, const Results& results) const {
  return Work(*this, system, results).Run();
}

}  // namespace blockd
