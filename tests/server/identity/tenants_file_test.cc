// The operator's file of tenants: what it says, and how a wrong one is refused.
#include "server/identity/tenants_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/identity/identities.h"
#include "tests/support/temp_folder.h"

namespace blockd::server {
namespace {

constexpr char kHash[] = "71c480df93d6ae2f1efad1447c66c9525e316218cf51fc8d9ed832f2daf18b73";

absl::StatusOr<ListedTenants> Parse(const std::string& text) { return ParseTenants(text, "file"); }

TEST(TenantsFileTest, AnEmptyOneChangesNothing) {
  const absl::StatusOr<ListedTenants> tenants = Parse("");
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_TRUE(tenants->config.tenants.empty());
  EXPECT_EQ(tenants->config.default_tenant, TenantConfig());
  EXPECT_EQ(tenants->identities.unlisted_roles, RoleSet{Role::kUse});
  EXPECT_FALSE(tenants->identities.refuse_unlisted);
  EXPECT_FALSE(tenants->identities.has_tokens());
}

TEST(TenantsFileTest, EveryFieldArrives) {
  const absl::StatusOr<ListedTenants> tenants = Parse(absl::StrCat(R"(
      default_tenant { role: USE role: METRICS weight: 0.5 highest_class: BULK
                       quotas { handles: 7 } }
      refuse_unlisted: true
      tenant {
        name: "control"
        identity { uri: "spiffe://x/control" } identity { dns: "control.x" }
        identity { email: "c@x" } identity { common_name: "C" } identity { metadata: "c c" }
        identity { unix_uid: 0 } identity { token_sha256: ")",
                                                                   kHash, R"(" }
        role: [USE, ADMIN]
        quotas { device_bytes: "8GiB" pinned_bytes: "4GiB" handles: 0 host_bytes: "65536"
                 queue_slots: 100 requests_per_second: 1.5 upload_bytes_per_second: "1MiB" }
        weight: 4
        highest_class: REALTIME
      }
      tenant { name: "bulk" })"));
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(tenants->config.default_tenant,
            (TenantConfig{"", {.handles = 7}, 0.5, PriorityClass::kBulk}));
  EXPECT_EQ(tenants->identities.unlisted_roles, (RoleSet{Role::kUse, Role::kMetrics}));
  EXPECT_TRUE(tenants->identities.refuse_unlisted);
  ASSERT_EQ(tenants->config.tenants.size(), 2u);
  const TenantQuotas quotas{.device_bytes = int64_t{8} << 30,
                            .pinned_bytes = int64_t{4} << 30,
                            .handles = 0,
                            .host_bytes = 65536,
                            .queue_slots = 100,
                            .requests_per_second = 1.5,
                            .upload_bytes_per_second = 1 << 20};
  EXPECT_EQ(tenants->config.tenants[0],
            (TenantConfig{"control", quotas, 4, PriorityClass::kRealtime}));
  EXPECT_EQ(tenants->config.tenants[1], (TenantConfig{.name = "bulk"}));
  const Principal control{"control", {Role::kUse, Role::kAdmin}};
  const std::pair<NameKind, const char*> names[] = {{NameKind::kUri, "spiffe://x/control"},
                                                    {NameKind::kDns, "control.x"},
                                                    {NameKind::kEmail, "c@x"},
                                                    {NameKind::kCommonName, "C"},
                                                    {NameKind::kMetadata, "c c"},
                                                    {NameKind::kUnixUid, "0"}};
  for (const auto& [kind, name] : names) {
    ASSERT_NE(tenants->identities.Find(kind, name), nullptr) << name;
    EXPECT_EQ(*tenants->identities.Find(kind, name), control);
  }
  ASSERT_NE(tenants->identities.FindToken(*ParseTokenHash(kHash)), nullptr);
  EXPECT_EQ(*tenants->identities.FindToken(*ParseTokenHash(kHash)), control);
  EXPECT_EQ(tenants->identities.FindToken(TokenHash{}), nullptr);
  EXPECT_EQ(tenants->identities.Find(NameKind::kDns, "c@x"), nullptr);
}

struct Wrong {
  std::string text;
  std::vector<std::string> said;
};

TEST(TenantsFileTest, AWrongOneIsRefusedWithItsPlaceAndWhatWasExpected) {
  const std::string longest(kMaxNameBytes + 1, 'x'), identity(kMaxListedNameBytes + 1, 'x');
  const auto with = [](const std::string& inside) {
    return absl::StrCat("\n\ntenant { name: \"t\" ", inside, " }");
  };
  const std::vector<Wrong> cases = {
      {"tenant {", {"file:1:"}},
      {"\nnonsense: 1", {"file:2:", "nonsense"}},
      {with("wieght: 1"), {"file:3:", "wieght"}},
      {with("weight: 1 weight: 2"), {"file:3:", "weight"}},
      {with("weight: \"1\""), {"file:3:"}},
      {with("weight: 0"), {"file:3: tenant \"t\": weight: \"0\"", "0.01 to 100"}},
      {with("weight: -1"), {"0.01 to 100"}},
      {with("weight: nan"), {"0.01 to 100"}},
      {with("weight: inf"), {"0.01 to 100"}},
      {with("quotas { handles: -1 }"), {"handles: \"-1\"", "from 0 to"}},
      {with("quotas { handles: 9223372036854775807 }"), {"handles", "from 0 to"}},
      {with("quotas { handles: 9223372036854775808 }"), {"file:3:"}},
      {with("quotas { queue_slots: -5 }"), {"queue_slots", "from 0 to"}},
      {with("quotas { device_bytes: \"-1\" }"), {"device_bytes: \"-1\"", "a size"}},
      {with("quotas { pinned_bytes: \"much\" }"), {"pinned_bytes: \"much\"", "a size"}},
      {with("quotas { host_bytes: \"\" }"), {"host_bytes: \"\"", "a size"}},
      {with("quotas { host_bytes: \"99999999999TiB\" }"), {"host_bytes", "a size"}},
      {with("quotas { requests_per_second: -0.5 }"), {"requests_per_second", "from 0 to"}},
      {with("quotas { requests_per_second: nan }"), {"requests_per_second", "from 0 to"}},
      {with("quotas { upload_bytes_per_second: \"x\" }"), {"upload_bytes_per_second", "a size"}},
      {with("role: ROOT"), {"file:3:", "ROOT"}},
      {with("role: ROLE_UNSPECIFIED"), {"role: \"0\"", "USE, ADMIN or METRICS"}},
      {with("role: 17"), {"file:3:"}},
      {with("highest_class: URGENT"), {"file:3:", "URGENT"}},
      {with("identity { }"), {"tenant \"t\": identity: expected one of uri, dns"}},
      {with("identity { dns: \"a\" uri: \"b\" }"), {"file:3:"}},
      {with("identity { dns: \"\" }"), {"dns: \"\"", "printable"}},
      {with("identity { dns: \"*.x\" }"), {"dns: \"*.x\"", "wildcard"}},
      {with("identity { uri: \"a\\000b\" }"), {"uri: \"a\\x00", "printable"}},
      {with("identity { uri: \"a\\nb\" }"), {"uri", "printable"}},
      {with("identity { email: \"\\303\\244\" }"), {"email", "printable"}},
      {with("identity { uri: \"" + identity + "\" }"), {"uri", "1 to 512", "..."}},
      {with("identity { metadata: \"" + longest + "\" }"), {"metadata", "1 to 128"}},
      {with("identity { unix_uid: -1 }"), {"file:3:"}},
      {with("identity { token_sha256: \"my-secret\" }"), {"token_sha256", "64 hexadecimal"}},
      {with("identity { dns: \"a\" } identity { dns: \"a\" }"),
       {"dns: \"a\"", "tenant \"t\" has it"}},
      {"tenant { name: \"a\" identity { dns: \"x\" } }\ntenant { name: \"b\" identity { dns: \"x\" "
       "} }",
       {"file:2: tenant \"b\": dns: \"x\"", "tenant \"a\" has it"}},
      {absl::StrCat("tenant { name: \"a\" identity { token_sha256: \"", kHash,
                    "\" } }\ntenant { name: \"b\" identity { token_sha256: \"", kHash, "\" } }"),
       {"file:2: tenant \"b\": token_sha256", "tenant \"a\" has it"}},
      {"tenant { name: \"a\" }\ntenant { name: \"a\" }",
       {"file:2: tenant \"a\"", "each name once"}},
      {"tenant { }", {"file:1: name: \"\"", "1 to 128"}},
      {"tenant { name: \"" + longest + "\" }", {"name", "1 to 128"}},
      {"tenant { name: \"dns:a\" }", {"name: \"dns:a\"", "of A-Z"}},
      {"tenant { name: \"a b\" }", {"name: \"a b\"", "of A-Z"}},
      {"tenant { name: \"a\\nb\" }", {"name: \"a\\nb\"", "of A-Z"}},
      {"tenant { name: \"anonymous\" }", {"neither \"anonymous\""}},
      {"tenant { name: \"other\" }", {"nor \"other\""}},
      {"default_tenant { name: \"d\" }", {"file:1: name: \"d\"", "none for default_tenant"}},
      {"\ndefault_tenant { identity { dns: \"a\" } }", {"file:2: identity", "default_tenant"}},
      {"\ndefault_tenant { weight: 1000 }", {"file:2: weight"}},
      {std::string("tenant { name: \"a\0\" }", 20), {"file:1"}},
      {"[type.googleapis.com/blockd.v1.TenantsFile] {}", {"file:1:"}},
      {std::string(10000, '{'), {"file:1:"}},
      {std::string(kMaxTenantsFileBytes + 1, ' '), {"file: 1048577 bytes", "1048576"}},
  };
  for (const Wrong& wrong : cases) {
    const absl::Status status = Parse(wrong.text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong.text.substr(0, 200);
    for (const std::string& part : wrong.said) {
      EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " in " << status;
    }
    const auto detail = InvalidFieldOf(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat(detail->field, ": "))) << status;
    EXPECT_FALSE(detail->came.empty() || detail->expected.empty()) << status;
    EXPECT_LT(status.message().size(), 1000u);
    EXPECT_FALSE(absl::StrContains(status.message(), "my-secret"));
  }
}

TEST(TenantsFileTest, CountsAreBounded) {
  std::string tenants, identities = "tenant { name: \"t\"";
  for (int k = 0; k < 1001; ++k) {
    absl::StrAppend(&tenants, "tenant { name: \"t", k, "\" }\n");
    absl::StrAppend(&identities, "identity { dns: \"d", k, "\" }\n");
  }
  EXPECT_TRUE(absl::StrContains(Parse(tenants).status().message(), "1001 tenants"));
  EXPECT_TRUE(absl::StrContains(Parse(identities + "}").status().message(), "at most 1000"));
  tenants.resize(tenants.rfind("tenant"));
  const absl::StatusOr<ListedTenants> parsed = Parse(tenants);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.tenants.size(), 1000u);
}

TEST(TenantsFileTest, TheOneThatIsDeployedIsRight) {
  const absl::StatusOr<ListedTenants> tenants = ReadTenantsFile(BLOCKD_DEPLOY "/tenants.textproto");
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->config.tenants.size(), 4u);
  EXPECT_EQ(tenants->config.tenants[0].name, "control");
  EXPECT_EQ(tenants->config.tenants[0].highest_class, PriorityClass::kRealtime);
  const Principal* operators =
      tenants->identities.Find(NameKind::kUri, "spiffe://plant.example/operators");
  ASSERT_NE(operators, nullptr);
  EXPECT_TRUE(operators->roles.Has(Role::kAdmin));
  EXPECT_TRUE(tenants->identities.has_tokens());
}

TEST(TenantsFileTest, AFileThatCannotBeReadSaysSo) {
  const test::TempFolder folder;
  for (const std::string& path : {folder / "nothing", folder.path()}) {
    const absl::Status status = ReadTenantsFile(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_TRUE(absl::StrContains(status.message(), path + ": expected a file that can be read"))
        << status;
  }
}

TEST(IdentitiesTest, AWrongFileLeavesTheOldOneInForce) {
  const test::TempFolder folder;
  const std::string path = folder / "tenants";
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  write("tenant { name: \"a\" identity { metadata: \"x\" } }");
  auto identities = Identities::Load(path, {.trust_caller_metadata = true});
  ASSERT_TRUE(identities.ok()) << identities.status();
  Peer peer;
  peer.caller = {"x"};
  EXPECT_EQ((*identities)->Identify(peer)->tenant, "a");
  const std::shared_ptr<const ListedTenants> first = (*identities)->tenants();
  write("tenant { name: \"b\" identity { metadata: \"x\" } } tenant { }");
  EXPECT_TRUE(absl::IsInvalidArgument((*identities)->Reload().status()));
  EXPECT_EQ((*identities)->Identify(peer)->tenant, "a");
  EXPECT_EQ((*identities)->tenants(), first);
  write("tenant { name: \"b\" identity { metadata: \"x\" } }");
  EXPECT_TRUE((*identities)->Reload().ok());
  EXPECT_EQ((*identities)->Identify(peer)->tenant, "b");
  EXPECT_EQ(first->config.tenants[0].name, "a");  // whoever holds the old one may go on
}

TEST(IdentitiesTest, AFirstFileHasToBeRight) {
  const absl::Status status = Identities::Load("/nowhere/tenants", {}).status();
  EXPECT_TRUE(absl::StartsWith(status.message(), "--tenants_file: /nowhere/tenants: expected"))
      << status;
}

}  // namespace
}  // namespace blockd::server
