// MeasureSmooth: checks a Smooth, and finds the sizes of its results and the patterns of its
// missing observations.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "blockd/engine/model_errors.h"
#include "blockd/engine/smooth_model.h"
#include "blockd/engine/smoother.h"

namespace blockd {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 62;

absl::Status CheckCount(const char* field, int64_t count, int64_t most) {
  if (count >= 1 && count <= most) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat(count), absl::StrCat("1 to ", most));
}

// The first of `values` that is NaN or infinite; end() if there is none. Both have all bits of the
// exponent set, so that one more carries into the sign's place: no branch, and vectors of them.
auto FindNotFinite(std::span<const double> values) {
  constexpr ptrdiff_t kPiece = 512;
  constexpr uint64_t kAbsolute = ~uint64_t{0} >> 1, kLeastExponent = uint64_t{1} << 52;
  auto first = values.begin();
  for (; values.end() - first >= kPiece; first += kPiece) {
    uint64_t sums = 0;
    for (ptrdiff_t i = 0; i < kPiece; ++i) {
      sums |= (std::bit_cast<uint64_t>(first[i]) & kAbsolute) + kLeastExponent;
    }
    if (sums > kAbsolute) break;
  }
  return std::find_if(first, values.end(), [](double x) { return !std::isfinite(x); });
}

// A member of SmoothParams, and the letter of it in the model.
struct Name {
  const char* field;
  const char* letter;
};

// As many numbers as the sizes say, and all of them finite.
absl::Status CheckArray(const Name& name, std::span<const double> values, int64_t steps,
                        int64_t rows, int64_t columns) {
  const absl::int128 expected = absl::int128(steps) * rows * columns;
  if (expected != absl::int128(std::ssize(values))) {
    return InvalidFieldError(name.field, absl::StrCat(values.size(), " numbers of ", name.letter),
                             absl::StrCat(steps, " of ", rows, " x ", columns));
  }
  const auto bad = FindNotFinite(values);
  if (bad == values.end()) return absl::OkStatus();
  const auto at = bad - values.begin();
  return InvalidFieldError(name.field, absl::StrCat(*bad, " at number ", at, " of ", name.letter),
                           "finite numbers");
}

absl::Status CheckModel(const Name& name, const ModelArray& array, bool may_be_absent,
                        int64_t steps, int64_t rows, int64_t columns) {
  if (array.values.empty() && may_be_absent) return absl::OkStatus();
  return CheckArray(name, array.values, array.per_step ? steps : 1, rows, columns);
}

// True if all mirrored elements have the same bits. In tiles, which stay in the cache.
bool IsMirrored(const double* matrix, int64_t n) {
  constexpr int64_t kTile = 16;
  for (int64_t j = 0; j < n; j += kTile) {
    for (int64_t i = j; i < n; i += kTile) {
      const int64_t rows = std::min(kTile, n - i), columns = std::min(kTile, n - j);
      uint64_t differ = 0;
      for (int64_t c = j; c < j + columns; ++c) {
        for (int64_t r = i; r < i + rows; ++r) {
          differ |= std::bit_cast<uint64_t>(matrix[c * n + r]) ^
                    std::bit_cast<uint64_t>(matrix[r * n + c]);
        }
      }
      if (differ != 0) return false;
    }
  }
  return true;
}

// Matrices of one kind, n x n each, are symmetric but for rounding.
absl::Status CheckSymmetric(const Name& name, std::span<const double> values, int64_t n) {
  constexpr double kAsymmetry = 1e-8;
  const int64_t matrices = std::ssize(values) / (n * n);
  for (int64_t k = 0; k < matrices; ++k) {
    const double* const matrix = values.data() + k * n * n;
    if (IsMirrored(matrix, n)) continue;
    double largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(matrix[i * (n + 1)]));
    const double rounding =
        16 * static_cast<double>(n) * std::numeric_limits<double>::epsilon() * largest;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j + 1; i < n; ++i) {
        const double below = matrix[j * n + i], above = matrix[i * n + j];
        const double deviations =
            std::sqrt(std::fabs(matrix[i * (n + 1)])) * std::sqrt(std::fabs(matrix[j * (n + 1)]));
        if (std::fabs(below - above) <= kAsymmetry * deviations + rounding) continue;
        return InvalidFieldError(
            name.field,
            absl::StrCat(name.letter, " of step ", k, " with ", below, " at row ", i, ", column ",
                         j, " and ", above, " at row ", j, ", column ", i),
            "a symmetric matrix; of a factor L its product L L'");
      }
    }
  }
  return absl::OkStatus();
}

