// A program outside the project that links only the installed client. There is no server: the call
// must come back with a status that says so.
#include <cstdio>
#include <vector>

#include "blockd/client/solver_client.h"

int main() {
  using namespace blockd::client;
  auto client = SolverClient::Connect("unix:nobody-listens-here.sock");
  if (!client.ok()) return 1;
  const std::vector<double> diagonal = {2.0, 2.0}, coupling = {-1.0};
  FactorOptions options;
  options.timeout = absl::Milliseconds(200);
  auto factored = client->Factor(MakeSystemView(2, 1, diagonal.data(), coupling.data()), options);
  const absl::StatusCode code = factored.status().code();
  if (code != absl::StatusCode::kUnavailable && code != absl::StatusCode::kDeadlineExceeded)
    return 1;
  std::printf("as expected: %s\n", factored.status().ToString().c_str());
  return 0;
}
