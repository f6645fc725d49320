// blockctl admin
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "client/blockctl/command.h"
#include "client/blockctl/text/admin_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

ABSL_FLAG(std::string, tenant, "", "`admin list`: of this tenant alone; empty: of all.");
ABSL_FLAG(bool, pinned_only, false, "`admin list`: those that are pinned, or leased.");
ABSL_FLAG(absl::Duration, min_idle, absl::ZeroDuration(),
          "`admin list`: those that nobody has used for so long, as 10m.");
ABSL_FLAG(int64_t, min_held_bytes, 0, "`admin list`: those of at least so many bytes.");

namespace blockd::blockctl {
namespace {

using Words = std::vector<std::string>;

struct AdminAction {
  std::string_view name;
  std::string_view arguments;
  int words;  // how many it takes; -1: one or more
  absl::Status (*run)(const client::AdminClient& admin, const Words& words);
};

bool FiltersGiven() {
  return !absl::GetFlag(FLAGS_tenant).empty() || absl::GetFlag(FLAGS_pinned_only) ||
         absl::GetFlag(FLAGS_min_idle) != absl::ZeroDuration() ||
         absl::GetFlag(FLAGS_min_held_bytes) != 0;
}

absl::StatusOr<std::vector<std::string>> Handles(const Words& words) {
  std::vector<std::string> handles;
  for (const std::string& word : words) {
    const absl::StatusOr<RoutedHandle> handle = ParseHandle(word);
    if (!handle.ok()) return handle.status();
    if (!handle->route.empty()) {
      return UsageError(absl::StrCat("\"", word, "\" has a route: ask its server itself"));
    }
    handles.push_back(handle->handle);
  }
  return handles;
}

absl::Status List(const client::AdminClient& admin, const Words&) {
  client::FactorizationFilter filter;
  if (!absl::GetFlag(FLAGS_tenant).empty()) filter.tenant = absl::GetFlag(FLAGS_tenant);
  filter.pinned_only = absl::GetFlag(FLAGS_pinned_only);
  filter.min_idle = absl::GetFlag(FLAGS_min_idle);
  filter.min_held_bytes = absl::GetFlag(FLAGS_min_held_bytes);
  const auto held = admin.ListFactorizations(filter);
  if (!held.ok()) return held.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("factorizations").BeginArray();
    for (const v1::TenantFactorization& one : *held) WriteTenantHandle(one, json);
    Print(json.EndArray().EndObject().text() + "\n");
    return absl::OkStatus();
  }
  Print(TenantHandleTable(*held));
  if (held->empty()) Note("no factorizations are held");
  return absl::OkStatus();
}

// Handles that were not held are said, and do not fail the command: they are gone, as was asked.
template <typename Strings>
void SayNotHeld(const Strings& not_held) {
  for (const std::string& handle : not_held) Note(HandleText(handle) + " is not held");
}

template <typename Strings>
void WriteNotHeld(const Strings& not_held, JsonWriter& json) {
  json.Key("not_held").BeginArray();
  for (const std::string& handle : not_held) json.Value(HandleText(handle));
  Print(json.EndArray().EndObject().text() + "\n");
}

absl::Status Evict(const client::AdminClient& admin, const Words& words) {
  const auto handles = Handles(words);
  if (!handles.ok()) return handles.status();
  const auto reply = admin.Evict(*handles);
  if (!reply.ok()) return reply.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("evicted", reply->evicted());
    WriteNotHeld(reply->not_held(), json.Field("evicted_bytes", reply->evicted_bytes()));
    return absl::OkStatus();
  }
  SayNotHeld(reply->not_held());
  Note(absl::StrCat("evicted ", reply->evicted(), ", ",
                    BytesText(static_cast<double>(reply->evicted_bytes()))));
  return absl::OkStatus();
}

absl::Status Unpin(const client::AdminClient& admin, const Words& words) {
  const auto handles = Handles(words);
  if (!handles.ok()) return handles.status();
  const auto reply = admin.Unpin(*handles);
  if (!reply.ok()) return reply.status();
  if (JsonAsked()) {
    JsonWriter json;
    WriteNotHeld(reply->not_held(), json.BeginObject().Field("unpinned", reply->unpinned()));
    return absl::OkStatus();
  }
  SayNotHeld(reply->not_held());
  Note(absl::StrCat("unpinned ", reply->unpinned()));
  return absl::OkStatus();
}

