// The output of `blockctl bench`.
#ifndef BLOCKD_CLIENT_BLOCKCTL_LOAD_BENCH_TEXT_H_
#define BLOCKD_CLIENT_BLOCKCTL_LOAD_BENCH_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/blockctl/load/load.h"

namespace blockd::blockctl {

struct BenchTitle {
  std::string problem;
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  int64_t num_rhs = 0;
  int connections = 0;
  int handles = 0;
  int frames = 0;                       // solves of one message; 0: one
  std::vector<std::string> operations;  // names, as RunLoad numbers them
};

std::string BenchTable(const BenchTitle& title, const LoadOptions& options,
                       const LoadReport& report);
std::string BenchJson(const BenchTitle& title, const LoadOptions& options,
                      const LoadReport& report);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_LOAD_BENCH_TEXT_H_
