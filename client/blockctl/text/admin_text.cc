#include "client/blockctl/text/admin_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/text.h"

namespace blockd::blockctl {
namespace {

// Names are the tenants' own: nothing of them reaches the terminal but what it prints.
std::string NameText(const std::string& name) {
  if (name.empty()) return "(none)";
  std::string text = name;
  std::ranges::replace_if(
      text, [](char c) { return !absl::ascii_isprint(c); }, '?');
  return text;
}

std::string ClassText(v1::PriorityClass highest) {
  if (!v1::PriorityClass_IsValid(highest)) return "?";
  return absl::AsciiStrToLower(v1::PriorityClass_Name(highest));
}

// By the unit that the quota's name ends in.
std::string AmountText(const std::string& quota, double amount) {
  if (absl::EndsWith(quota, "bytes")) return BytesText(amount);
  if (absl::EndsWith(quota, "bytes_per_second")) return BytesText(amount) + "/s";
  if (absl::EndsWith(quota, "_per_second")) return absl::StrFormat("%g/s", amount);
  return absl::StrFormat("%.0f", amount);
}

}  // namespace

std::string TenantHandleTable(const std::vector<v1::TenantFactorization>& held) {
  if (held.empty()) return "";
  size_t width = 6;
  for (const v1::TenantFactorization& one : held) {
    width = std::max(width, NameText(one.tenant()).size());
  }
  const int columns = static_cast<int>(width);
  std::string text = absl::StrFormat("%-*s %s", columns, "TENANT", HandleHeading());
  for (const v1::TenantFactorization& one : held) {
    absl::StrAppendFormat(&text, "%-*s %s", columns, NameText(one.tenant()),
                          HandleLine(one.info()));
  }
  return text;
}

void WriteTenantHandle(const v1::TenantFactorization& held, JsonWriter& json) {
  json.BeginObject().Field("tenant", held.tenant());
  WriteHandleFields(held.info(), "", json);
  json.EndObject();
}

std::string TenantTable(const std::vector<v1::Tenant>& tenants) {
  std::string text;
  for (const v1::Tenant& tenant : tenants) {
    absl::StrAppendFormat(&text,
                          "%s%s: weight %g, up to %s, %d requests, %d refused, %s of compute\n",
                          NameText(tenant.name()), tenant.configured() ? "" : " (by default)",
                          tenant.weight(), ClassText(tenant.highest_class()), tenant.requests(),
                          tenant.refused(), SecondsText(tenant.device_seconds()));
    for (const v1::QuotaUse& use : tenant.quota()) {
      absl::StrAppendFormat(&text, "  %-24s %s of %s\n", use.quota(),
                            AmountText(use.quota(), use.used()),
                            use.has_limit() ? AmountText(use.quota(), use.limit()) : "any");
    }
  }
  return text;
}

void WriteTenant(const v1::Tenant& tenant, JsonWriter& json) {
  json.BeginObject().Field("name", tenant.name()).Field("configured", tenant.configured());
  json.Field("weight", tenant.weight());
  json.Field("highest_class", ClassText(tenant.highest_class()));
  json.Field("requests", tenant.requests()).Field("refused", tenant.refused());
  json.Field("device_seconds", tenant.device_seconds()).Key("quotas").BeginObject();
  for (const v1::QuotaUse& use : tenant.quota()) {
    json.Key(use.quota()).BeginObject().Field("used", use.used());
    if (use.has_limit()) json.Field("limit", use.limit());
    json.EndObject();
  }
  json.EndObject().EndObject();
}

}  // namespace blockd::blockctl
