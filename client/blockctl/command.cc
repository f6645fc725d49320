#include "client/blockctl/command.h"

#include <cstdio>
#include <cstdlib>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/base/target.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/text/exit_code.h"

namespace {

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

ABSL_FLAG(std::string, server, FromEnvironment("BLOCKD_SERVER", "127.0.0.1:7117"),
          "Where blockd serves, as host:port, [IPv6 address]:port or unix:path; the default is "
          "$BLOCKD_SERVER if set.");
ABSL_FLAG(std::string, caller, FromEnvironment("BLOCKD_CALLER", ""),
          "The name that handles belong to; the default is $BLOCKD_CALLER if set.");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(5),
          "Time for a call with its retries and uploads, as 30s.");
ABSL_FLAG(absl::Duration, wait, absl::ZeroDuration(),
          "Time to wait for the server to come up, as 30s; 0: do not wait.");
ABSL_FLAG(bool, json, false, "Write one JSON object to standard output, errors too.");
ABSL_FLAG(bool, quiet, false, "Write results and errors only.");
ABSL_FLAG(bool, tls, false, "Encrypt the connection; any of the next four flags turns it on too.");
ABSL_FLAG(std::string, tls_ca_file, "",
          "PEM file with the authorities to trust; empty: the system's.");
ABSL_FLAG(std::string, tls_cert_file, "", "PEM file with the client's certificate.");
ABSL_FLAG(std::string, tls_key_file, "", "PEM file with the client's private key.");
ABSL_FLAG(std::string, tls_server_name, "",
          "Name expected in the server's certificate; empty: the host of --server.");

ABSL_FLAG(std::string, token_file, FromEnvironment("BLOCKD_TOKEN_FILE", ""),
          "File with the secret that says who asks; needs TLS, but for a server on this host. The "
          "default is $BLOCKD_TOKEN_FILE if set.");
ABSL_FLAG(int32_t, upload_connections, 0,
          "TCP connections that a large matrix is sent over at once, 1 to 16; 0: one for each 64 "
          "MiB, at most 4 and at most half of this host's processors.");
ABSL_FLAG(std::string, priority, "interactive",
          "Which waiting work the server takes first: realtime (the earliest --timeout first), "
          "interactive or bulk. Above what the tenant may use it is lowered.");

namespace blockd::blockctl {
namespace {

absl::Status ReadPem(const std::string& path, std::string* text) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> read = ReadFile(path);
  if (!read.ok()) return read.status();
  *text = *std::move(read);
  return absl::OkStatus();
}

absl::Status SetTls(client::ClientOptions& options) {
  const std::string ca = absl::GetFlag(FLAGS_tls_ca_file);
  const std::string cert = absl::GetFlag(FLAGS_tls_cert_file);
  const std::string key = absl::GetFlag(FLAGS_tls_key_file);
  const std::string name = absl::GetFlag(FLAGS_tls_server_name);
  if (!absl::GetFlag(FLAGS_tls) && ca.empty() && cert.empty() && key.empty() && name.empty()) {
    return absl::OkStatus();
  }
  if (cert.empty() != key.empty()) {
    return UsageError("--tls_cert_file and --tls_key_file must be given together");
  }
  client::TlsOptions& tls = options.tls.emplace();
  tls.server_name = name;
  absl::Status status = ReadPem(ca, &tls.root_certificates);
  if (status.ok()) status = ReadPem(cert, &tls.certificate);
  if (status.ok()) status = ReadPem(key, &tls.private_key);
  return status;
}

absl::Status SetToken(client::ClientOptions& options) {
  const std::string path = absl::GetFlag(FLAGS_token_file);
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> read = ReadFile(path);
  if (!read.ok()) return read.status();
  options.token = std::string(absl::StripAsciiWhitespace(*read));
  if (options.token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token"));
  }
  return absl::OkStatus();
}

template <typename Client>
absl::StatusOr<Client> Connect() {
  const absl::StatusOr<client::ClientOptions> options = ClientOptionsFromFlags();
  if (!options.ok()) return options.status();
  absl::StatusOr<Client> client = Client::Connect(ServerFlag(), *options);
  const absl::Duration wait = absl::GetFlag(FLAGS_wait);
  if (client.ok() && wait > absl::ZeroDuration() && !client->WaitUntilConnected(wait)) {
    return absl::UnavailableError(absl::StrCat("no server at ", ServerFlag(), " within ",
                                               absl::FormatDuration(wait),
                                               client::ProxyNote(ServerFlag())));
  }
  return client;
}

}  // namespace

const std::vector<std::string_view>& CommonFlags() {
  static const auto& flags = *new std::vector<std::string_view>{
      "server",          "caller",    "timeout",     "wait",          "json",
      "quiet",           "tls",       "tls_ca_file", "tls_cert_file", "tls_key_file",
      "tls_server_name", "token_file"};
  return flags;
}

std::string ServerFlag() { return absl::GetFlag(FLAGS_server); }

absl::StatusOr<client::ClientOptions> ClientOptionsFromFlags() {
  client::ClientOptions options;
  options.caller = absl::GetFlag(FLAGS_caller);
  for (const char c : options.caller) {
    if (!absl::ascii_isprint(c)) return UsageError("--caller must be printable ASCII");
  }
  options.timeout = absl::GetFlag(FLAGS_timeout);
  if (options.timeout <= absl::ZeroDuration()) return UsageError("--timeout must be more than 0");
  if (const std::string wrong = client::WrongTarget(ServerFlag()); !wrong.empty()) {
    return UsageError(absl::StrCat("--server is ", wrong, ", expected ", client::kTargetForm));
  }
  options.upload_connections = absl::GetFlag(FLAGS_upload_connections);
  if (options.upload_connections < 0 || options.upload_connections > 16) {
    return UsageError("--upload_connections must be 0 to 16");
  }
  if (absl::Status status = SetTls(options); !status.ok()) return status;
  if (absl::Status status = SetToken(options); !status.ok()) return status;
  return options;
}

absl::StatusOr<client::SolverClient> ConnectFromFlags() { return Connect<client::SolverClient>(); }

absl::StatusOr<client::AdminClient> ConnectAdminFromFlags() {
  return Connect<client::AdminClient>();
}

absl::StatusOr<client::Priority> PriorityFromFlag() {
  const std::string priority = absl::GetFlag(FLAGS_priority);
  if (priority == "interactive") return client::Priority::kInteractive;
  if (priority == "realtime") return client::Priority::kRealtime;
  if (priority == "bulk") return client::Priority::kBulk;
  return UsageError("--priority must be realtime, interactive or bulk");
}

absl::Status RefuseArguments(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return absl::OkStatus();
  return UsageError(absl::StrCat("unexpected \"", arguments[0],
                                 "\": this command takes flags only, as --name=value"));
}

bool JsonAsked() { return absl::GetFlag(FLAGS_json); }

void Note(const std::string& line) {
  if (absl::GetFlag(FLAGS_quiet) || JsonAsked()) return;
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace blockd::blockctl
