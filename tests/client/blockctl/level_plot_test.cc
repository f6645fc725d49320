#include "client/blockctl/text/level_plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

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

// Values 0, 100, 50 on a scale from 0 to 100 in steps of 20; see ScaleOf.
TEST(LevelPlotTest, TextPutsEachValueInItsRow) {
  EXPECT_EQ(TextPlot({"", "", 1871, {0, 100, 50}, {20, 80, 60}, {0, 0, 0}}, 6),
            "     100 | . \n"
            "      80 | o \n"
            "      60 |  o\n"
            "      40 |  .\n"
            "      20 |o  \n"
            "       0 |.  \n"
            "         +---\n"
            "          1871                \n");
}

TEST(LevelPlotTest, SvgDrawsTheLinesAndTwoDeviationsOnEachSide) {
  // The scale is 0 to 100: 330 units of height above 380, 870 of width from 70.
  const std::string svg =
      SvgPlot({"Title", "metres", 1879, {0, 100, 50}, {20, 80, 60}, {5, 5, 10}});
  EXPECT_NE(svg.find("<polyline points=\"70.0,380.0 505.0,50.0 940.0,215.0 \" fill=\"none\" "
                     "stroke=\"#888\""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("<polyline points=\"70.0,314.0 505.0,116.0 940.0,182.0 \" fill=\"none\" "
                     "stroke=\"#2563eb\""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("<polygon points=\"70.0,281.0 505.0,83.0 940.0,116.0 "
                     "940.0,248.0 505.0,149.0 70.0,347.0 \""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find(">Title</text>"), std::string::npos);
  EXPECT_NE(svg.find(">metres; grey"), std::string::npos);
  EXPECT_NE(svg.find("text-anchor=\"middle\">1880</text>"), std::string::npos);  // tens only
  EXPECT_EQ(svg.find(">1879<"), std::string::npos);
  for (const char* mark : {">0<", ">20<", ">40<", ">60<", ">80<", ">100<"}) {
    EXPECT_NE(svg.find(std::string("text-anchor=\"end\"") + mark), std::string::npos) << mark;
  }
}

TEST(LevelPlotTest, MissingValuesAreNotDrawn) {
  const double missing = std::numeric_limits<double>::quiet_NaN();
  const LevelSeries series{"", "", 1871, {missing, 100, missing}, {20, 80, 60}, {0, 0, 0}};
  EXPECT_EQ(CsvTable(series),
            "year,value,level,deviation\n1871,,20,0\n1872,100,80,0\n1873,,60,0\n");
  const std::string text = TextPlot(series, 6);
  EXPECT_EQ(std::count(text.begin(), text.end(), '.'), 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'o'), 3);
  const std::string svg = SvgPlot(series);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("<polyline points=\"505.0,50.0 \" fill=\"none\" stroke=\"#888\""),
            std::string::npos)
      << svg;
}

TEST(LevelPlotTest, DecadesOfADenseSeriesAreMarkedOnce) {
  LevelSeries series{"", "", 1899.9, {}, {}, {}, 0.3};
  for (int t = 0; t < 40; ++t) {
    series.values.push_back(t);
    series.level.push_back(t);
    series.deviation.push_back(1);
  }
  const std::string svg = SvgPlot(series);
  for (const char* decade : {">1900<", ">1910<"}) {
    const size_t at = svg.find(decade);
    ASSERT_NE(at, std::string::npos) << decade;
    EXPECT_EQ(svg.find(decade, at + 1), std::string::npos) << decade;
  }
  EXPECT_EQ(svg.find(">1890<"), std::string::npos);
}

TEST(LevelPlotTest, MeansAreThoseOfWholeYears) {
  const double missing = std::numeric_limits<double>::quiet_NaN();
  const LevelSeries half{"T",
                         "u",
                         1899.5,
                         {9, 1, 3, missing, 5, missing, missing, 7},
                         {9, 1, 2, 3, 4, 5, 6, 7},
                         {9, 1, 1, 2, 2, 3, 3, 4},
                         0.5};
  const LevelSeries means = MeansOver(half, 1);
  EXPECT_EQ(means.first_year, 1900);
  EXPECT_EQ(means.years, 1);
  ASSERT_EQ(means.values.size(), 3);
  EXPECT_EQ(means.values[0], 2);
  EXPECT_EQ(means.values[1], 5);
  EXPECT_TRUE(std::isnan(means.values[2]));
  EXPECT_EQ(means.level, (std::vector<double>{1.5, 3.5, 5.5}));
  EXPECT_EQ(means.deviation, (std::vector<double>{1, 2, 3}));
}

TEST(LevelPlotTest, TheScaleHoldsTheBand) {
  // The level's deviations reach from -40 to 240.
  const std::string text = TextPlot({"", "", 1900, {0, 100}, {0, 200}, {20, 20}}, 3);
  EXPECT_EQ(text.rfind("     250 |", 0), 0) << text;
  EXPECT_NE(text.find("     -50 |"), std::string::npos) << text;
}

}  // namespace
}  // namespace blockd::blockctl
