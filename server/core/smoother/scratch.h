// Memory of whoever works on a portion. Private to the smoother.
#ifndef BLOCKD_SERVER_CORE_SMOOTHER_SCRATCH_H_
#define BLOCKD_SERVER_CORE_SMOOTHER_SCRATCH_H_

#include <algorithm>

#include "server/core/smoother/smoother.h"

namespace blockd::server {

struct Smoother::Scratch {
  explicit Scratch(const SmoothParams& params)
      : square(params.state_size * params.state_size),
        rows(params.observation_size * params.state_size),
        products(params.observation_size * params.state_size),
        state(params.state_size),
        errors(params.observation_size) {}

  Doubles square, rows, products, state, errors;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTHER_SCRATCH_H_
