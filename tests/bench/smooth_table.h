// The time to smooth a series on a server, by the size of its model: a table with a goal a row.
#ifndef BLOCKD_TESTS_BENCH_SMOOTH_TABLE_H_
#define BLOCKD_TESTS_BENCH_SMOOTH_TABLE_H_

#include "blockd/client/solver_client.h"
#include "tests/bench/bench_table.h"

namespace blockd::bench {

// Adds the rows; `quick`: a small one, called once. Ends the program, saying why, where a call
// fails or its answer is wrong.
void AddSmoothRows(const client::SolverClient& client, bool quick, Table& table);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SMOOTH_TABLE_H_
