#include "client/blockctl/level_plot.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace blockd::blockctl {
namespace {

LevelSeries Series() { return {"Title", "metres", 1871, {0, 100, 50}, {10, 80, 60}, {5, 5, 5}}; }

TEST(LevelPlotTest, TextShowsEveryYearOnItsScale) {
  const std::string text = TextPlot(Series(), 11);
  EXPECT_EQ(std::count(text.begin(), text.end(), '.'), 3);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'o'), 3);
  EXPECT_NE(text.find("1871"), std::string::npos);
  EXPECT_NE(text.find("     100 |"), std::string::npos);
}

TEST(LevelPlotTest, SvgHasTwoLinesAndABand) {
  const std::string svg = SvgPlot(Series());
  EXPECT_EQ(svg.rfind("<svg", 0), 0);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  EXPECT_NE(svg.find("<polygon"), std::string::npos);
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LevelPlotTest, ASeriesWithoutSpreadStillDraws) {
  const std::string svg = SvgPlot({"", "", 2000, {5, 5}, {5, 5}, {1, 1}});
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LevelPlotTest, CsvHasALineAYear) {
  EXPECT_EQ(CsvTable(Series()),
            "year,value,level,deviation\n1871,0,10,5\n1872,100,80,5\n1873,50,60,5\n");
}

}  // namespace
}  // namespace blockd::blockctl
