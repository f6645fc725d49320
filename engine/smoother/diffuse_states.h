// States of whose x(1) nothing is known. Pure function.
#ifndef BLOCKD_ENGINE_SMOOTHER_DIFFUSE_STATES_H_
#define BLOCKD_ENGINE_SMOOTHER_DIFFUSE_STATES_H_

#include <vector>

#include "blockd/engine/smooth_model.h"

namespace blockd {

// True for states whose unit vectors are columns of G.
std::vector<bool> DiffuseStates(const SmoothParams& params);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTHER_DIFFUSE_STATES_H_
