#include "tests/bench/reference/device_ceilings.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/bench/reference/cuda_check.h"

namespace blockd::bench {
namespace {

template <typename Work>
double MedianSeconds(int repetitions, const Work& work) {
  cudaEvent_t start, end;
  Check(cudaEventCreate(&start));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i <= repetitions; ++i) {
    Check(cudaEventRecord(start));
    work();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start, end));
    if (i > 0) times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

// cuBLAS is looked for when the benchmark runs: nothing else here needs it.
class Dgemm {
 public:
  Dgemm() {
    library_ = dlopen("libcublas.so.13", RTLD_NOW);
    if (library_ == nullptr) library_ = dlopen("libcublas.so.12", RTLD_NOW);
    if (library_ == nullptr) return;
    create_ = reinterpret_cast<Create>(dlsym(library_, "cublasCreate_v2"));
    dgemm_ = reinterpret_cast<Multiply>(dlsym(library_, "cublasDgemm_v2"));
    if (create_ == nullptr || create_(&handle_) != 0) dgemm_ = nullptr;
  }
  bool found() const { return dgemm_ != nullptr; }
  void Run(int n, const double* a, const double* b, double* c) const {
    const double one = 1, zero = 0;
    dgemm_(handle_, 0, 0, n, n, n, &one, a, n, b, n, &zero, c, n);
  }

 private:
  using Create = int (*)(void**);
  using Multiply = int (*)(void*, int, int, int, int, int, const double*, const double*, int,
                           const double*, int, const double*, double*, int);
  void* library_ = nullptr;
  void* handle_ = nullptr;
  Create create_ = nullptr;
  Multiply dgemm_ = nullptr;
};

}  // namespace

Ceilings MeasureCeilings(Backend& backend, bool quick) {
  Ceilings ceilings;
  const int n = quick ? 1024 : 8192;
  const int64_t bytes = int64_t{8} * n * n;
  auto buffer = backend.pool().Allocate(3 * bytes);
  if (!buffer.ok()) std::abort();
  double* a = reinterpret_cast<double*>(buffer->data());
  double* b = a + int64_t{n} * n;
  double* c = b + int64_t{n} * n;
  std::vector<double> values(int64_t{n} * n);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>((i * 2654435761u) >> 8 & 0xffff) / 65536 - 0.5;
  }
  for (double* matrix : {a, b}) {
    Check(cudaMemcpy(matrix, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  const int repetitions = quick ? 1 : 10;
  ceilings.bytes = 2.0 * static_cast<double>(bytes) / MedianSeconds(repetitions, [&] {
                     Check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice));
                   });
  const Dgemm dgemm;
  if (dgemm.found()) {
    const double seconds = MedianSeconds(repetitions, [&] { dgemm.Run(n, a, b, c); });
    ceilings.flops = 2.0 * n * n * n / seconds;
  } else {
    std::fprintf(stderr, "engine_bench: no cuBLAS found, limits count memory alone\n");
    ceilings.flops = 1e300;
  }
  Check(cudaDeviceSynchronize());
  return ceilings;
}

}  // namespace blockd::bench
