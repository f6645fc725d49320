#include "tests/bench/bench_table.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace blockd::bench {
namespace {

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (position - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Samples::median() const { return Quantile(seconds, 0.5); }
double Samples::quantile(double q) const { return Quantile(seconds, q); }

double Samples::spread() const {
  const double middle = median();
  return middle > 0 ? (Quantile(seconds, 0.75) - Quantile(seconds, 0.25)) / 2 / middle : 0;
}

std::vector<Samples> Interleave(int repetitions, const std::vector<Contestant>& contestants,
                                bool warm) {
  std::vector<Samples> samples(contestants.size());
  for (int round = -1; round < repetitions; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      if (contestants[i].prepare) contestants[i].prepare();
      if (warm) contestants[i].run();
      const auto start = std::chrono::steady_clock::now();
      contestants[i].run();
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      if (round >= 0) samples[i].seconds.push_back(spent.count());
    }
  }
  return samples;
}

std::string Format(double value, const std::string& unit) {
  char text[64];
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f%s%s", digits, value, unit == "x" || unit == "%" ? "" : " ",
                unit.c_str());
  return text;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) return Format(seconds * 1e6, "us");
  if (seconds < 1) return Format(seconds * 1e3, "ms");
  return Format(seconds, "s");
}

Table::Table(const Flags& flags) : file_(flags, DescribeMachine()) {
  if (!flags.header) return;
  std::printf("| work | blockd | reference | ratio | goal | reached | spread |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
}

void Table::Add(const Row& row) {
  const bool percent = !row.goal.empty() && row.goal.back() == '%';
  const std::string ratio = row.ratio == 0 ? ""
                            : percent      ? Format(100 * row.ratio, "%")
                                           : Format(row.ratio, "x");
  const std::string reached = row.goal.empty() ? "" : row.reached ? "yes" : "no";
  const std::string spread = absl::StrFormat("%.1f%%", 100 * row.spread);
  std::printf("| %s | %s | %s | %s | %s | %s | %s |\n", row.work.c_str(), row.ours.c_str(),
              row.reference.c_str(), ratio.c_str(), row.goal.c_str(), reached.c_str(),
              spread.c_str());
  std::fflush(stdout);
  std::vector<std::string> fields;
  const auto add = [&](const char* name, const std::string& text) {
    fields.push_back(absl::StrCat(Quoted(name), ": ", Quoted(text)));
  };
  add("work", row.work);
  add("blockd", row.ours);
  add("reference", row.reference);
  add("ratio", ratio);
  add("goal", row.goal);
  add("reached", reached);
  add("spread", spread);
  file_.Add(absl::StrCat("{", absl::StrJoin(fields, ", "), "}"));
}

void Table::AddAtLeast(Row row, double ratio, double limit, const std::string& unit) {
  row.ratio = ratio;
  row.goal = ">= " + (unit == "%" ? Format(100 * limit, unit) : Format(limit, unit));
  row.reached = ratio >= limit;
  Add(row);
}

void Table::AddAtMost(Row row, double ratio, double limit, const std::string& unit) {
  row.ratio = ratio;
  row.goal = "<= " + (unit == "%" ? Format(100 * limit, unit) : Format(limit, unit));
  row.reached = ratio <= limit;
  Add(row);
}

}  // namespace blockd::bench
