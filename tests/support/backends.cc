#include "tests/support/backends.h"

#include <cstdlib>
#include <iostream>

#include "absl/strings/str_split.h"

namespace blockd::test {
namespace {

BackendOptions ToBackendOptions(const SolverOptions& options) {
  BackendOptions out;
  out.memory_bytes = options.memory_bytes;
  out.host_memory_bytes = options.host_memory_bytes;
  out.cpu_threads = options.cpu_threads;
  out.cpu_lanes = options.cpu_lanes;
  return out;
}

std::vector<std::string> WantedBackends() {
  const char* wanted = std::getenv("BLOCKD_TEST_BACKENDS");
  if (wanted == nullptr) return {};
  return absl::StrSplit(wanted, ',', absl::SkipWhitespace());
}

std::vector<std::string> FindBackends() {
  std::vector<std::string> found = WantedBackends();
  if (!found.empty()) return found;
  for (const std::string& name : BuiltBackends()) {
    if (CreateBackend(name, ToBackendOptions({})).ok()) found.push_back(name);
  }
  return found;
}

}  // namespace

std::vector<std::string> TestBackends() {
  static const std::vector<std::string> backends = FindBackends();
  return backends;
}

std::string ServerBackend() {
  const std::vector<std::string> wanted = WantedBackends();
  return wanted.empty() ? "cpu" : wanted.front();
}

std::unique_ptr<Solver> MakeSolver(const std::string& backend, const SolverOptions& options) {
  absl::StatusOr<std::unique_ptr<Backend>> created =
      CreateBackend(backend, ToBackendOptions(options));
  if (!created.ok()) {
    std::cerr << "backend " << backend << ": " << created.status() << std::endl;
    std::abort();
  }
  return std::make_unique<Solver>(*std::move(created));
}

}  // namespace blockd::test
