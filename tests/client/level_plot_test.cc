#include "client/blockctl/level_plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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

TEST(LevelPlotTest, TheScaleHoldsTheBand) {
  // The level's deviations reach from -40 to 240.
  const std::string text = TextPlot({"", "", 1900, {0, 100}, {0, 200}, {20, 20}}, 3);
  EXPECT_EQ(text.rfind("     250 |", 0), 0) << text;
  EXPECT_NE(text.find("     -50 |"), std::string::npos) << text;
}

}  // namespace
}  // namespace blockd::blockctl
