// Memory of a worker, for one portion after another. Private to the smoother.
#ifndef BLOCKD_ENGINE_SMOOTHER_SCRATCH_H_
#define BLOCKD_ENGINE_SMOOTHER_SCRATCH_H_

#include "blockd/engine/smoother.h"

namespace blockd {

struct Smoother::Scratch {
  explicit Scratch(const SmoothParams& params)
      : square(params.state_size * params.state_size),
        rows(2 * params.observation_size * params.state_size),
        covariance(params.observation_size * params.observation_size),
        state(params.state_size),
        errors(params.observation_size) {}

  Doubles square, rows, covariance, state, errors;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTHER_SCRATCH_H_
