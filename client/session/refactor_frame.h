// A frame of refactors of a SolveSession until all of it is answered: what of it is to be sent,
// what came of it, and what heals. Internal to the client.
//
// One thread at a time; it never waits.
#ifndef BLOCKD_CLIENT_SESSION_REFACTOR_FRAME_H_
#define BLOCKD_CLIENT_SESSION_REFACTOR_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/calls/healer.h"
#include "client/calls/solve_many.h"
#include "client/wire/wire.h"

namespace blockd::client {

class RefactorFrame {
 public:
  struct Message {
    v1::FactorSolveManyRequest request;  // but for these two
    grpc::Slice matrix, rhs;
    std::string route;
    bool heals = false;             // one of them does
    std::span<std::byte> solution;  // where the answer goes
  };

  // `systems` and `rhs` are read here and by the first Next, and copied where something heals.
  RefactorFrame(std::span<const Factorization> factorizations, std::span<const SystemView> systems,
                const ManySolves& layout, Bytes rhs, std::span<std::byte> solution,
                const SolveOptions& solve, const FactorOptions& factor);

  bool heals() const { return max_restores_ >= 0; }
  // How often one frame is sent for what was restored.
  int max_restores() const { return max_restores_; }
  // True if nothing is left to be sent.
  bool done() const { return left_.empty(); }
  // The message for the systems left that are on the server of the first of them. Not when done.
  Message Next();
  // The last message's solutions go to their places, where its answer did not go there itself.
  void Place();
  // Takes the answer to the last message. Returns the systems that are lost, to be restored.
  std::vector<size_t> Take(absl::StatusOr<SolveResult> answer);
  // Restores it; `done` as Healer::Restore has it.
  void Restore(size_t lost, Healer::Done done);
  // Takes the outcome of that restoration.
  void Restored(size_t lost, const absl::Status& status);
  // The same without a restoration: to be sent again.
  void Again(const std::vector<size_t>& lost);
  // The result for all systems.
  absl::StatusOr<SolveResult> Result();

 private:
  const std::vector<Factorization> factorizations_;
  std::vector<OwnedSystem> systems_;  // copies of those that heal
  const std::vector<ManySolves::Solve> solves_;
  Bytes rhs_;
  std::vector<std::byte> rhs_copy_;
  const std::span<std::byte> solution_;
  const SolveOptions solve_;
  const FactorOptions factor_;
  int max_restores_ = -1;
  std::vector<Healer::Current> now_;  // what each stood for when it was last sent
  std::vector<size_t> left_, sent_;   // to be sent; those of the last message
  std::vector<std::byte> scratch_;    // of its solutions, where it is not of all
  bool any_answer_ = false;
  SolveResult result_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SESSION_REFACTOR_FRAME_H_