bool AreDiagonal(std::span<const double> values, int64_t n) {
  const int64_t columns = std::ssize(values) / n;
  for (int64_t j = 0; j < columns; ++j) {
    const double* const column = values.data() + j * n;
    const auto is_zero = [](double x) { return x == 0; };
    const double* const diagonal = column + j % n;
    if (!std::all_of(column, diagonal, is_zero)) return false;
    if (!std::all_of(diagonal + 1, column + n, is_zero)) return false;
  }
  return true;
}

// Beside the model and the results.
int64_t WorkBytes(const SmoothParams& params, const MissingPatterns& patterns,
                  bool has_diagonal_noise, const SmoothLimits& limits) {
  const int64_t n = params.state_size, ny = params.observation_size, steps = params.num_steps;
  const int64_t systems = std::ssize(patterns.systems), masks = std::ssize(patterns.masks);
  const bool palette = params.is_constant();
  // A palette has a block for each mask at the first, the last and all other steps.
  const int64_t diagonals = palette ? std::min(steps, masks + 2) : steps;
  const absl::int128 blocks = absl::int128(systems) * n * n * (diagonals + (palette ? 1 : steps));
  // R has a whitener for each mask, where it is not another one at each step.
  const absl::int128 factors =
      params.observation_covariance.per_step ? absl::int128(systems) * steps : absl::int128(masks);
  const int64_t factor = has_diagonal_noise ? ny : ny * ny;
  const absl::int128 inverse =  // where blocks are asked for that are no result
      params.residuals || params.lag_one ? absl::int128(systems) * n * n * steps : 0;
  const absl::int128 portions =  // what each thread has
      absl::int128(limits.threads) * Smoother::ScratchDoubles(params);
  const absl::int128 doubles = blocks + inverse + portions + factors * factor + 3 * n * n +
                               std::ssize(params.transition_covariance.values) +
                               absl::int128(systems) * steps * (6 + ny) +
                               absl::int128(params.num_series) * steps * 2;
  return static_cast<int64_t>(std::min(doubles * 8, absl::int128(kMostBytes)));
}

}  // namespace

absl::Status CheckSmoothSizes(const SmoothParams& params, const SmoothLimits& limits) {
  const int64_t steps = params.num_steps, n = params.state_size, ny = params.observation_size;
  absl::Status status = CheckCount("num_steps", steps, kMaxRows);
  status.Update(CheckCount("state_size", n, kMaxBlockSize));
  status.Update(CheckCount("observation_size", ny, kMaxBlockSize));
  status.Update(CheckCount("num_series", params.num_series, limits.max_columns));
  if (!status.ok()) return status;
  const Shape shape{steps, n, Scalar::kFloat64};
  if (absl::Status fits = CheckShape(shape); !fits.ok()) {
    return InvalidFieldError("num_steps", std::string(fits.message()),
                             "a system that the server may hold");
  }
  if (params.num_samples < 0 || params.num_samples > limits.max_columns / params.num_series) {
    return InvalidFieldError("num_samples", absl::StrCat(params.num_samples),
                             absl::StrCat("0 to ", limits.max_columns / params.num_series));
  }
  absl::int128 outputs = 0;
  int before = 0;
  for (const SmoothOutput output : params.outputs) {
    const int number = static_cast<int>(output);
    if (number <= before || number > kNumSmoothOutputs) {
      return InvalidFieldError(
          "output", absl::StrCat(number),
          absl::StrCat("outputs in ascending order, 1 to ", kNumSmoothOutputs));
    }
    before = number;
    const SmoothOutputShape own = ShapeOf(params, output);
    outputs += absl::int128(own.numbers) * own.steps * params.num_series;
  }
  const absl::int128 results = absl::int128(steps) * n *
                                   (params.num_series + 2 * absl::int128(n) * params.num_series +
                                    params.num_samples * params.num_series + ny) +
                               outputs;
  if (results > kMostBytes / 8) {
    return InvalidFieldError("num_series", absl::StrCat(params.num_series),
                             "fewer series, steps, states or samples");
  }
  return absl::OkStatus();
}

