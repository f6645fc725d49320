// Drawings of a series and its smoothed level: text for a terminal, SVG for a browser.
#ifndef BLOCKD_CLIENT_BLOCKCTL_LEVEL_PLOT_H_
#define BLOCKD_CLIENT_BLOCKCTL_LEVEL_PLOT_H_

#include <span>
#include <string>
#include <vector>

namespace blockd::blockctl {

struct LevelSeries {
  std::string title;
  std::string unit;
  int first_year = 0;
  std::vector<double> values;     // one a year, at least two
  std::vector<double> level;      // as many
  std::vector<double> deviation;  // standard deviation of the level, as many
};

// A column a year: `.` a value, `o` the level, on a scale at the left.
std::string TextPlot(const LevelSeries& series, int height);
// The values as a thin line, the level as a thick one, and two deviations on both sides as a band.
std::string SvgPlot(const LevelSeries& series);
// "year,value,level,deviation" and a line a year.
std::string CsvTable(const LevelSeries& series);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_LEVEL_PLOT_H_
