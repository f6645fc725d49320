// blockctl release, blockctl list, blockctl info
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/command.h"
#include "client/blockctl/cost_text.h"
#include "client/blockctl/exit_code.h"
#include "client/blockctl/handle_table.h"
#include "client/blockctl/json.h"

ABSL_DECLARE_FLAG(std::string, handle);
ABSL_DECLARE_FLAG(bool, quiet);
ABSL_FLAG(bool, all, false, "All of the caller's handles.");

namespace blockd::blockctl {
namespace {

// The handles that --handle and the arguments name.
absl::StatusOr<std::vector<std::string>> HandlesGiven(std::vector<std::string> texts) {
  if (!absl::GetFlag(FLAGS_handle).empty()) texts.push_back(absl::GetFlag(FLAGS_handle));
  std::vector<std::string> handles;
  for (const std::string& text : texts) {
    absl::StatusOr<std::string> handle = ParseHandle(text);
    if (!handle.ok()) return handle.status();
    handles.push_back(*std::move(handle));
  }
  return handles;
}

absl::Status RunRelease(const std::vector<std::string>& arguments) {
  absl::StatusOr<std::vector<std::string>> handles = HandlesGiven(arguments);
  if (!handles.ok()) return handles.status();
  const bool all = absl::GetFlag(FLAGS_all);
  if (all && !handles->empty()) return UsageError("give handles or --all, not both");
  if (!all && handles->empty()) return UsageError("release what? Give handles, or --all");
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  if (all) {
    const absl::StatusOr<std::vector<v1::FactorizationInfo>> held = client->List();
    if (!held.ok()) return held.status();
    for (const v1::FactorizationInfo& info : *held) handles->push_back(info.handle());
  }
  int64_t bytes = 0;
  if (!handles->empty()) {
    const absl::StatusOr<int64_t> released = client->Release(*handles);
    if (!released.ok()) return released.status();
    bytes = *released;
  }
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("released", handles->size()).Field("released_bytes", bytes);
    Print(json.EndObject().text() + "\n");
  }
  Note(absl::StrCat("released ", handles->size(), handles->size() == 1 ? " handle, " : " handles, ",
                    BytesText(static_cast<double>(bytes))));
  return absl::OkStatus();
}

absl::Status RunList(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::vector<v1::FactorizationInfo>> held = client->List();
  if (!held.ok()) return held.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("factorizations").BeginArray();
    for (const v1::FactorizationInfo& info : *held) WriteHandle(info, json);
    Print(json.EndArray().EndObject().text() + "\n");
  } else {
    Print(HandleTable(*held));
    if (held->empty()) Note("no factorizations are held for this caller");
  }
  return absl::OkStatus();
}

void PrintServerInfo(const v1::ServerInfo& info) {
  std::string text = absl::StrFormat(
      "blockd %s at %s, up %s\nbackend      %s on %s, %d wide (built: ", info.version(),
      ServerFlag(), SecondsText(info.uptime_seconds()), info.backend(), info.device_name(),
      info.device_parallelism());
  for (int i = 0; i < info.built_backends_size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", info.built_backends(i));
  }
  absl::StrAppend(&text, ")\nmemory       ", BytesText(static_cast<double>(info.memory_bytes())),
                  ", free ", BytesText(static_cast<double>(info.memory_free_bytes())),
                  ", evictable ", BytesText(static_cast<double>(info.memory_evictable_bytes())),
                  "\nfactorizations held: ", info.factorizations(), "\nlimits\n");
  for (const v1::Limit& limit : info.limit()) {
    absl::StrAppendFormat(&text, "  %-28s %s\n", limit.name(), limit.value());
  }
  Print(text);
}

void PrintServerInfoJson(const v1::ServerInfo& info) {
  JsonWriter json;
  json.BeginObject().Field("version", info.version()).Field("server", ServerFlag());
  json.Field("uptime_seconds", info.uptime_seconds()).Field("backend", info.backend());
  json.Field("device_name", info.device_name());
  json.Field("device_parallelism", info.device_parallelism());
  json.Key("built_backends").BeginArray();
  for (const std::string& name : info.built_backends()) json.Value(name);
  json.EndArray().Field("memory_bytes", info.memory_bytes());
  json.Field("memory_free_bytes", info.memory_free_bytes());
  json.Field("memory_evictable_bytes", info.memory_evictable_bytes());
  json.Field("factorizations", info.factorizations()).Key("limits").BeginObject();
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
  const absl::StatusOr<std::vector<std::string>> handles = HandlesGiven(arguments);
  if (!handles.ok()) return handles.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  if (handles->empty()) return RunServerInfo(*client);
  std::vector<v1::FactorizationInfo> infos;
  for (const std::string& handle : *handles) {
    absl::StatusOr<v1::FactorizationInfo> info = client->Get(handle);
    if (!info.ok()) return info.status();
    infos.push_back(*std::move(info));
  }
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("factorizations").BeginArray();
    for (const v1::FactorizationInfo& info : infos) WriteHandle(info, json);
    Print(json.EndArray().EndObject().text() + "\n");
  } else if (!absl::GetFlag(FLAGS_quiet)) {
    Print(HandleTable(infos));
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
          "Other callers' (see --caller) are not shown.\n",
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
