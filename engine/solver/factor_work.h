// A system that Solver::Factor is at. Private to the solver.
#ifndef BLOCKD_ENGINE_SOLVER_FACTOR_WORK_H_
#define BLOCKD_ENGINE_SOLVER_FACTOR_WORK_H_

#include "blockd/engine/solver.h"

namespace blockd {

// One system under way: its item, its memory, its place in the outcomes.
struct Solver::FactorWork {
  const FactorItem* item = nullptr;
  FactorOutcome* outcome = nullptr;
  BlockTridiagonalView matrix;  // as the device sees it
  DeviceBuffer factor;
  void* chains = nullptr;
  DeviceBuffer own_chains;  // this and the next are empty where the batch's memory serves
  StagedMatrix uploaded;
  bool substitutes = false;  // some blocks of the factor hold -L
  DeviceBuffer information;  // what a matrix in information form goes through

  void GiveBack() {
    factor.Reset();
    own_chains.Reset();
    uploaded = StagedMatrix();
    information.Reset();
  }
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_FACTOR_WORK_H_
