// A benchmark's result as a file of the tree, tests/bench/results/*.json: when, on what, by which
// command and of which commit it was measured, and its rows. tests/lint/write_docs.py makes the
// documentation's tables from these files. For one thread.
#ifndef BLOCKD_TESTS_BENCH_RESULT_FILE_H_
#define BLOCKD_TESTS_BENCH_RESULT_FILE_H_

#include <string>
#include <vector>

#include "tests/bench/bench_flags.h"

namespace blockd::bench {

// Text as a JSON string, quotes included.
std::string Quoted(const std::string& text);

class ResultFile {
 public:
  // The file is `flags.json`; nothing is written where that is empty. `hardware` is what was
  // measured, unless `flags.hardware` says it.
  ResultFile(const Flags& flags, const std::string& hardware);
  // Writes the file. A program that exits because an answer was wrong leaves none.
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // Adds a row, a JSON object.
  void Add(std::string row) { rows_.push_back(std::move(row)); }

 private:
  const Flags flags_;
  const std::string hardware_;
  std::vector<std::string> rows_;
};

// The processors of this machine and its distribution: "2 x AMD EPYC ..., Debian GNU/Linux 12".
std::string DescribeMachine();

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_RESULT_FILE_H_
