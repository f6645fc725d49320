// The loads that others put on a server while a caller of its own is measured: work, and abuse.
// Each runs in a process of its own, as if it were on another machine: on processors of its own,
// or, where there are too few, 19 nicer than the server.
#ifndef BLOCKD_TESTS_BENCH_SHARING_SHARING_LOAD_H_
#define BLOCKD_TESTS_BENCH_SHARING_SHARING_LOAD_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace blockd::bench {

struct LoadKind {
  std::string name;  // as --load takes it
  std::string what;  // as the table says it
};
std::vector<LoadKind> QuotaAttacks();
std::vector<LoadKind> WireAttacks();

// The work of others.
inline constexpr char kFactors[] = "factors";           // N x n of LoadSize, palette form
inline constexpr char kFullFactors[] = "full_factors";  // the same, every block sent
inline constexpr char kSolves[] = "solves";             // 64 callers of one handle

struct LoadSize {
  int64_t num_blocks = 128;
  int64_t block_size = 512;
  int64_t num_rhs = 1;  // of solves
};

// Leaves a quarter of at least four processors to the loads: this process, and what it starts from
// now on, has the others. Returns how many the loads have; 0: they are nicer instead.
int LeaveProcessorsToLoads();

// In the process of the load: goes on until its standard input ends. Says `ready` once it is under
// way, and at the end how often it was answered and refused. False for a name that is none.
bool RunLoad(const std::string& name, int port, const LoadSize& size);

// In the process that measures. One thread.
class Load {
 public:
  // Starts the load, as this program with --load; returns once it is under way.
  Load(const std::string& name, int port, const LoadSize& size);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  // Ends it and returns what it said of itself.
  std::string Stop();

 private:
  std::string ReadLine();
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_SHARING_LOAD_H_
