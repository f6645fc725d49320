#include "tests/bench/machine.h"

#include <cblas.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace blockd::bench {
namespace {

typedef double Vector __attribute__((vector_size(64)));

// Eight independent sums hide the latency of the additions.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
double
Sum(const double* data, size_t count) {
  Vector sums[8] = {};
  const size_t step = 8 * 8;
  for (size_t i = 0; i + step <= count; i += step) {
    for (int k = 0; k < 8; ++k) {
      Vector v;
      std::memcpy(&v, data + i + 8 * k, sizeof v);
      sums[k] += v;
    }
  }
  double total = 0;
  for (const Vector& sum : sums) {
    for (int lane = 0; lane < 8; ++lane) total += sum[lane];
  }
  return total;
}

}  // namespace

void SetBlasThreads(int threads) {
  static int current = 0;
  if (current == threads) return;
  current = threads;
  openblas_set_num_threads(threads);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

Dgemm::Dgemm(int n) : n_(n), a_(n * n, 1e-3), b_(n * n, 1e-3), c_(n * n) {}

void Dgemm::Run() {
  cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, n_, n_, n_, 1.0, a_.data(), n_, b_.data(),
              n_, 0.0, c_.data(), n_);
}

MemoryReader::MemoryReader(int64_t bytes, int threads)
    : threads_(threads), data_(bytes / sizeof(double), 1.0) {}

void MemoryReader::Run() {
  std::vector<double> sums(threads_);
  std::vector<std::thread> readers;
  const size_t part = data_.size() / threads_;
  for (int t = 0; t < threads_; ++t) {
    readers.emplace_back([&, t] { sums[t] = Sum(data_.data() + t * part, part); });
  }
  for (std::thread& reader : readers) reader.join();
  for (const double sum : sums) sink_ = sink_ + sum;
}

}  // namespace blockd::bench
