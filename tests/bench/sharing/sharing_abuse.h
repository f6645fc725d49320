// The loads of sharing_load.h as functions: each runs in threads of the load's process and does not
// return before that ends.
#ifndef BLOCKD_TESTS_BENCH_SHARING_SHARING_ABUSE_H_
#define BLOCKD_TESTS_BENCH_SHARING_SHARING_ABUSE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/sharing/sharing_load.h"

namespace blockd::bench {

// The progress that the threads of a load report. Thread-safe.
struct Progress {
  std::atomic<int64_t> answered{0}, refused{0};
  std::atomic<int> threads_started{0}, threads_ready{0};
  void Count(bool ok) { ++(ok ? answered : refused); }
};

struct Place {
  int port = 0;
  LoadSize size;
};

struct Abuse {
  LoadKind kind;
  int threads = 1;
  void (*run)(const Place& place, Progress& progress) = nullptr;
};

inline void Nap(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

const std::vector<Abuse>& CallAbuses();     // with calls: sharing_calls.cc
const std::vector<Abuse>& MessageAbuses();  // with what messages hold: sharing_calls.cc
const std::vector<Abuse>& FrameAbuses();    // with frames of HTTP/2: sharing_frames.cc
const std::vector<Abuse>& HonestWork();     // sharing_calls.cc

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_SHARING_ABUSE_H_
