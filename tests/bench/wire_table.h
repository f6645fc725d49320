// The cost of a server in its own process to its callers, whichever way they come: a table with a
// goal a row, and beside it what gRPC or TCP alone costs in the same run.
#ifndef BLOCKD_TESTS_BENCH_WIRE_TABLE_H_
#define BLOCKD_TESTS_BENCH_WIRE_TABLE_H_

#include <cstdint>
#include <string>

#include "tests/bench/bench_flags.h"

namespace blockd::bench {

constexpr int64_t kUploadChunkBytes = int64_t{2} << 20;  // of a matrix, a message

struct WireOptions {
  std::string blockd, blockctl, grpc_bench;  // the programs
  std::string backend;                       // the server's --backend
  std::string tcmalloc;                      // its library, for more rows; empty: without them
  double seconds = 1.5;                      // of each row
  int64_t kalman_blocks = 100;               // N of a smoother
  int64_t kalman_block_size = 256;           // n
  int64_t upload_blocks = 256;               // N of the matrices that are uploaded
  int64_t upload_block_size = 1024;          // n
  bool two_devices = false;                  // only what two devices do that one does
};

// Prints the rows and keeps them for the result's file. Ends the program, saying why, where one of
// the programs fails.
void PrintWireTable(const Flags& flags, const WireOptions& options);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_WIRE_TABLE_H_
