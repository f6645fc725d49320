// Who asks, from what is known of a connection; with names that are made to be taken for others.
#include "server/identity/identify.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

constexpr char kToken[] = "a-token-that-nobody-would-guess";

class IdentifyTest : public ::testing::Test {
 protected:
  // As if the transport had said it. What it views lives as long as the test.
  Peer& Names(NameKind kind, std::vector<absl::string_view> names) {
    peer_.has_certificate = true;
    peer_.names[static_cast<size_t>(kind)] = std::move(names);
    return peer_;
  }
  absl::StatusOr<Principal> Who() const { return Identify(peer_, rules_, table_); }
  // The tenant, or the code of the refusal.
  std::string Tenant() const {
    const absl::StatusOr<Principal> principal = Who();
    return principal.ok() ? principal->tenant : absl::StatusCodeToString(principal.status().code());
  }
  void List(NameKind kind, const std::string& name, const std::string& tenant,
            RoleSet roles = {Role::kUse}) {
    ASSERT_TRUE(table_.Add(kind, name, {tenant, roles}));
  }

  Peer peer_;
  IdentityRules rules_;
  IdentityTable table_;
};

TEST_F(IdentifyTest, NobodyIsWhoSaysNothingOrWhatIsNotTrusted) {
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  peer_.caller = {"alice"};
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "not trusted"));
}

TEST_F(IdentifyTest, ARefusalSaysWhatIsExpected) {
  rules_.client_certificates = rules_.accept_tokens = true;
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "a client certificate"));
  EXPECT_FALSE(absl::StrContains(Who().status().message(), "Bearer"));
  table_.AddToken(*HashToken(kToken), {"t", {}});
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "Bearer"));
}

TEST_F(IdentifyTest, TrustedCallersNameThemselves) {
  rules_.trust_caller_metadata = true;
  EXPECT_EQ(Tenant(), kAnonymous);
  peer_.caller = {"alice"};
  EXPECT_EQ(Tenant(), "metadata:alice");
  EXPECT_EQ(Who()->roles, RoleSet{Role::kUse});
  peer_.caller = {kAnonymous};  // is not nobody
  EXPECT_EQ(Tenant(), "metadata:anonymous");
  peer_.caller = {"CN=alice  alice.example"};
  EXPECT_EQ(Tenant(), "metadata:CN=alice  alice.example");
}

TEST_F(IdentifyTest, ANameInMetadataIsBounded) {
  rules_.trust_caller_metadata = true;
  const std::string longest(kMaxNameBytes, 'x'), longer(kMaxNameBytes + 1, 'x');
  peer_.caller = {longest};
  EXPECT_EQ(Tenant(), "metadata:" + longest);
  for (const std::vector<absl::string_view>& bad :
       std::vector<std::vector<absl::string_view>>{{longer},
                                                   {""},
                                                   {"a", "b"},
                                                   {"a", "a"},
                                                   {absl::string_view("a\0b", 3)},
                                                   {"a\nb"},
                                                   {"\xc3\xa4"},
                                                   {"a\tb"}}) {
    peer_.caller = bad;
    EXPECT_EQ(Tenant(), "UNAUTHENTICATED") << absl::CEscape(bad[0]);
  }
}

TEST_F(IdentifyTest, TheSameNameOfAnotherKindIsSomebodyElse) {
  rules_.certificate_kinds = {NameKind::kUri, NameKind::kDns, NameKind::kEmail,
                              NameKind::kCommonName};
  const std::pair<NameKind, const char*> kinds[] = {{NameKind::kUri, "uri:a"},
                                                    {NameKind::kDns, "dns:a"},
                                                    {NameKind::kEmail, "email:a"},
                                                    {NameKind::kCommonName, "common_name:a"}};
  for (const auto& [kind, tenant] : kinds) {
    peer_ = {};
    Names(kind, {"a"});
    EXPECT_EQ(Tenant(), tenant);
  }
  List(NameKind::kDns, "a", "listed");
  for (const auto& [kind, tenant] : kinds) {
    peer_ = {};
    Names(kind, {"a"});
    EXPECT_EQ(Tenant(), kind == NameKind::kDns ? "listed" : tenant);
  }
  rules_.trust_caller_metadata = true;
  peer_ = {};
  peer_.caller = {"a"};
  EXPECT_EQ(Tenant(), "metadata:a");
}

