// Real series and the models that smooth them: for the demo, the tests and the benchmarks.
//
// Pure functions; any thread may call.
#ifndef BLOCKD_ENGINE_PROBLEMS_SERIES_H_
#define BLOCKD_ENGINE_PROBLEMS_SERIES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockd::problems {

// x(t+1) = F x(t) + w, w ~ N(0, Q); y(t) = H x(t) + v, v ~ N(0, R), y a number; nothing is known of
// x(1). The same at all steps. Column-major.
struct SeriesModel {
  int64_t state_size = 0;
  std::vector<double> transition, transition_covariance;    // F, Q
  std::vector<double> observation, observation_covariance;  // H, R
};

// The annual flow of the Nile at Aswan, 1871-1970, in 1e8 cubic metres (Cobb 1978; Durbin and
// Koopman 2001), and the variances of its local level model there.
std::span<const double> NileFlow();
inline constexpr int kNileFirstYear = 1871;
inline constexpr double kNileObservationVariance = 15099;
inline constexpr double kNileLevelVariance = 1469.1;
SeriesModel NileModel();

// Carbon dioxide in the air at Mauna Loa, parts per million by volume, week after week from 29
// March 1958 to 29 December 2001; NaN where there is no value. Public domain (Keeling and Whorf
// 2004, Carbon Dioxide Information Analysis Center, as statsmodels has it).
std::vector<double> MaunaLoaCo2();
inline constexpr double kMaunaLoaFirstYear = 1958 + 87 / 365.0;
inline constexpr double kWeekInYears = 7 / 365.25;
// A local linear trend and three harmonics of a year: level, slope, and a pair of states each.
// Variances by maximum likelihood with statsmodels 0.15, rounded.
SeriesModel MaunaLoaModel();

}  // namespace blockd::problems

#endif  // BLOCKD_ENGINE_PROBLEMS_SERIES_H_
