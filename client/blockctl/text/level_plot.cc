#include "client/blockctl/text/level_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace blockd::blockctl {
namespace {

// A step of 1, 2 or 5 times a power of ten that cuts the span into at most `parts`.
double NiceStep(double span, int parts) {
  const double least = std::max(span, 1e-300) / parts;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

// The range of the drawing, at round numbers.
struct Scale {
  double low, high, step;
};

Scale ScaleOf(const LevelSeries& series) {
  double low = series.level[0], high = series.level[0];
  for (size_t t = 0; t < series.values.size(); ++t) {
    const double value = std::isnan(series.values[t]) ? series.level[t] : series.values[t];
    low = std::min({low, value, series.level[t] - 2 * series.deviation[t]});
    high = std::max({high, value, series.level[t] + 2 * series.deviation[t]});
  }
  const double step = NiceStep(high - low, 6);
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step};
}

class SvgCanvas {
 public:
  SvgCanvas(const Scale& scale, size_t count) : scale_(scale), count_(count) {}
  double X(double t) const {
    return kLeft + t / static_cast<double>(count_ - 1) * (kWidth - kLeft - kRight);
  }
  double Y(double value) const {
    return kHeight - kBottom -
           (value - scale_.low) / (scale_.high - scale_.low) * (kHeight - kTop - kBottom);
  }
  std::string Points(std::span<const double> values) const {
    std::string points;
    for (size_t t = 0; t < values.size(); ++t) {
      if (std::isnan(values[t])) continue;
      absl::StrAppendFormat(&points, "%.1f,%.1f ", X(static_cast<double>(t)), Y(values[t]));
    }
    return points;
  }
  static constexpr double kWidth = 960, kHeight = 420;
  static constexpr double kLeft = 70, kRight = 20, kTop = 50, kBottom = 40;

 private:
  Scale scale_;
  size_t count_;
};

}  // namespace

std::string TextPlot(const LevelSeries& series, int height) {
  const Scale scale = ScaleOf(series);
  const size_t width = series.values.size();
  std::vector<std::string> rows(height, std::string(width, ' '));
  const auto row_of = [&](double value) {
    const double part = (value - scale.low) / (scale.high - scale.low);
    return std::clamp(static_cast<int>(std::lround((1 - part) * (height - 1))), 0, height - 1);
  };
  for (size_t t = 0; t < width; ++t) {
    if (!std::isnan(series.values[t])) rows[row_of(series.values[t])][t] = '.';
  }
  for (size_t t = 0; t < width; ++t) rows[row_of(series.level[t])][t] = 'o';
  std::string text;
  for (int r = 0; r < height; ++r) {
    const double value = scale.high - (scale.high - scale.low) * r / (height - 1);
    absl::StrAppendFormat(&text, "%8.0f |%s\n", value, rows[r]);
  }
  std::string axis =
      absl::StrCat(std::string(9, ' '), "+", std::string(width, '-'), "\n", std::string(10, ' '));
  for (size_t t = 0; t < width; t += 20) {
    absl::StrAppendFormat(&axis, "%-20.0f", std::floor(series.YearOf(t)));
  }
  return absl::StrCat(text, axis, "\n");
}

std::string SvgPlot(const LevelSeries& series) {
  const Scale scale = ScaleOf(series);
  const SvgCanvas canvas(scale, series.values.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%g\" y=\"26\" font-size=\"17\">%s</text>\n",
      SvgCanvas::kWidth, SvgCanvas::kHeight, SvgCanvas::kLeft, series.title);
  for (double value = scale.low; value <= scale.high + scale.step / 2; value += scale.step) {
    const double y = canvas.Y(value);
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          SvgCanvas::kLeft, SvgCanvas::kWidth - SvgCanvas::kRight, y, y,
                          SvgCanvas::kLeft - 8, y + 4, value);
  }
  for (size_t t = 0; t < series.values.size(); ++t) {
    // The first value of a decade.
    const double year = std::floor(series.YearOf(t) / 10) * 10;
    if (!(series.YearOf(t) - series.years < year)) continue;
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.0f</text>\n",
                          canvas.X(static_cast<double>(t)), SvgCanvas::kHeight - 16, year);
  }
  // The band: along its upper edge, and back along its lower one.
  std::string band;
  const size_t count = series.values.size();
  for (size_t k = 0; k < 2 * count; ++k) {
    const size_t t = k < count ? k : 2 * count - 1 - k;
    const double side = k < count ? 2 : -2;
    absl::StrAppendFormat(&band, "%.1f,%.1f ", canvas.X(static_cast<double>(t)),
                          canvas.Y(series.level[t] + side * series.deviation[t]));
  }
  absl::StrAppend(&svg, "<polygon points=\"", band, "\" fill=\"#2563eb\" opacity=\"0.15\"/>\n",
                  "<polyline points=\"", canvas.Points(series.values),
                  "\" fill=\"none\" stroke=\"#888\" stroke-width=\"1\"/>\n", "<polyline points=\"",
                  canvas.Points(series.level),
                  "\" fill=\"none\" stroke=\"#2563eb\" stroke-width=\"2.5\"/>\n");
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"43\" fill=\"#555\">%s; grey: observed, blue: smoothed "
                        "level and two standard deviations</text>\n</svg>\n",
                        SvgCanvas::kLeft, series.unit);
  return svg;
}

std::string CsvTable(const LevelSeries& series) {
  std::string text = "year,value,level,deviation\n";
  for (size_t t = 0; t < series.values.size(); ++t) {
    const std::string value =
        std::isnan(series.values[t]) ? "" : absl::StrFormat("%g", series.values[t]);
    absl::StrAppendFormat(&text, "%.8g,%s,%.10g,%.10g\n", series.YearOf(t), value, series.level[t],
                          series.deviation[t]);
  }
  return text;
}

LevelSeries MeansOver(const LevelSeries& series, double years) {
  LevelSeries means{series.title, series.unit, std::ceil(series.first_year), {}, {}, {}, years};
  size_t t = 0;
  while (t < series.values.size() && series.YearOf(t) < means.first_year) ++t;
  while (t < series.values.size()) {
    const double end = means.YearOf(means.level.size()) + years;
    double value = 0, level = 0, deviation = 0;
    int values = 0, count = 0;
    for (; t < series.values.size() && series.YearOf(t) < end; ++t, ++count) {
      level += series.level[t];
      deviation += series.deviation[t];
      if (std::isnan(series.values[t])) continue;
      value += series.values[t];
      ++values;
    }
    if (series.YearOf(t) < end) break;  // not whole
    means.values.push_back(value / values);
    means.level.push_back(level / count);
    means.deviation.push_back(deviation / count);
  }
  return means;
}

}  // namespace blockd::blockctl