TEST_F(IdentifyTest, TheFirstKindThatTheCertificateHasDecides) {
  Names(NameKind::kDns, {"a.example"});
  Names(NameKind::kCommonName, {"somebody"});
  EXPECT_EQ(Tenant(), "dns:a.example");
  Names(NameKind::kUri, {"spiffe://x/a"});
  EXPECT_EQ(Tenant(), "uri:spiffe://x/a");
  rules_.certificate_kinds = {NameKind::kCommonName, NameKind::kUri};
  EXPECT_EQ(Tenant(), "common_name:somebody");
  rules_.certificate_kinds = {NameKind::kEmail};
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "expected email"));
}

// Not even where the second kind's name is a tenant's: which kind counts is no caller's choice.
TEST_F(IdentifyTest, ALaterKindIsNotLookedAt) {
  List(NameKind::kDns, "a.example", "listed");
  Names(NameKind::kUri, {"spiffe://x/unknown"});
  Names(NameKind::kDns, {"a.example"});
  EXPECT_EQ(Tenant(), "uri:spiffe://x/unknown");
  Names(NameKind::kUri, {"one", "two"});
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
}

TEST_F(IdentifyTest, ACertificateWithoutANameIsNobody) {
  peer_.has_certificate = true;
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  Names(NameKind::kCommonName, {"alice"});  // does not count by default
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
}

TEST_F(IdentifyTest, OfSeveralNamesOneTenantsCount) {
  Names(NameKind::kDns, {"a", "b"});
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "none is a tenant's"));
  List(NameKind::kDns, "b", "tenant-b");
  EXPECT_EQ(Tenant(), "tenant-b");
  List(NameKind::kDns, "a", "tenant-a");
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "several are tenants'"));
  List(NameKind::kDns, "b.internal", "tenant-b");
  Names(NameKind::kDns, {"b", "b.internal"});
  EXPECT_EQ(Tenant(), "tenant-b");
}

TEST_F(IdentifyTest, AListOfNamesIsNotANameOfTheList) {
  List(NameKind::kDns, "a", "tenant-a");
  Names(NameKind::kDns, {"a,b"});
  EXPECT_EQ(Tenant(), "dns:a,b");
  Names(NameKind::kDns, {"a", "b"});
  EXPECT_EQ(Tenant(), "tenant-a");
  Names(NameKind::kDns, {"b", "b"});  // the same one twice is one
  EXPECT_EQ(Tenant(), "dns:b");
}

TEST_F(IdentifyTest, ANameThatIsNotOneWordOfALogIsNobodys) {
  const std::string too_long(kMaxListedNameBytes + 1, 'x');
  for (const absl::string_view bad :
       {absl::string_view("a\0", 2), absl::string_view("a\0.example", 10), absl::string_view(""),
        absl::string_view("a\nb"), absl::string_view("\x7f"), absl::string_view("\xff\xfe"),
        absl::string_view("*.example"), absl::string_view(too_long)}) {
    Names(NameKind::kDns, {bad});
    EXPECT_EQ(Tenant(), "UNAUTHENTICATED") << absl::CEscape(bad);
    Names(NameKind::kDns, {"a", bad});  // nor beside a good one
    EXPECT_EQ(Tenant(), "UNAUTHENTICATED") << absl::CEscape(bad);
  }
}

TEST_F(IdentifyTest, ALongNameNeedsATenant) {
  const std::string name = absl::StrCat("spiffe://x/", std::string(300, 'y'));
  Names(NameKind::kUri, {name});
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  List(NameKind::kUri, name, "listed");
  EXPECT_EQ(Tenant(), "listed");
}

TEST_F(IdentifyTest, ATokenIsItsTenants) {
  rules_.accept_tokens = true;
  table_.AddToken(*HashToken(kToken), {"t", {Role::kUse, Role::kAdmin}});
  for (const char* scheme : {"Bearer ", "bearer ", "BEARER "}) {
    const std::string value = absl::StrCat(scheme, kToken);
    peer_.authorization = {value};
    EXPECT_EQ(Tenant(), "t");
    EXPECT_TRUE(Who()->roles.Has(Role::kAdmin));
  }
}

