#include "tests/bench/reference/cudss_reference.h"

#if __has_include(<cudss.h>)
#include <cudss.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "tests/bench/reference/cuda_check.h"

namespace blockd::bench {
namespace {

using blockd::bench::Must;
void Must(cudssStatus_t status) {
  if (status == CUDSS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "engine_bench: cuDSS status %d\n", static_cast<int>(status));
  std::abort();
}

// The functions that are used, by their names in the library.
struct Library {
  decltype(&cudssCreate) create = nullptr;
  decltype(&cudssConfigCreate) config_create = nullptr;
  decltype(&cudssDataCreate) data_create = nullptr;
  decltype(&cudssDestroy) destroy = nullptr;
  decltype(&cudssConfigDestroy) config_destroy = nullptr;
  decltype(&cudssDataDestroy) data_destroy = nullptr;
  decltype(&cudssMatrixCreateDn) create_dense = nullptr;
  decltype(&cudssMatrixCreateCsr) create_csr = nullptr;
  decltype(&cudssMatrixDestroy) matrix_destroy = nullptr;
  decltype(&cudssExecute) execute = nullptr;

  bool Load(std::string* why) {
    void* library = dlopen("libcudss.so.1", RTLD_NOW);
    if (library == nullptr) library = dlopen("libcudss.so.0", RTLD_NOW);
    if (library == nullptr) {
      *why = dlerror();
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) *why = std::string("libcudss has no ") + name;
    };
    find(create, "cudssCreate");
    find(config_create, "cudssConfigCreate");
    find(data_create, "cudssDataCreate");
    find(destroy, "cudssDestroy");
    find(config_destroy, "cudssConfigDestroy");
    find(data_destroy, "cudssDataDestroy");
    find(create_dense, "cudssMatrixCreateDn");
    find(create_csr, "cudssMatrixCreateCsr");
    find(matrix_destroy, "cudssMatrixDestroy");
    find(execute, "cudssExecute");
    return why->empty();
  }
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : bytes_(count * sizeof(T)) {
    Must(cudaMalloc(&data_, bytes_));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Must(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// The upper triangle in compressed rows.
struct UpperRows {
  std::vector<int32_t> starts, columns;
  std::vector<double> values;

  explicit UpperRows(const problems::Problem& problem) {
    const int64_t n = problem.block_size;
    starts.push_back(0);
    for (int64_t i = 0; i < problem.num_blocks; ++i) {
      const double* diagonal = problem.diagonal.data() + i * n * n;
      for (int64_t row = 0; row < n; ++row) {
        for (int64_t column = row; column < n; ++column) {
          Add(i * n + column, diagonal[row * n + column]);
        }
        for (int64_t column = 0; i + 1 < problem.num_blocks && column < n; ++column) {
          Add((i + 1) * n + column, problem.coupling[i * n * n + row * n + column]);
        }
        starts.push_back(static_cast<int32_t>(values.size()));
      }
    }
  }
  void Add(int64_t column, double value) {
    columns.push_back(static_cast<int32_t>(column));
    values.push_back(value);
  }
};

class Cudss : public CudssReference {
 public:
  Cudss(const Library& library, const problems::Problem& problem, const UpperRows& rows)
      : library_(library),
        rows_(problem.rows()),
        starts_(rows.starts),
        columns_(rows.columns),
        values_(rows.values),
        b_(rows_ * kMostColumns),
        x_(rows_ * kMostColumns) {
    Must(library_.create(&handle_));
    Must(library_.config_create(&config_));
    Must(library_.data_create(handle_, &data_));
    Must(library_.create_csr(&matrix_, rows_, rows_, static_cast<int64_t>(rows.values.size()),
                             starts_.data(), nullptr, columns_.data(), values_.data(), CUDA_R_32I,
                             CUDA_R_32I, CUDA_R_64F, CUDSS_MTYPE_SPD, CUDSS_MVIEW_UPPER,
                             CUDSS_BASE_ZERO));
    analysis_seconds_ = Run(CUDSS_PHASE_ANALYSIS, 1);
    first_factor_seconds_ = Run(CUDSS_PHASE_FACTORIZATION, 1);
  }
  ~Cudss() override {
    library_.matrix_destroy(matrix_);
    library_.data_destroy(handle_, data_);
    library_.config_destroy(config_);
    library_.destroy(handle_);
  }

  double analysis_seconds() const override { return analysis_seconds_; }
  double first_factor_seconds() const override { return first_factor_seconds_; }
  double Refactor() override { return Run(CUDSS_PHASE_REFACTORIZATION, 1); }
  double Solve(const std::vector<double>& b, int64_t columns) override {
    solved_ = columns;
    Must(cudaMemcpy(b_.data(), b.data(), rows_ * columns * sizeof(double), cudaMemcpyHostToDevice));
    return Run(CUDSS_PHASE_SOLVE, columns);
  }
  std::vector<double> Solution() const override {
    std::vector<double> x(rows_ * solved_);
    Must(cudaMemcpy(x.data(), x_.data(), x.size() * sizeof(double), cudaMemcpyDeviceToHost));
    return x;
  }

 private:
  static constexpr int64_t kMostColumns = 16;

  double Run(int phase, int64_t columns) {
    cudssMatrix_t x, b;
    Must(library_.create_dense(&x, rows_, columns, rows_, x_.data(), CUDA_R_64F,
                               CUDSS_LAYOUT_COL_MAJOR));
    Must(library_.create_dense(&b, rows_, columns, rows_, b_.data(), CUDA_R_64F,
                               CUDSS_LAYOUT_COL_MAJOR));
    Must(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    Must(library_.execute(handle_, phase, config_, data_, matrix_, x, b));
    Must(cudaDeviceSynchronize());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    Must(library_.matrix_destroy(x));
    Must(library_.matrix_destroy(b));
    return seconds;
  }

  const Library library_;
  const int64_t rows_;
  const DeviceArray<int32_t> starts_, columns_;
  const DeviceArray<double> values_, b_, x_;
  cudssHandle_t handle_ = nullptr;
  cudssConfig_t config_ = nullptr;
  cudssData_t data_ = nullptr;
  cudssMatrix_t matrix_ = nullptr;
  double analysis_seconds_ = 0, first_factor_seconds_ = 0;
  int64_t solved_ = 0;
};

}  // namespace

std::unique_ptr<CudssReference> CudssReference::Make(const problems::Problem& problem,
                                                     std::string* why) {
  Library library;
  if (!library.Load(why)) return nullptr;
  return std::make_unique<Cudss>(library, problem, UpperRows(problem));
}

}  // namespace blockd::bench

#else

namespace blockd::bench {

std::unique_ptr<CudssReference> CudssReference::Make(const problems::Problem&, std::string* why) {
  *why = "this engine_bench was built where cudss.h was not found (CUDSS_INCLUDE_DIR)";
  return nullptr;
}

}  // namespace blockd::bench

#endif