namespace {

// Sizes, the lengths of the arrays, and that all numbers are finite but for what is missing.
absl::Status CheckSmooth(const SmoothParams& params, const SmoothLimits& limits) {
  absl::Status status = CheckSmoothSizes(params, limits);
  if (!status.ok()) return status;
  const int64_t steps = params.num_steps, n = params.state_size, ny = params.observation_size;
  const bool one = steps == 1;
  constexpr Name kQ{"transition_covariance", "Q"}, kR{"observation_covariance", "R"};
  constexpr Name kP{"initial_covariance", "P"};
  status.Update(CheckModel({"transition", "F"}, params.transition, one, steps - 1, n, n));
  status.Update(CheckModel(kQ, params.transition_covariance, one, steps - 1, n, n));
  status.Update(CheckModel({"observation", "H"}, params.observation, false, steps, ny, n));
  status.Update(CheckModel(kR, params.observation_covariance, false, steps, ny, ny));
  status.Update(
      CheckModel({"transition_offset", "c"}, params.transition_offset, true, steps - 1, n, 1));
  status.Update(
      CheckModel({"observation_offset", "d"}, params.observation_offset, true, steps, ny, 1));
  if (!params.diffuse) {
    status.Update(CheckArray({"initial_mean", "m"}, params.initial_mean, 1, n, 1));
    status.Update(CheckArray(kP, params.initial_covariance, 1, n, n));
    const int64_t directions = std::ssize(params.initial_diffuse) / n;
    status.Update(CheckArray({"initial_diffuse", "G"}, params.initial_diffuse, 1, n, directions));
    if (directions > n) {
      status.Update(InvalidFieldError("initial_diffuse", absl::StrCat(directions, " columns"),
                                      absl::StrCat("0 to ", n)));
    }
  }
  if (!status.ok()) return status;
  if (!one) status = CheckSymmetric(kQ, params.transition_covariance.values, n);
  status.Update(CheckSymmetric(kR, params.observation_covariance.values, ny));
  if (!params.diffuse) status.Update(CheckSymmetric(kP, params.initial_covariance, n));
  if (!status.ok()) return status;
  if (absl::int128(ny) * steps * params.num_series !=
      absl::int128(std::ssize(params.observations))) {
    return InvalidFieldError("observations",
                             absl::StrCat(params.observations.size(), " numbers of y"),
                             absl::StrCat(ny, " x ", steps, " x ", params.num_series));
  }
  const auto bad = std::find_if(params.observations.begin(), params.observations.end(),
                                [](double y) { return std::isinf(y); });
  if (bad == params.observations.end()) return absl::OkStatus();
  const int64_t at = bad - params.observations.begin();
  return InvalidFieldError("observations",
                           absl::StrCat("an infinite element ", at % ny, " of y at step ",
                                        at / ny % steps, " of series ", at / ny / steps),
                           "finite numbers, and NaN for what is missing");
}

MissingPatterns FindPatterns(const SmoothParams& params) {
  const int64_t ny = params.observation_size;
  MissingPatterns patterns;
  absl::flat_hash_map<std::string, uint32_t> mask_of;
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> system_of;
  std::string key(static_cast<size_t>(ny), '\0'), last_key;
  uint32_t last = 0;
  const double* y = params.observations.data();
  for (int64_t k = 0; k < params.num_series; ++k) {
    std::vector<uint32_t> steps(static_cast<size_t>(params.num_steps));
    int64_t observed = 0;
    for (uint32_t& step : steps) {
      for (int64_t i = 0; i < ny; ++i, ++y) key[i] = std::isnan(*y) ? 0 : 1;
      if (key == last_key) {  // as most often
        step = last;
        observed += std::ssize(patterns.masks[step].rows);
        continue;
      }
      last_key = key;
      const auto [known, made] = mask_of.try_emplace(key, patterns.masks.size());
      if (made) {
        MissingPatterns::Mask& mask = patterns.masks.emplace_back();
        for (int64_t i = 0; i < ny; ++i) {
          if (key[i] != 0) mask.rows.push_back(static_cast<int32_t>(i));
        }
      }
      step = last = known->second;
      observed += std::ssize(patterns.masks[step].rows);
    }
    const auto [known, made] = system_of.try_emplace(steps, patterns.systems.size());
    if (made) patterns.systems.push_back(std::move(steps));
    patterns.system_of_series.push_back(known->second);
    patterns.observed.push_back(observed);
  }
  return patterns;
}

}  // namespace

