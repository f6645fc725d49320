// Rows of a benchmark: what was measured, what it is compared with, and the goal. For one thread.
#ifndef BLOCKD_TESTS_BENCH_BENCH_TABLE_H_
#define BLOCKD_TESTS_BENCH_BENCH_TABLE_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/bench_flags.h"
#include "tests/bench/result_file.h"

namespace blockd::bench {

double Now();  // seconds, of a clock that is never set

// Seconds, one entry a repetition.
struct Samples {
  std::vector<double> seconds;

  double median() const;
  double quantile(double q) const;  // q from 0 to 1
  // Half the distance between the quartiles, over the median.
  double spread() const;
};

// Runs the functions in turn, `repetitions` rounds after one round that is not counted. Each call
// is preceded by `prepare` (may be null), which is not timed.
struct Contestant {
  std::function<void()> prepare;
  std::function<void()> run;
};
// `warm`: each timed call comes right after an untimed one of its own, so that no contestant pays
// for the threads and the caches as another left them.
std::vector<Samples> Interleave(int repetitions, const std::vector<Contestant>& contestants,
                                bool warm = false);

struct Row {
  std::string work = {};
  std::string ours = {};       // with its unit
  std::string reference = {};  // what it is compared with, with its unit
  double ratio = 0;            // 0: there is none
  std::string goal = {};       // "": there is none
  bool reached = true;
  double spread = 0;  // of our samples
};

// "1.23 ms"; three digits.
std::string FormatSeconds(double seconds);
std::string Format(double value, const std::string& unit);

// Prints each row as it is added, in Markdown, and keeps it for the result's file.
class Table {
 public:
  explicit Table(const Flags& flags);
  void Add(const Row& row);
  // A row that compares `value` with a limit: at least, or at most.
  void AddAtLeast(Row row, double ratio, double limit, const std::string& unit = "x");
  void AddAtMost(Row row, double ratio, double limit, const std::string& unit = "x");

 private:
  ResultFile file_;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_BENCH_TABLE_H_
