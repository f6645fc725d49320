// Time and cancellation, which the Solver's calls share.
#ifndef BLOCKD_ENGINE_SOLVER_STOPWATCH_H_
#define BLOCKD_ENGINE_SOLVER_STOPWATCH_H_

#include <atomic>
#include <chrono>
#include <utility>

namespace blockd {

class Stopwatch {
 public:
  // Seconds since the last Lap.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

inline bool IsCancelled(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_STOPWATCH_H_
