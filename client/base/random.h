// Random numbers and names. Internal to the client. Thread-safe.
#ifndef BLOCKD_CLIENT_BASE_RANDOM_H_
#define BLOCKD_CLIENT_BASE_RANDOM_H_

#include <cstddef>
#include <string>

namespace blockd::client {

double UniformRandom();  // from [0, 1)
std::string RandomBytes(size_t count);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BASE_RANDOM_H_
