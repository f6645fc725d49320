// Names of models: numbers of 256 bits, as bytes. Equal names mean equal matrices A.
//
// Pure functions, thread-safe.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_FINGERPRINT_H_
#define BLOCKD_SERVER_CORE_SMOOTH_FINGERPRINT_H_

#include <cstddef>
#include <string>

#include "blockd/engine/smooth_model.h"
#include "blockd/engine/step_pool.h"

namespace blockd::server {

// Names everything that the A of all systems depend on. The threads of `pool` help.
std::string ModelFingerprint(const SmoothParams& params, StepPool& pool);
// Names that, and the observations that are missing in one system.
std::string SystemFingerprint(const std::string& model, const MissingPatterns& patterns,
                              size_t system);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_FINGERPRINT_H_
