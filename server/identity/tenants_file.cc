#include "server/identity/tenants_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "blockd/v1/tenants.pb.h"
#include "server/base/byte_size.h"
#include "server/core/common/errors.h"
#include "server/core/tenants/tenants.h"
#include "server/identity/identify.h"
#include "server/identity/small_file.h"

namespace blockd::server {
namespace {

using google::protobuf::TextFormat;
using v1::TenantsFile;

constexpr int kMaxTenants = 1000, kMaxIdentities = 1000;
constexpr double kMinWeight = 0.01, kMaxWeight = 100;
constexpr int64_t kMaxCount = int64_t{1} << 50;

// INVALID_ARGUMENT, with the detail InvalidField: its field is the place in the file, and `words`
// end with what was expected there.
absl::Status RefuseAt(absl::string_view place, absl::string_view words) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(words, absl::MaxSplits("expected ", 1));
  const absl::string_view came = absl::StripSuffix(parts.first, ": ");
  return WithInvalidField(absl::InvalidArgumentError(absl::StrCat(place, ": ", words)),
                          {std::string(place), came.empty() ? "another" : std::string(came),
                           std::string(parts.second)});
}

// Keeps the first complaint: those that follow are mostly of its making.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view file) : file_(file) {}
  void AddError(int line, int column, const std::string& message) override {
    if (!place_.empty()) return;
    place_ = absl::StrCat(file_, ":", line + 1, ":", column + 1);
    message_ = message;
  }
  void AddWarning(int line, int column, const std::string& message) override {
    AddError(line, column, message);
  }
  bool any() const { return !place_.empty(); }
  absl::Status Refusal() const {
    return RefuseAt(any() ? place_ : file_,
                    absl::StrCat(message_, ": expected the text of a blockd.v1.TenantsFile"));
  }

 private:
  const std::string file_;
  std::string place_, message_;
};

// Says where in the file something is.
class Place {
 public:
  Place(absl::string_view file, const TextFormat::ParseInfoTree& tree) : file_(file), tree_(tree) {}

  // A field of TenantsFile; `index` is -1 for one that is not repeated.
  std::string Of(int field, int index, const std::string& tenant) const {
    const auto* descriptor = TenantsFile::descriptor()->FindFieldByNumber(field);
    const TextFormat::ParseLocation at = tree_.GetLocation(descriptor, index);
    return absl::StrCat(
        file_, ":", at.line + 1,
        tenant.empty() ? "" : absl::StrCat(": tenant \"", absl::CHexEscape(tenant), "\""));
  }

 private:
  const absl::string_view file_;
  const TextFormat::ParseInfoTree& tree_;
};

absl::Status Wrong(absl::string_view field, absl::string_view came, absl::string_view expected) {
  // The value may have any length.
  const std::string shown = absl::CHexEscape(came.substr(0, kMaxNameBytes));
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": \"", shown, came.size() > kMaxNameBytes ? "..." : "", "\": expected ", expected));
}

bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != kAnonymous &&
         name != kOtherTenants && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

absl::Status ReadBytes(absl::string_view field, const std::string& text, int64_t* bytes) {
  ByteSize size;
  std::string error;
  if (!AbslParseFlag(text, &size, &error) || size.bytes < 0) {
    return Wrong(field, text, "a size, as \"8GiB\" or \"65536\"");
  }
  *bytes = size.bytes;
  return absl::OkStatus();
}

absl::Status ReadCount(absl::string_view field, int64_t count, std::optional<int64_t>* out) {
  if (count < 0 || count > kMaxCount) {
    return Wrong(field, absl::StrCat(count), absl::StrCat("a number from 0 to ", kMaxCount));
  }
  *out = count;
  return absl::OkStatus();
}