bool IsPromised(const SmoothErrors& errors, const double* log_likelihood) {
  // NaN is none.
  if (!(errors.means <= kPromisedErrors.means)) return false;
  if (!(errors.variances <= kPromisedErrors.variances)) return false;
  if (log_likelihood == nullptr) return true;
  constexpr double kFourUnits = 4 * std::numeric_limits<double>::epsilon();
  return errors.log_likelihood <=
         kPromisedErrors.log_likelihood + kFourUnits * std::fabs(*log_likelihood);
}

SmoothOutputShape ShapeOf(const SmoothParams& params, SmoothOutput output) {
  const int64_t n = params.state_size, ny = params.observation_size, steps = params.num_steps;
  const bool only_variances = params.covariances == SmoothedCovariances::kVariances;
  // With one step there are no transitions.
  const auto moves = [&](const ModelArray& array) {
    return steps == 1 ? 0 : array.per_step ? steps - 1 : 1;
  };
  switch (output) {
    case SmoothOutput::kFilteredMeans:
    case SmoothOutput::kPredictedMeans:
      return {n, steps};
    case SmoothOutput::kFilteredCovariances:
    case SmoothOutput::kPredictedCovariances:
      return {only_variances ? n : n * n, steps, true};
    case SmoothOutput::kInnovations:
    case SmoothOutput::kObservationMeans:
    case SmoothOutput::kObservationDisturbances:
    case SmoothOutput::kStandardizedObservationDisturbances:
      return {ny, steps};
    case SmoothOutput::kLogLikelihoodSteps:
      return {1, steps};
    case SmoothOutput::kObservationCovariances:
      return {only_variances ? ny : ny * ny, steps, true};
    case SmoothOutput::kStateDisturbances:
    case SmoothOutput::kStandardizedStateDisturbances:
      return {n, steps - 1};
    case SmoothOutput::kScoreTransition:
      return {n * n, moves(params.transition)};
    case SmoothOutput::kScoreTransitionCovariance:
      return {n * n, moves(params.transition_covariance)};
    case SmoothOutput::kScoreObservation:
      return {ny * n, params.observation.per_step ? steps : 1};
    case SmoothOutput::kScoreObservationCovariance:
      return {ny * ny, params.observation_covariance.per_step ? steps : 1};
    case SmoothOutput::kScoreTransitionOffset:
      return {n, moves(params.transition_offset)};
    case SmoothOutput::kScoreObservationOffset:
      return {ny, params.observation_offset.per_step ? steps : 1};
    case SmoothOutput::kScoreInitialMean:
      return {n, 1};
    case SmoothOutput::kScoreInitialCovariance:
      return {n * n, 1};
  }
  return {};
}

int64_t SmoothSizes::total() const {
  const int64_t others = means + covariances + lag_one + residuals + samples;
  return std::accumulate(outputs.begin(), outputs.end(), others);
}

SmoothSizes SmoothSizesOf(const SmoothParams& params, int64_t systems) {
  const int64_t n = params.state_size, steps = params.num_steps, series = params.num_series;
  SmoothSizes sizes;
  sizes.systems = systems;
  sizes.means = n * steps * series;
  switch (params.covariances) {
    case SmoothedCovariances::kNone:
      break;
    case SmoothedCovariances::kVariances:
      sizes.covariances = n * steps * systems;
      break;
    case SmoothedCovariances::kFull:
      sizes.covariances = n * n * steps * systems;
      break;
  }
  if (params.lag_one) sizes.lag_one = n * n * (steps - 1) * systems;
  if (params.residuals) sizes.residuals = params.observation_size * steps * series;
  sizes.samples = n * steps * params.num_samples * series;
  for (const SmoothOutput output : params.outputs) {
    const SmoothOutputShape own = ShapeOf(params, output);
    sizes.outputs.push_back(own.numbers * own.steps * (own.is_of_system ? systems : series));
  }
  return sizes;
}

absl::StatusOr<MeasuredSmooth> MeasureSmooth(const SmoothParams& params,
                                             const SmoothLimits& limits) {
  if (absl::Status status = CheckSmooth(params, limits); !status.ok()) return status;
  MeasuredSmooth measured{params, {}, std::make_shared<MissingPatterns>(FindPatterns(params))};
  measured.sizes = SmoothSizesOf(params, std::ssize(measured.patterns->systems));
  measured.has_diagonal_noise =
      AreDiagonal(params.observation_covariance.values, params.observation_size);
  measured.sizes.work_bytes =
      WorkBytes(params, *measured.patterns, measured.has_diagonal_noise, limits);
  return measured;
}

}  // namespace blockd