absl::Status Tenants(const client::AdminClient& admin, const Words&) {
  const auto tenants = admin.ListTenants();
  if (!tenants.ok()) return tenants.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("tenants").BeginArray();
    for (const v1::Tenant& tenant : *tenants) WriteTenant(tenant, json);
    Print(json.EndArray().EndObject().text() + "\n");
    return absl::OkStatus();
  }
  Print(TenantTable(*tenants));
  if (tenants->empty()) Note("no tenants");
  return absl::OkStatus();
}

absl::Status Drain(const client::AdminClient& admin, const Words&) {
  const auto reply = admin.Drain();
  if (!reply.ok()) return reply.status();
  const double seconds = static_cast<double>(reply->timeout().seconds()) +
                         1e-9 * static_cast<double>(reply->timeout().nanos());
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("requests", reply->requests()).Field("timeout_seconds", seconds);
    Print(json.EndObject().text() + "\n");
  }
  Note(absl::StrCat("draining: ", reply->requests(), " requests under way, at most ",
                    SecondsText(seconds)));
  return absl::OkStatus();
}

absl::Status LogLevel(const client::AdminClient& admin, const Words& words) {
  const absl::StatusOr<std::string> previous = admin.SetLogLevel(words[0]);
  if (!previous.ok()) return previous.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("level", words[0]).Field("previous", *previous);
    Print(json.EndObject().text() + "\n");
  }
  Note(absl::StrCat("log level ", words[0], ", was ", *previous));
  return absl::OkStatus();
}

absl::Status Reload(const client::AdminClient& admin, const Words&) {
  const auto reply = admin.Reload();
  if (!reply.ok()) return reply.status();
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("tenants", reply->tenants()).Field("changed", reply->changed());
    Print(json.EndObject().text() + "\n");
  }
  Note(absl::StrCat(reply->tenants(), " tenants, ", reply->changed() ? "changed" : "as before"));
  return absl::OkStatus();
}

constexpr std::array<AdminAction, 7> kActions = {{{"list", "", 0, List},
                                                  {"evict", " HANDLE...", -1, Evict},
                                                  {"unpin", " HANDLE...", -1, Unpin},
                                                  {"tenants", "", 0, Tenants},
                                                  {"drain", "", 0, Drain},
                                                  {"log-level", " LEVEL", 1, LogLevel},
                                                  {"reload", "", 0, Reload}}};

absl::Status RunAdmin(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return UsageError("admin what? See `blockctl help admin`");
  for (const AdminAction& action : kActions) {
    if (action.name != arguments[0]) continue;
    const Words words(arguments.begin() + 1, arguments.end());
    const int given = static_cast<int>(words.size());
    if (action.words < 0 ? given == 0 : given != action.words) {
      return UsageError(absl::StrCat("expected `blockctl admin ", std::string(action.name),
                                     std::string(action.arguments), "`"));
    }
    // One that looks as if it narrowed an eviction or a drain must not be overlooked.
    if (action.name != "list" && FiltersGiven()) {
      return UsageError("--tenant, --pinned_only, --min_idle and --min_held_bytes are for `list`");
    }
    if (absl::GetFlag(FLAGS_min_idle) < absl::ZeroDuration() ||
        absl::GetFlag(FLAGS_min_held_bytes) < 0) {
      return UsageError("--min_idle and --min_held_bytes must not be negative");
    }
    const absl::StatusOr<client::AdminClient> admin = ConnectAdminFromFlags();
    if (!admin.ok()) return admin.status();
    return action.run(*admin, words);
  }
  return UsageError(absl::StrCat("no such thing as `blockctl admin ", arguments[0], "`"));
}

}  // namespace

Command AdminCommand() {
  return {
      "admin",
      "list | evict HANDLE... | unpin HANDLE... | tenants | drain | log-level LEVEL | reload",
      "Run a server: everybody's handles, tenants, drain, log level",
      "Needs the role admin (--token_file, --tls_cert_file). Asks the server itself, not those\n"
      "behind a router.\n"
      "  list       everybody's factorizations\n"
      "  evict      take factorizations from their tenants, pinned ones too\n"
      "  unpin      end pins and leases; memory then comes back when it is needed\n"
      "  tenants    what each may use, and uses\n"
      "  drain      what SIGTERM does: accepted work finishes, then the server ends\n"
      "  log-level  debug, info, warn, error or off\n"
      "  reload     read the tenants file again; a wrong one is refused, saying why\n"
      "  blockctl admin list --tenant=estimation --min_idle=1h\n",
      {"tenant", "pinned_only", "min_idle", "min_held_bytes"},
      RunAdmin};
}

}  // namespace blockd::blockctl