absl::Status ReadQuotas(const TenantsFile::Quotas& quotas, TenantQuotas* out) {
  absl::Status status;
  const auto size = [&status](absl::string_view field, bool has, const std::string& text,
                              std::optional<int64_t>* bytes) {
    if (has) status.Update(ReadBytes(field, text, &bytes->emplace()));
  };
  size("device_bytes", quotas.has_device_bytes(), quotas.device_bytes(), &out->device_bytes);
  size("pinned_bytes", quotas.has_pinned_bytes(), quotas.pinned_bytes(), &out->pinned_bytes);
  size("host_bytes", quotas.has_host_bytes(), quotas.host_bytes(), &out->host_bytes);
  if (quotas.has_handles()) {
    status.Update(ReadCount("handles", quotas.handles(), &out->handles));
  }
  if (quotas.has_queue_slots()) {
    status.Update(ReadCount("queue_slots", quotas.queue_slots(), &out->queue_slots));
  }
  if (quotas.has_upload_bytes_per_second()) {
    int64_t bytes = 0;
    status.Update(ReadBytes("upload_bytes_per_second", quotas.upload_bytes_per_second(), &bytes));
    out->upload_bytes_per_second = static_cast<double>(bytes);
  }
  if (quotas.has_requests_per_second()) {
    const double rate = quotas.requests_per_second();
    // Not a number is in no range.
    if (!(rate >= 0 && rate <= static_cast<double>(kMaxCount))) {
      status.Update(Wrong("requests_per_second", absl::StrCat(rate),
                          absl::StrCat("a number from 0 to ", kMaxCount)));
    }
    out->requests_per_second = rate;
  }
  return status;
}

absl::Status ReadRoles(const TenantsFile::Tenant& tenant, RoleSet* roles) {
  *roles = {};
  for (const int role : tenant.role()) {
    switch (role) {
      case TenantsFile::USE:
        roles->Add(Role::kUse);
        break;
      case TenantsFile::ADMIN:
        roles->Add(Role::kAdmin);
        break;
      case TenantsFile::METRICS:
        roles->Add(Role::kMetrics);
        break;
      default:
        return Wrong("role", absl::StrCat(role), "USE, ADMIN or METRICS");
    }
  }
  if (roles->empty()) roles->Add(Role::kUse);
  return absl::OkStatus();
}

absl::Status ReadTenant(const TenantsFile::Tenant& tenant, TenantConfig* out, RoleSet* roles) {
  out->name = tenant.name();
  absl::Status status = ReadQuotas(tenant.quotas(), &out->quotas);
  if (tenant.has_weight()) {
    out->weight = tenant.weight();
    if (!(out->weight >= kMinWeight && out->weight <= kMaxWeight)) {
      status.Update(Wrong("weight", absl::StrCat(out->weight),
                          absl::StrCat("a number from ", kMinWeight, " to ", kMaxWeight)));
    }
  }
  switch (tenant.highest_class()) {
    case TenantsFile::PRIORITY_CLASS_UNSPECIFIED:
    case TenantsFile::INTERACTIVE:
      out->highest_class = PriorityClass::kInteractive;
      break;
    case TenantsFile::REALTIME:
      out->highest_class = PriorityClass::kRealtime;
      break;
    case TenantsFile::BULK:
      out->highest_class = PriorityClass::kBulk;
      break;
    default:
      status.Update(Wrong("highest_class", absl::StrCat(tenant.highest_class()),
                          "REALTIME, INTERACTIVE or BULK"));
  }
  status.Update(ReadRoles(tenant, roles));
  return status;
}

absl::Status AddName(NameKind kind, const std::string& name, const Principal& principal,
                     IdentityTable* table) {
  const size_t longest = kind == NameKind::kMetadata ? kMaxNameBytes : kMaxListedNameBytes;
  if (name.size() > longest || !IsPrintableName(name)) {
    return Wrong(PrefixOf(kind), name,
                 absl::StrCat("1 to ", longest, " printable ASCII characters"));
  }
  if (kind == NameKind::kDns && absl::StrContains(name, "*")) {
    return Wrong(PrefixOf(kind), name, "a whole name: a wildcard names nobody");
  }
  if (table->Add(kind, name, principal)) return absl::OkStatus();
  return Wrong(PrefixOf(kind), name,
               absl::StrCat("each identity once, and tenant \"", table->Find(kind, name)->tenant,
                            "\" has it"));
}

absl::Status AddIdentity(const TenantsFile::Identity& identity, const Principal& principal,
                         IdentityTable* table) {
  using Identity = TenantsFile::Identity;
  switch (identity.identity_case()) {
    case Identity::kUri:
      return AddName(NameKind::kUri, identity.uri(), principal, table);
    case Identity::kDns:
      return AddName(NameKind::kDns, identity.dns(), principal, table);
    case Identity::kEmail:
      return AddName(NameKind::kEmail, identity.email(), principal, table);
    case Identity::kCommonName:
      return AddName(NameKind::kCommonName, identity.common_name(), principal, table);
    case Identity::kMetadata:
      return AddName(NameKind::kMetadata, identity.metadata(), principal, table);
    case Identity::kUnixUid:
      return AddName(NameKind::kUnixUid, absl::StrCat(identity.unix_uid()), principal, table);
    case Identity::kTokenSha256: {
      // Not shown where it is wrong: it may be the token itself.
      const std::optional<TokenHash> hash = ParseTokenHash(identity.token_sha256());
      if (!hash) {
        return absl::InvalidArgumentError(
            "token_sha256: expected 64 hexadecimal digits, as `blockd --hash_token` prints them");
      }
      if (table->AddToken(*hash, principal)) return absl::OkStatus();
      return Wrong("token_sha256", identity.token_sha256(),
                   absl::StrCat("each identity once, and tenant \"",
                                table->FindToken(*hash)->tenant, "\" has it"));
    }
    case Identity::IDENTITY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "identity: expected one of uri, dns, email, common_name, token_sha256, metadata, unix_uid");
}

