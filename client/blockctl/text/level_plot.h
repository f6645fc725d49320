// Drawings of a series and its smoothed level: text for a terminal, SVG for a browser.
#ifndef BLOCKD_CLIENT_BLOCKCTL_TEXT_LEVEL_PLOT_H_
#define BLOCKD_CLIENT_BLOCKCTL_TEXT_LEVEL_PLOT_H_

#include <span>
#include <string>
#include <vector>

namespace blockd::blockctl {

struct LevelSeries {
  std::string title;
  std::string unit;
  double first_year = 0;
  std::vector<double> values{};     // at least two; NaN: missing
  std::vector<double> level{};      // as many
  std::vector<double> deviation{};  // standard deviation of the level, as many
  double years = 1;                 // from one value to the next

  double YearOf(size_t t) const { return first_year + static_cast<double>(t) * years; }
};

// A column for each value: `.` the value, `o` the level, on a scale at the left.
std::string TextPlot(const LevelSeries& series, int height);
// The values as a thin line, the level as a thick one, and two deviations on both sides as a band.
std::string SvgPlot(const LevelSeries& series);
// "year,value,level,deviation" and a line a value.
std::string CsvTable(const LevelSeries& series);
// The means of the values, the level and the deviation over so many years each, whole ones only;
// NaN where no value is there.
LevelSeries MeansOver(const LevelSeries& series, double years);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_TEXT_LEVEL_PLOT_H_
