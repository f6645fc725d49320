#include "server/net/transport_security.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/base/thread_name.h"
#include "server/log/logging.h"

namespace blockd::server {
namespace {

constexpr absl::Duration kExpiresSoon = absl::Hours(24 * 30);
constexpr absl::Duration kRepeatWarning = absl::Hours(24);

// gRPC 1.51 has no setting for the version. It has one for the ciphers of TLS 1.2, apart from those
// of 1.3. With a shared key, which nobody is given, no handshake of TLS 1.2 comes about. Read once
// a process, so it has to stand before the first certificate is used.
absl::Status SetMinVersion(const std::string& version) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto& in_force = *new std::string;
  absl::MutexLock lock(&mutex);
  if (!in_force.empty() && in_force != version) {
    return absl::InvalidArgumentError(absl::StrCat("--tls_min_version=", version, ": expected ",
                                                   in_force, ", which this process has already"));
  }
  if (in_force.empty() && version == "1.3") {
    setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
  }
  in_force = version;
  return absl::OkStatus();
}

}  // namespace

class TransportSecurity::Impl {
 public:
  explicit Impl(TlsOptions options) : options_(std::move(options)) {}

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (watcher_.joinable()) watcher_.join();
  }

  absl::Status Start() {
    if (absl::Status status = SetMinVersion(options_.min_version); !status.ok()) return status;
    if (absl::Status status = Refresh(); !status.ok()) return status;
    watcher_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  absl::Status Refresh() {
    absl::StatusOr<TlsFiles> read = ReadTlsFiles(options_.paths);
    absl::MutexLock lock(&mutex_);
    if (!read.ok()) {
      // Said once, not at each look.
      if (version_ > 0 && complaint_ != read.status().message()) {
        LogLine(LogLevel::kError, "tls_files_refused")
            .Add("message", std::string(read.status().message()))
            .Add("in_force", "the old ones")
            .Write();
      }
      complaint_ = std::string(read.status().message());
      return read.status();
    }
    complaint_.clear();
    const bool same = version_ > 0 && read->certificate_chain == files_.certificate_chain &&
                      read->private_key == files_.private_key &&
                      read->client_authorities == files_.client_authorities;
    if (!same) {
      files_ = *std::move(read);
      ++version_;
      next_warning_ = absl::InfinitePast();
      LogLine(LogLevel::kInfo, "tls_files").Add("expires", Text(files_.expires)).Write();
    }
    WarnOfTheEnd();
    return absl::OkStatus();
  }

  absl::Duration TimeToExpiry() const {
    absl::MutexLock lock(&mutex_);
    return files_.expires - absl::Now();
  }

  int AddPort(const std::string& address, grpc_server* server) {
    Port* port = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      port = &ports_.emplace_back(Port{this});
    }
    const auto request = options_.paths.client_ca_file.empty()
                             ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    grpc_server_credentials* credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, &Fetch, port));
    const int bound = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return bound;
  }

 private:
  // The certificates that a port was given. gRPC accepts the connections of a port one by one.
  struct Port {
    Impl* owner;
    int64_t version = 0;
  };

  // gRPC asks as each connection begins.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* user_data, grpc_ssl_server_certificate_config** config) {
    auto* port = static_cast<Port*>(user_data);
    Impl& owner = *port->owner;
    absl::MutexLock lock(&owner.mutex_);
    if (port->version == owner.version_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    port->version = owner.version_;
    const TlsFiles& files = owner.files_;
    const grpc_ssl_pem_key_cert_pair pair = {files.private_key.c_str(),
                                             files.certificate_chain.c_str()};
    // gRPC wants authorities even where clients are asked for no certificate: nobody looks at them.
    const std::string& authorities =
        files.client_authorities.empty() ? files.certificate_chain : files.client_authorities;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  void Watch() {
    NameThread("tls");
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.watch_interval)) return;
      }
      Refresh().IgnoreError();  // it has said what is wrong
    }
  }

  static std::string Text(absl::Time time) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
  }

  void WarnOfTheEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = absl::Now();
    if (now < next_warning_) return;
    const char* what = files_.expires <= now                  ? "the certificate has expired"
                       : files_.begins > now                  ? "the certificate holds later only"
                       : files_.expires - now <= kExpiresSoon ? "the certificate expires soon"
                                                              : nullptr;
    if (what == nullptr) return;
    next_warning_ = now + kRepeatWarning;
    LogLine(LogLevel::kWarn, "certificate")
        .Add("message", what)
        .Add("file", options_.paths.cert_file)
        .Add("begins", Text(files_.begins))
        .Add("expires", Text(files_.expires))
        .Write();
  }

  const TlsOptions options_;
  mutable absl::Mutex mutex_;
  TlsFiles files_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // of files_; 0: none yet
  std::string complaint_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_warning_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::list<Port> ports_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

namespace {

class FileCredentials final : public grpc::ServerCredentials {
 public:
  using Bind = std::function<int(const std::string&, grpc_server*)>;
  explicit FileCredentials(Bind bind) : bind_(std::move(bind)) {}
  // Identities are looked at in each call, where a refusal can say why.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return bind_(address, server);
  }
  const Bind bind_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransportSecurity>> TransportSecurity::Start(
    const TlsOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<TransportSecurity>(new TransportSecurity(std::move(impl)));
}

TransportSecurity::TransportSecurity(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransportSecurity::~TransportSecurity() = default;

std::shared_ptr<grpc::ServerCredentials> TransportSecurity::credentials() {
  return std::make_shared<FileCredentials>(
      [impl = impl_.get()](const std::string& address, grpc_server* server) {
        return impl->AddPort(address, server);
      });
}

absl::Status TransportSecurity::Refresh() { return impl_->Refresh(); }
absl::Duration TransportSecurity::TimeToExpiry() const { return impl_->TimeToExpiry(); }

}  // namespace blockd::server
