// Requests with deadlines that one device serves one at a time, replayed in several orders. Pure.
#ifndef BLOCKD_TESTS_BENCH_SHARING_DEADLINE_SIMULATION_H_
#define BLOCKD_TESTS_BENCH_SHARING_DEADLINE_SIMULATION_H_

#include <cstddef>
#include <vector>

namespace blockd::bench {

// In seconds of one clock.
struct TimedRequest {
  double ready = 0;    // when the device could begin
  double due = 0;      // when it has to be done
  double service = 0;  // that it takes
};

enum class Order {
  kArrival,         // everything, late or not
  kDeadline,        // the earliest first; what is overdue is dropped
  kDeadlineInTime,  // the same, of what would be done in time
  // The same, of the most that could be done in time if nothing more came: Moore, An n job, one
  // machine sequencing algorithm for minimizing the number of late jobs, 1968.
  kMostInTime,
};

// Which of them are done in time. They are in the order of `ready`.
std::vector<bool> DoneInTime(const std::vector<TimedRequest>& requests, Order order);

// The part that is not done in time in the best of the orders.
double LeastMissedPart(const std::vector<TimedRequest>& requests);

// The service time of each request, for requests served in the order in which they came: from when
// the device was free and the request there, until it was done.
std::vector<double> ServiceTimes(const std::vector<double>& ready, const std::vector<double>& done);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_DEADLINE_SIMULATION_H_