absl::Status AddTenant(const TenantsFile::Tenant& tenant, absl::flat_hash_set<std::string>* names,
                       ListedTenants* out) {
  if (!IsTenantName(tenant.name())) {
    return Wrong(
        "name", tenant.name(),
        absl::StrCat("1 to ", kMaxNameBytes, " of A-Z, a-z, 0-9, '-', '_' and '.', and neither \"",
                     kAnonymous, "\" nor \"", kOtherTenants, "\""));
  }
  if (!names->insert(tenant.name()).second) return Wrong("name", tenant.name(), "each name once");
  if (tenant.identity_size() > kMaxIdentities) {
    return Wrong("identity", absl::StrCat(tenant.identity_size()),
                 absl::StrCat("at most ", kMaxIdentities, " of them"));
  }
  TenantConfig config;
  Principal principal{tenant.name(), {}};
  if (absl::Status status = ReadTenant(tenant, &config, &principal.roles); !status.ok()) {
    return status;
  }
  for (const TenantsFile::Identity& identity : tenant.identity()) {
    if (absl::Status status = AddIdentity(identity, principal, &out->identities); !status.ok()) {
      return status;
    }
  }
  out->config.tenants.push_back(std::move(config));
  return absl::OkStatus();
}

absl::Status AddDefault(const TenantsFile& file, ListedTenants* out) {
  const TenantsFile::Tenant& tenant = file.default_tenant();
  if (!tenant.name().empty()) return Wrong("name", tenant.name(), "none for default_tenant");
  if (tenant.identity_size() > 0) {
    return absl::InvalidArgumentError("identity: expected none for default_tenant");
  }
  out->identities.refuse_unlisted = file.refuse_unlisted();
  return ReadTenant(tenant, &out->config.default_tenant, &out->identities.unlisted_roles);
}

absl::Status At(const std::string& place, const absl::Status& status) {
  return status.ok() ? status : RefuseAt(place, status.message());
}

}  // namespace

absl::StatusOr<ListedTenants> ParseTenants(absl::string_view text, absl::string_view name) {
  if (text.size() > kMaxTenantsFileBytes) {
    return RefuseAt(name,
                    absl::StrCat(text.size(), " bytes: expected at most ", kMaxTenantsFileBytes));
  }
  TenantsFile file;
  FirstError error(name);
  TextFormat::ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&tree);
  parser.SetRecursionLimit(16);
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&input, &file) || error.any()) return error.Refusal();
  const Place place(name, tree);
  if (file.tenant_size() > kMaxTenants) {
    return RefuseAt(name,
                    absl::StrCat(file.tenant_size(), " tenants: expected at most ", kMaxTenants));
  }
  ListedTenants tenants;
  if (absl::Status status =
          At(place.Of(TenantsFile::kDefaultTenantFieldNumber, -1, ""), AddDefault(file, &tenants));
      !status.ok()) {
    return status;
  }
  absl::flat_hash_set<std::string> names;
  for (int k = 0; k < file.tenant_size(); ++k) {
    const std::string& tenant = file.tenant(k).name();
    if (absl::Status status =
            At(place.Of(TenantsFile::kTenantFieldNumber, k, IsTenantName(tenant) ? tenant : ""),
               AddTenant(file.tenant(k), &names, &tenants));
        !status.ok()) {
      return status;
    }
  }
  return tenants;
}

absl::StatusOr<ListedTenants> ReadTenantsFile(const std::string& path) {
  const std::optional<std::string> text = ReadSmallFile(path, kMaxTenantsFileBytes);
  if (!text) return RefuseAt(path, "expected a file that can be read");
  return ParseTenants(*text, path);
}

}  // namespace blockd::server
