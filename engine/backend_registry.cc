#include "blockd/engine/backend_registry.h"

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "blockd/engine/registered_memory.h"
#include "engine/cpu/cpu_backend.h"
#ifdef BLOCKD_WITH_GPU
#include "engine/gpu/gpu_backend.h"
#endif

namespace blockd {
namespace {

struct Entry {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)> create;
  std::function<absl::StatusOr<int32_t>()> count;
};

// In order of preference.
const std::vector<Entry>& Entries() {
  static const std::vector<Entry>* const entries = new std::vector<Entry>{
#ifdef BLOCKD_WITH_GPU
      {GpuBackendName(), CreateGpuBackend, CountGpus},
#endif
      {"cpu", CreateCpuBackend, [] { return 1; }},
  };
  return *entries;
}

}  // namespace

std::vector<std::string> BuiltBackends() {
  std::vector<std::string> names;
  for (const Entry& entry : Entries()) names.push_back(entry.name);
  return names;
}

absl::StatusOr<int32_t> CountDevices(std::string_view name) {
  for (const Entry& entry : Entries()) {
    if (name == entry.name) return entry.count();
  }
  return absl::NotFoundError(absl::StrCat("this build has no backend ", std::string(name),
                                          ", it has ", absl::StrJoin(BuiltBackends(), ", ")));
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options,
                                                       std::string* passed_over) {
  if (options.memory_bytes < 0 || options.cpu_threads < 0 || options.cpu_lanes < 0 ||
      options.device < 0 || options.memory_parts < 1) {
    return absl::InvalidArgumentError("backend options must not be negative, memory_parts not 0");
  }
  for (const Entry& entry : Entries()) {
    if (name != "auto" && name != entry.name) continue;
    absl::StatusOr<std::unique_ptr<Backend>> backend = entry.create(options);
    if (name != "auto" || !absl::IsNotFound(backend.status())) return backend;
    if (passed_over != nullptr) *passed_over = std::string(backend.status().message());
  }
  if (name == "cuda" || name == "rocm") {
    return absl::NotFoundError(absl::StrCat("this build has no backend ", std::string(name),
                                            ", it has ", absl::StrJoin(BuiltBackends(), ", ")));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("backend is \"", std::string(name), "\", expected auto, cuda, rocm or cpu"));
}

absl::StatusOr<RegisteredMemory> RegisteredMemory::Register(void* begin, int64_t bytes) {
#ifdef BLOCKD_WITH_GPU
  absl::Status status = RegisterHostMemory(begin, bytes);
  if (!status.ok()) return status;
  return RegisteredMemory(begin);
#else
  (void)begin, (void)bytes;
  return absl::UnimplementedError("this build has no GPU backend");
#endif
}

RegisteredMemory::~RegisteredMemory() {
#ifdef BLOCKD_WITH_GPU
  if (begin_ != nullptr) UnregisterHostMemory(begin_);
#endif
}

}  // namespace blockd
