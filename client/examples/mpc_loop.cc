// A model predictive controller in small: the matrix of its horizon is factored once, and every
// tick solves for one new right-hand side. If the server lost the factorization, it is made again.
#include <cmath>
#include <cstdio>
#include <vector>

#include "blockd/client/solver_client.h"

using namespace blockd::client;  // NOLINT: an example

int main(int argc, char** argv) {
  constexpr int64_t kSteps = 32, kStates = 4, kSquare = kStates * kStates;
  std::vector<double> diagonal(kSteps * kSquare), coupling((kSteps - 1) * kSquare);
  for (int64_t i = 0; i < kSteps * kStates; ++i) {
    const int64_t entry = (i / kStates) * kSquare + (i % kStates) * (kStates + 1);
    diagonal[entry] = 2.1;
    if (i < (kSteps - 1) * kStates) coupling[entry] = -1;
  }
  const SystemView horizon = MakeSystemView(kSteps, kStates, diagonal.data(), coupling.data());

  const auto client = SolverClient::Connect(argc > 1 ? argv[1] : "127.0.0.1:7117");
  auto factored = client->Factor(horizon);
  std::vector<double> gradient(kSteps * kStates), plan(kSteps * kStates), state(kStates, 1.0);
  for (int tick = 0; tick < 100 && factored.ok(); ++tick) {
    for (int64_t i = 0; i < kStates; ++i) gradient[i] = -0.3 * state[i];
    const auto solved =
        client->Solve(factored->handle, gradient, plan, {.timeout = absl::Milliseconds(500)});
    if (absl::IsNotFound(solved.status())) {
      factored = client->Factor(horizon);  // evicted, expired, or the server was restarted
    } else if (!solved.ok()) {
      return std::fprintf(stderr, "%s\n", solved.status().ToString().c_str()), 1;
    } else {
      for (int64_t i = 0; i < kStates; ++i) state[i] += plan[i];  // apply the first step
    }
  }
  if (!factored.ok()) return std::fprintf(stderr, "%s\n", factored.status().ToString().c_str()), 1;
  std::printf("state after 100 ticks: %.3g\n", std::hypot(state[0], state[1]));
}
