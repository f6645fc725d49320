// Steps that the calls on systems with a border share: steps that may be cancelled, half solves,
// pieces of memory.
#ifndef BLOCKD_ENGINE_SOLVER_BORDER_STEPS_H_
#define BLOCKD_ENGINE_SOLVER_BORDER_STEPS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/factorization.h"
#include "blockd/engine/memory_pool.h"
#include "blockd/engine/solver.h"
#include "engine/solver/stopwatch.h"

namespace blockd {

// Steps one after another, until one fails or nobody wants the rest.
class Steps {
 public:
  // doing: "factoring a border".
  Steps(const std::atomic<bool>* cancelled, const char* doing)
      : cancelled_(cancelled), doing_(doing) {}

  template <typename Step>
  void Run(const Step& step) {
    Check();
    if (status_.ok()) status_ = step();
  }
  // Whatever has become of them: nothing may use their memory any more when it goes back.
  absl::Status End(Backend& backend, Track track) {
    absl::Status synchronized = backend.Synchronize(track);
    if (status_.ok()) status_ = std::move(synchronized);
    Check();
    return status_;
  }

 private:
  void Check() {
    if (status_.ok() && IsCancelled(cancelled_)) {
      status_ = absl::CancelledError(absl::StrCat("cancelled while ", doing_));
    }
  }

  const std::atomic<bool>* const cancelled_;
  const char* const doing_;
  absl::Status status_;
};

// Packed columns of a chain's shape, what a solve of them needs beside, and a few doubles.
struct ColumnsWork {
  DeviceBuffer buffer;
  void* columns = nullptr;
  void* chains = nullptr;
  double* doubles = nullptr;

  static int64_t ColumnBytes(const EliminationPlan& plan, int64_t count) {
    return plan.shape().rows() * count * ScalarBytes(plan.shape().scalar);
  }
  static int64_t ChainBytes(const EliminationPlan& plan, int64_t count) {
    return plan.solve_chain_scalars(count) * ScalarBytes(plan.shape().scalar);
  }
  // `columns`: bytes of the columns themselves, 0 if they lie elsewhere.
  static int64_t Bytes(int64_t columns, int64_t chains, int64_t doubles) {
    return MemoryPool::Rounded(columns) + MemoryPool::Rounded(chains) +
           MemoryPool::Rounded(doubles * int64_t{sizeof(double)});
  }
  static absl::StatusOr<ColumnsWork> Take(MemoryPool& pool, int64_t columns, int64_t chains,
                                          int64_t doubles) {
    absl::StatusOr<DeviceBuffer> buffer = pool.Allocate(Bytes(columns, chains, doubles));
    if (!buffer.ok()) return buffer.status();
    ColumnsWork work;
    work.buffer = *std::move(buffer);
    work.columns = work.buffer.data();
    work.chains = work.buffer.data() + MemoryPool::Rounded(columns);
    work.doubles = reinterpret_cast<double*>(work.buffer.data() + MemoryPool::Rounded(columns) +
                                             MemoryPool::Rounded(chains));
    return work;
  }
};

inline BorderColumns ColumnsOf(const Factorization& factorization) {
  const Border& border = factorization.border();
  return {factorization.shape(), border.columns(), border.rows()};
}

// x = inv(L) x or inv(L)' x for `columns` packed columns.
inline absl::Status SolveHalf(Backend& backend, Track track, const EliminationPlan& plan,
                              const SolveSystem& system, SolvePart part,
                              const std::atomic<bool>* cancelled) {
  SolveBatch batch{&plan, {&system, 1}};
  batch.part = part;
  batch.stop = cancelled;
  return backend.Solve(track, batch, [cancelled] { return !IsCancelled(cancelled); });
}

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_BORDER_STEPS_H_
