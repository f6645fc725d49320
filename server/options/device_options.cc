#include "server/options/device_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/machine_limits.h"
#include "server/core/common/handle.h"
#include "server/options/flag_checks.h"

namespace blockd::server {
namespace {

constexpr int32_t kMostIndex = 1024;
constexpr char kDeviceList[] = "all, or a list of indices, as 0,1 or cuda:0,cuda:1 or cpu,cpu";

bool IsBackend(absl::string_view word) {
  return word == "auto" || word == "cuda" || word == "rocm" || word == "cpu";
}

// One word of the list; nullopt if it is none.
std::optional<DeviceChoice> ParseDevice(absl::string_view word, const std::string& backend) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(word, absl::MaxSplits(':', 1));
  DeviceChoice choice{.backend = backend};
  absl::string_view index = word;
  if (IsBackend(parts.first)) {
    choice.backend = std::string(parts.first);
    if (parts.first == word) return choice;
    index = parts.second;
  }
  const bool digits = !index.empty() && std::all_of(index.begin(), index.end(),
                                                    [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || !absl::SimpleAtoi(index, &choice.index) || choice.index > kMostIndex) {
    return std::nullopt;
  }
  return choice;
}

// How many of them are on the CPU, or would be.
int32_t CpusOf(const std::vector<DeviceChoice>& choices) {
  return static_cast<int32_t>(
      std::count_if(choices.begin(), choices.end(), [](const DeviceChoice& choice) {
        return choice.backend == "cpu" || choice.backend == "auto";
      }));
}

// The threads of one of several CPUs: as many for each, and one more for the first ones.
int32_t Part(int32_t threads, int32_t parts, int32_t part) {
  return std::max(1, threads / parts + (part < threads % parts ? 1 : 0));
}

}  // namespace

absl::StatusOr<std::vector<DeviceChoice>> ParseDevices(const DeviceOptions& options) {
  std::vector<DeviceChoice> choices;
  if (options.devices == "all") return std::vector<DeviceChoice>{{options.backend, 0}};
  for (const absl::string_view word : absl::StrSplit(options.devices, ',')) {
    const std::optional<DeviceChoice> choice = ParseDevice(word, options.backend);
    if (!choice) return RefuseFlag("devices", options.devices, kDeviceList);
    if (options.backend != "auto" && choice->backend != options.backend) {
      return RefuseFlag(
          "devices", options.devices,
          absl::StrCat("devices of --backend=", options.backend, ", or --backend=auto"));
    }
    const bool numbered = choice->backend != "cpu" || word != "cpu";
    if (numbered && std::find(choices.begin(), choices.end(), *choice) != choices.end()) {
      return RefuseFlag("devices", options.devices, absl::StrCat(word, " once"));
    }
    choices.push_back(*choice);
  }
  if (choices.size() > kMaxShards) {
    return RefuseFlag("devices", absl::StrCat(choices.size(), " devices"),
                      absl::StrCat("at most ", kMaxShards));
  }
  return choices;
}

absl::Status CheckDevices(DeviceOptions* options) {
  const absl::StatusOr<std::vector<DeviceChoice>> choices = ParseDevices(*options);
  if (!choices.ok()) return choices.status();
  BackendOptions& device = options->device;
  if (device.cpu_threads == 0) device.cpu_threads = MachineProcessors();
  if (device.cpu_lanes == 0) {
    device.cpu_lanes = std::max(1, MachineProcessors() / std::max(1, CpusOf(*choices)));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedDevices> OpenDevices(const DeviceOptions& options) {
  absl::StatusOr<std::vector<DeviceChoice>> choices = ParseDevices(options);
  if (!choices.ok()) return choices.status();
  const int32_t cpus = std::max(1, CpusOf(*choices));
  OpenedDevices opened;
  std::string found = "auto";  // what that turned out to be
  int32_t cpu = 0;             // of those that are, or would be
  bool has_host_memory = false;
  for (size_t i = 0; i < choices->size(); ++i) {
    DeviceChoice choice = (*choices)[i];
    const bool is_auto = choice.backend == "auto";
    if (is_auto) choice.backend = found;
    BackendOptions device = options.device;
    device.device = choice.index;
    device.cpu_threads = Part(device.cpu_threads, cpus, cpu);
    cpu += is_auto || choice.backend == "cpu" ? 1 : 0;
    device.memory_parts = cpus;
    if (has_host_memory) device.host_memory_bytes = 0;  // one reaches as far as the other
    absl::StatusOr<std::unique_ptr<Backend>> backend =
        CreateBackend(choice.backend, device, &opened.passed_over);
    if (absl::IsResourceExhausted(backend.status())) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--device_memory=", options.device.memory_bytes, ": ", backend.status().message()));
    }
    if (!backend.ok()) return backend.status();
    const std::string name = (*backend)->device().backend;
    for (size_t j = 0; j < i && name != "cpu"; ++j) {
      if (choice.index == (*choices)[j].index && opened.backends[j]->device().backend == name) {
        return RefuseFlag("devices", options.devices,
                          absl::StrCat(name, ":", choice.index, " once"));
      }
    }
    has_host_memory |= (*backend)->host_memory() != nullptr;
    opened.backends.push_back(*std::move(backend));
    if (is_auto) found = name;
    if (options.devices != "all" || i > 0) continue;
    const absl::StatusOr<int32_t> count = CountDevices(name);
    if (!count.ok()) return count.status();
    for (int32_t index = 1; index < *count; ++index) choices->push_back({name, index});
  }
  return opened;
}

}  // namespace blockd::server