TEST_F(IdentifyTest, AWrongTokenIsNobodyWhateverElseIsThere) {
  rules_.accept_tokens = rules_.trust_caller_metadata = true;
  table_.AddToken(*HashToken(kToken), {"t", {Role::kUse}});
  Names(NameKind::kDns, {"a"});
  peer_.caller = {"alice"};
  const std::string good = absl::StrCat("Bearer ", kToken);
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{""},
                                             {"Bearer"},
                                             {"Bearer "},
                                             {kToken},
                                             {"Basic YTpi"},
                                             {good + "x"},
                                             {"Bearer " + good},
                                             {good, good},
                                             {good.substr(0, good.size() - 1)},
                                             {good + " "}}) {
    peer_.authorization.assign(bad.begin(), bad.end());
    EXPECT_EQ(Tenant(), "UNAUTHENTICATED") << bad[0];
    EXPECT_FALSE(absl::StrContains(Who().status().message(), kToken));
  }
}

TEST_F(IdentifyTest, ATokenInPlainTextIsRefusedEvenIfItIsRight) {
  table_.AddToken(*HashToken(kToken), {"t", {Role::kUse}});
  const std::string value = absl::StrCat("Bearer ", kToken);
  peer_.authorization = {value};
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");
  EXPECT_TRUE(absl::StrContains(Who().status().message(), "without TLS"));
}

TEST_F(IdentifyTest, TrustedMetadataSpeaksForOthersThanTheCertificate) {
  Names(NameKind::kDns, {"router"});
  peer_.caller = {"alice"};
  EXPECT_EQ(Tenant(), "dns:router");
  rules_.trust_caller_metadata = true;
  EXPECT_EQ(Tenant(), "metadata:alice");
  peer_.caller = {};
  EXPECT_EQ(Tenant(), "dns:router");
}

TEST_F(IdentifyTest, AProcessAtAUnixSocketIsItsUser) {
  peer_.unix_uid = 1000;
  EXPECT_EQ(Tenant(), "uid:1000");
  List(NameKind::kUnixUid, "1000", "ada");
  EXPECT_EQ(Tenant(), "ada");
  peer_.unix_uid = 0;
  EXPECT_EQ(Tenant(), "uid:0");
}

TEST_F(IdentifyTest, AFileMayRefuseWhomItDoesNotName) {
  table_.refuse_unlisted = true;
  List(NameKind::kDns, "a", "listed");
  Names(NameKind::kDns, {"a"});
  EXPECT_EQ(Tenant(), "listed");
  Names(NameKind::kDns, {"b"});
  EXPECT_EQ(Tenant(), "PERMISSION_DENIED");
  peer_ = {};
  rules_.trust_caller_metadata = true;
  EXPECT_EQ(Tenant(), "UNAUTHENTICATED");  // "anonymous" is nobody then
  peer_.caller = {"a"};
  EXPECT_EQ(Tenant(), "PERMISSION_DENIED");
}

TEST_F(IdentifyTest, ARoleThatLacksIsNamed) {
  const Principal user{"t", {Role::kUse}};
  EXPECT_TRUE(CheckRole(user, {Role::kUse}).ok());
  for (const Role role : {Role::kAdmin, Role::kMetrics}) {
    EXPECT_TRUE(absl::IsPermissionDenied(CheckRole(user, {role})));
  }
  EXPECT_EQ(CheckRole(user, {Role::kAdmin}).message(), "the tenant t has not the role ADMIN");
  EXPECT_TRUE(CheckRole(user, {Role::kAdmin, Role::kUse}).ok());
  EXPECT_EQ(CheckRole(user, {Role::kMetrics, Role::kAdmin}).message(),
            "the tenant t has not the role ADMIN or METRICS");
  EXPECT_TRUE(absl::IsPermissionDenied(CheckRole({"t", {}}, {Role::kUse})));
}

TEST(CertificateKindsTest, AreAListWithoutDoubles) {
  EXPECT_EQ(ParseCertificateKinds("uri,dns").value(),
            (std::vector{NameKind::kUri, NameKind::kDns}));
  EXPECT_EQ(ParseCertificateKinds("common_name,email").value(),
            (std::vector{NameKind::kCommonName, NameKind::kEmail}));
  for (const char* bad : {"", ",", "uri,", "uri,uri", "URI", "metadata", "uid", "uri, dns", "ip"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseCertificateKinds(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace blockd::server
