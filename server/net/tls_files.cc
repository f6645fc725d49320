#include "server/net/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/identity/small_file.h"

namespace blockd::server {
namespace {

constexpr size_t kMaxTlsFileBytes = size_t{4} << 20;

struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
template <typename T>
using OpenSslPtr = std::unique_ptr<T, FreeOpenSsl>;
using Certificates = std::vector<OpenSslPtr<X509>>;

absl::Status RefuseTls(const char* flag, const std::string& path, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": expected ", expected));
}

// The reason that OpenSSL gives for its last failure.
std::string OpenSslReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "" : absl::StrCat(" (OpenSSL says: ", reason, ")");
}

absl::Status ReadTlsFile(const char* flag, const std::string& path, std::string* text) {
  *text = ReadSmallFile(path, kMaxTlsFileBytes).value_or("");
  if (text->empty() || text->size() > kMaxTlsFileBytes) {
    return RefuseTls(flag, path,
                     absl::StrCat("a file that can be read, is not empty and has at most ",
                                  kMaxTlsFileBytes, " bytes"));
  }
  return absl::OkStatus();
}

// All that there are before the file's end or the first that is none.
Certificates ParseCertificates(const std::string& pem) {
  Certificates certificates;
  const OpenSslPtr<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();
  return certificates;
}

OpenSslPtr<EVP_PKEY> ParseKey(const std::string& pem) {
  const OpenSslPtr<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // Nobody is there to type a passphrase, which OpenSSL would ask for at the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  OpenSslPtr<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  return key;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

// As the handshake will use them, so that what it would not take is told now.
absl::Status CheckTogether(const TlsPaths& paths, const Certificates& chain, EVP_PKEY* key,
                           const Certificates& authorities) {
  const OpenSslPtr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return absl::InternalError("OpenSSL gives no TLS context");
  ERR_clear_error();
  if (SSL_CTX_use_certificate(context.get(), chain[0].get()) != 1) {
    return RefuseTls("tls_cert_file", paths.cert_file,
                     absl::StrCat("a certificate that can be used", OpenSslReason()));
  }
  for (size_t k = 1; k < chain.size(); ++k) {
    if (SSL_CTX_add1_chain_cert(context.get(), chain[k].get()) != 1) {
      return RefuseTls("tls_cert_file", paths.cert_file,
                       absl::StrCat("a chain that can be used", OpenSslReason()));
    }
  }
  if (X509_check_private_key(chain[0].get(), key) != 1) {
    return RefuseTls(
        "tls_key_file", paths.key_file,
        absl::StrCat("the key of the certificate in ", paths.cert_file, OpenSslReason()));
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key) != 1) {
    return RefuseTls("tls_key_file", paths.key_file,
                     absl::StrCat("a key that can be used", OpenSslReason()));
  }
  for (const OpenSslPtr<X509>& authority : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get()) != 1) {
      return RefuseTls("tls_client_ca_file", paths.client_ca_file,
                       absl::StrCat("certificates of authorities", OpenSslReason()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths) {
  TlsFiles files;
  absl::Status status = ReadTlsFile("tls_cert_file", paths.cert_file, &files.certificate_chain);
  status.Update(ReadTlsFile("tls_key_file", paths.key_file, &files.private_key));
  if (!paths.client_ca_file.empty()) {
    status.Update(
        ReadTlsFile("tls_client_ca_file", paths.client_ca_file, &files.client_authorities));
  }
  if (!status.ok()) return status;
  const Certificates chain = ParseCertificates(files.certificate_chain);
  if (chain.empty()) {
    return RefuseTls("tls_cert_file", paths.cert_file, "PEM with the server's certificate");
  }
  const OpenSslPtr<EVP_PKEY> key = ParseKey(files.private_key);
  if (key == nullptr) {
    return RefuseTls("tls_key_file", paths.key_file, "PEM with a private key, no passphrase on it");
  }
  const Certificates authorities = ParseCertificates(files.client_authorities);
  if (!paths.client_ca_file.empty() && authorities.empty()) {
    return RefuseTls("tls_client_ca_file", paths.client_ca_file,
                     "PEM with the certificates of authorities");
  }
  if (absl::Status together = CheckTogether(paths, chain, key.get(), authorities); !together.ok()) {
    return together;
  }
  files.expires = absl::InfiniteFuture();
  files.begins = absl::InfinitePast();
  for (const OpenSslPtr<X509>& certificate : chain) {
    files.expires = std::min(files.expires, ToTime(X509_get0_notAfter(certificate.get())));
    files.begins = std::max(files.begins, ToTime(X509_get0_notBefore(certificate.get())));
  }
  return files;
}

}  // namespace blockd::server
