// blockctl release, blockctl list, blockctl info
#include <map>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/command.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

ABSL_DECLARE_FLAG(std::string, handle);
ABSL_DECLARE_FLAG(bool, quiet);
ABSL_FLAG(bool, all, false, "All of the caller's handles.");

namespace blockd::blockctl {
namespace {

// The handles that --handle and the arguments name.
absl::StatusOr<std::vector<RoutedHandle>> HandlesGiven(std::vector<std::string> texts) {
  if (!absl::GetFlag(FLAGS_handle).empty()) texts.push_back(absl::GetFlag(FLAGS_handle));
  std::vector<RoutedHandle> handles;
  for (const std::string& text : texts) {
    absl::StatusOr<RoutedHandle> handle = ParseHandle(text);
    if (!handle.ok()) return handle.status();
    handles.push_back(*std::move(handle));
  }
  return handles;
}

// The bytes given back; one call to each server. The first failure, after all were asked.
absl::StatusOr<int64_t> ReleaseAll(const client::SolverClient& client,
                                   const std::vector<RoutedHandle>& handles) {
  std::map<std::string, std::vector<std::string>> by_route;
  for (const RoutedHandle& one : handles) by_route[one.route].push_back(one.handle);
  int64_t bytes = 0;
  absl::Status failure;
  for (const auto& [route, names] : by_route) {
    const absl::StatusOr<int64_t> released = client.Release(names, route);
    failure.Update(released.status());
    bytes += released.value_or(0);
  }
  if (!failure.ok()) return failure;
  return bytes;
}

absl::Status RunRelease(const std::vector<std::string>& arguments) {
  absl::StatusOr<std::vector<RoutedHandle>> handles = HandlesGiven(arguments);
  if (!handles.ok()) return handles.status();
  const bool all = absl::GetFlag(FLAGS_all);
  if (all && !handles->empty()) return UsageError("give handles or --all, not both");
  if (!all && handles->empty()) return UsageError("release what? Give handles, or --all");
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  if (all) {
    std::string route;
    const absl::StatusOr<std::vector<v1::FactorizationInfo>> held = client->List(&route);
    if (!held.ok()) return held.status();
    for (const v1::FactorizationInfo& info : *held) handles->push_back({info.handle(), route});
  }
  const absl::StatusOr<int64_t> bytes = ReleaseAll(*client, *handles);
  if (!bytes.ok()) return bytes.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("released", handles->size()).Field("released_bytes", *bytes);
    Print(json.EndObject().text() + "\n");
  }
  Note(absl::StrCat("released ", handles->size(), handles->size() == 1 ? " handle, " : " handles, ",
                    BytesText(static_cast<double>(*bytes))));
  return absl::OkStatus();
}

absl::Status RunList(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  std::string route;
  const absl::StatusOr<std::vector<v1::FactorizationInfo>> held = client->List(&route);
  if (!held.ok()) return held.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("factorizations").BeginArray();
    for (const v1::FactorizationInfo& info : *held) WriteHandle(info, route, json);
    Print(json.EndArray().EndObject().text() + "\n");
  } else {
    Print(HandleTable(*held, route));
    if (held->empty()) Note("no factorizations are held for this caller");
  }
  return absl::OkStatus();
}

// "  0  cpu     AMD EPYC, 2 wide  3 held, 1.2 GiB of 4 GiB free, 0 B evictable"
std::string DeviceLine(int index, const v1::Device& device) {
  std::string line = absl::StrFormat(
      "  %-3d %-5s %s, %d wide: %d held, %s of %s free, %s evictable", index, device.backend(),
      device.name(), device.parallelism(), device.factorizations(),
      BytesText(static_cast<double>(device.memory_free_bytes())),
      BytesText(static_cast<double>(device.memory_bytes())),
      BytesText(static_cast<double>(device.memory_evictable_bytes())));
  if (device.state() == v1::Device::FAILED) {
    absl::StrAppend(&line, ", FAILED: ", device.failure());
  }
  return line + "\n";
}

void WriteDevice(const v1::Device& device, JsonWriter& json) {
  json.BeginObject().Field("backend", device.backend()).Field("name", device.name());
  json.Field("parallelism", device.parallelism()).Field("memory_bytes", device.memory_bytes());
  json.Field("memory_free_bytes", device.memory_free_bytes());
  json.Field("memory_evictable_bytes", device.memory_evictable_bytes());
  json.Field("factorizations", device.factorizations());
  json.Field("backlog_seconds", device.backlog_seconds());
  json.Field("state", v1::Device::State_Name(device.state()));
  json.Field("failure", device.failure()).EndObject();
}

