// The files of TLS: right ones, and each way of being wrong in words of its own.
#include "server/net/tls_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/certificates.h"

namespace blockd::server {
namespace {

class TlsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.MakeAuthority("ca");
    files_.Make("server", "server", {test::Dns("localhost")});
    std::ofstream(files_.Path("text")) << "no certificate\n";
    std::ofstream(files_.Path("empty")) << "";
    std::ofstream(files_.Path("cut")) << files_.Text("server.pem").substr(0, 200);
  }
  absl::StatusOr<TlsFiles> Read(const std::string& cert, const std::string& key,
                                const std::string& ca = "ca.pem") const {
    return ReadTlsFiles({files_.Path(cert), files_.Path(key), ca.empty() ? "" : files_.Path(ca)});
  }
  // The refusal names the flag, the file and this.
  void ExpectRefused(const absl::StatusOr<TlsFiles>& read, const std::string& flag,
                     const std::string& file, const std::string& expected) const {
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    EXPECT_TRUE(absl::StartsWith(read.status().message(),
                                 absl::StrCat("--", flag, "=", files_.Path(file), ": expected ")))
        << read.status();
    EXPECT_TRUE(absl::StrContains(read.status().message(), expected)) << read.status();
  }
  test::Certificates files_;
};

TEST_F(TlsFilesTest, RightOnesArrive) {
  const absl::StatusOr<TlsFiles> read = Read("server.pem", "server.key");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->certificate_chain, files_.Text("server.pem"));
  EXPECT_EQ(read->private_key, files_.Text("server.key"));
  EXPECT_EQ(read->client_authorities, files_.Text("ca.pem"));
  EXPECT_LT(read->begins, absl::Now() + absl::Seconds(1));
  EXPECT_GT(read->expires, absl::Now() + absl::Hours(23));
  EXPECT_LT(read->expires, absl::Now() + absl::Hours(25));
  const absl::StatusOr<TlsFiles> without = Read("server.pem", "server.key", "");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->client_authorities, "");
}

TEST_F(TlsFilesTest, AChainEndsWithItsFirstCertificateThatEnds) {
  files_.Make("old", "old", {}, "ca", -1);
  std::ofstream(files_.Path("chain.pem")) << files_.Text("server.pem") << files_.Text("old.pem");
  const absl::StatusOr<TlsFiles> read = Read("chain.pem", "server.key");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_LT(read->expires, absl::Now());
}

TEST_F(TlsFilesTest, WhatCannotBeReadIsNamed) {
  for (const char* file : {"nowhere", "empty", ""}) {
    const std::string expected = "a file that can be read, is not empty";
    ExpectRefused(Read(file, "server.key"), "tls_cert_file", file, expected);
    ExpectRefused(Read("server.pem", file), "tls_key_file", file, expected);
    if (*file == '\0') continue;  // no file is asked for
    ExpectRefused(Read("server.pem", "server.key", file), "tls_client_ca_file", file, expected);
  }
}

TEST_F(TlsFilesTest, WhatIsNoPemIsNamed) {
  for (const char* file : {"text", "cut", "server.key"}) {
    ExpectRefused(Read(file, "server.key"), "tls_cert_file", file, "PEM with the server's");
    ExpectRefused(Read("server.pem", "server.key", file), "tls_client_ca_file", file,
                  "PEM with the certificates");
  }
  for (const char* file : {"text", "cut", "server.pem"}) {
    ExpectRefused(Read("server.pem", file), "tls_key_file", file, "PEM with a private key");
  }
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsSaidToBeOne) {
  ExpectRefused(Read("server.pem", "ca.key"), "tls_key_file", "ca.key",
                absl::StrCat("the key of the certificate in ", files_.Path("server.pem")));
}

TEST_F(TlsFilesTest, NobodyIsAskedForAPassphrase) {
  const std::string command =
      absl::StrCat("openssl ec -aes256 -passout pass:secret -in ", files_.Path("server.key"),
                   " -out ", files_.Path("locked.key"), " 2>", files_.Path("log"));
  ASSERT_EQ(std::system(command.c_str()), 0);
  ExpectRefused(Read("server.pem", "locked.key"), "tls_key_file", "locked.key", "no passphrase");
}

TEST_F(TlsFilesTest, AFileHasABound) {
  std::ofstream(files_.Path("huge")) << std::string((size_t{4} << 20) + 1, 'x');
  ExpectRefused(Read("huge", "server.key"), "tls_cert_file", "huge", "at most 4194304 bytes");
}

}  // namespace
}  // namespace blockd::server
