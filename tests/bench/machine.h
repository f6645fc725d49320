// The limits of this machine: the ceilings that results are compared with.
#ifndef BLOCKD_TESTS_BENCH_MACHINE_H_
#define BLOCKD_TESTS_BENCH_MACHINE_H_

#include <cstdint>
#include <vector>

namespace blockd::bench {

// OpenBLAS's own threads. Lets those that it no longer needs go to sleep, which takes a moment:
// they would otherwise spin beside whatever is measured next.
void SetBlasThreads(int threads);

// One call of C = A B with square matrices, through OpenBLAS and the threads that are set.
class Dgemm {
 public:
  explicit Dgemm(int n);
  void Run();
  double flops() const { return 2.0 * n_ * n_ * n_; }

 private:
  int n_;
  std::vector<double> a_, b_, c_;
};

// Reads memory that no cache holds, each thread its own part.
class MemoryReader {
 public:
  MemoryReader(int64_t bytes, int threads);
  void Run();
  double bytes() const { return static_cast<double>(data_.size() * sizeof(double)); }

 private:
  int threads_;
  std::vector<double> data_;
  volatile double sink_ = 0;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_MACHINE_H_