void PrintServerInfo(const v1::ServerInfo& info) {
  std::string text = absl::StrFormat(
      "blockd %s at %s, %s, up %s\nbackend      %s on %s, %d wide (built: ", info.version(),
      ServerFlag(), info.server_name(), SecondsText(info.uptime_seconds()), info.backend(),
      info.device_name(), info.device_parallelism());
  for (int i = 0; i < info.built_backends_size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", info.built_backends(i));
  }
  absl::StrAppend(&text, ")\nmemory       ", BytesText(static_cast<double>(info.memory_bytes())),
                  ", free ", BytesText(static_cast<double>(info.memory_free_bytes())),
                  ", evictable ", BytesText(static_cast<double>(info.memory_evictable_bytes())),
                  "\nfactorizations held: ", info.factorizations(), "\nhealth       ",
                  v1::ServerInfo::Health_Name(info.health()), "\n");
  if (info.device_size() > 1) absl::StrAppend(&text, "devices\n");
  for (int i = 0; i < info.device_size() && info.device_size() > 1; ++i) {
    absl::StrAppend(&text, DeviceLine(i, info.device(i)));
  }
  absl::StrAppend(&text, "limits\n");
  for (const v1::Limit& limit : info.limit()) {
    absl::StrAppendFormat(&text, "  %-28s %s\n", limit.name(), limit.value());
  }
  Print(text);
}

void PrintServerInfoJson(const v1::ServerInfo& info) {
  JsonWriter json;
  json.BeginObject().Field("version", info.version()).Field("server", ServerFlag());
  json.Field("server_name", info.server_name());
  json.Field("uptime_seconds", info.uptime_seconds()).Field("backend", info.backend());
  json.Field("device_name", info.device_name());
  json.Field("device_parallelism", info.device_parallelism());
  json.Key("built_backends").BeginArray();
  for (const std::string& name : info.built_backends()) json.Value(name);
  json.EndArray().Field("memory_bytes", info.memory_bytes());
  json.Field("memory_free_bytes", info.memory_free_bytes());
  json.Field("memory_evictable_bytes", info.memory_evictable_bytes());
  json.Field("factorizations", info.factorizations());
  json.Field("health", v1::ServerInfo::Health_Name(info.health())).Key("devices").BeginArray();
  for (const v1::Device& device : info.device()) WriteDevice(device, json);
  json.EndArray().Key("limits").BeginObject();
  for (const v1::Limit& limit : info.limit()) json.Field(limit.name(), limit.value());
  Print(json.EndObject().EndObject().text() + "\n");
}

absl::Status RunServerInfo(const client::SolverClient& client) {
  if (absl::Status status = client.CheckHealth(); !status.ok()) return status;
  const absl::StatusOr<v1::ServerInfo> info = client.ServerInfo();
  if (!info.ok()) return info.status();
  if (JsonAsked()) {
    PrintServerInfoJson(*info);
  } else if (!absl::GetFlag(FLAGS_quiet)) {
    PrintServerInfo(*info);
  }
  return absl::OkStatus();
}

absl::Status RunInfo(const std::vector<std::string>& arguments) {
  absl::StatusOr<std::vector<RoutedHandle>> handles = HandlesGiven(arguments);
  if (!handles.ok()) return handles.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  if (handles->empty()) return RunServerInfo(*client);
  std::vector<v1::FactorizationInfo> infos;
  for (RoutedHandle& one : *handles) {
    absl::StatusOr<v1::FactorizationInfo> info = client->Get(one.handle, &one.route);
    if (!info.ok()) return info.status();
    infos.push_back(*std::move(info));
  }
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("factorizations").BeginArray();
    for (size_t k = 0; k < infos.size(); ++k) WriteHandle(infos[k], (*handles)[k].route, json);
    Print(json.EndArray().EndObject().text() + "\n");
  } else if (!absl::GetFlag(FLAGS_quiet)) {
    for (size_t k = 0; k < infos.size(); ++k) {
      Print(HandleTable({infos[k]}, (*handles)[k].route));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Command ReleaseCommand() {
  return {
      "release",           "[HANDLE...]",
      "Give handles back", "Those that are held are released, even where others are not found.\n",
      {"handle", "all"},   RunRelease};
}

Command ListCommand() {
  return {"list",
          "",
          "List the caller's factorizations",
          "Other callers' (see --caller) are not shown. Behind a router, those of any one server "
          "are.\n",
          {},
          RunList};
}

Command InfoCommand() {
  return {
      "info",
      "[HANDLE...]",
      "Show the server, or one factorization; a health check",
      "Without a handle: fails unless the server is healthy; with --quiet it prints nothing, for\n"
      "health checks.\n",
      {"handle"},
      RunInfo};
}

}  // namespace blockd::blockctl
