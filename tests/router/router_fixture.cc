#include "tests/router/router_fixture.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/text/metrics_page.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                    listen(fd, 1) == 0;
  close(fd);
  return free;
}

std::string ProgramOf(const char* variable) {
  const char* path = std::getenv(variable);
  EXPECT_NE(path, nullptr) << variable << " is not set: run `tests/run.sh router`";
  return path != nullptr ? path : "";
}

std::string ReadDeployed(const std::string& name) {
  const auto text = blockctl::ReadFile(absl::StrCat(BLOCKD_DEPLOY_FOLDER "/router/", name));
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

// Each of the replacements must be of something that is there.
std::string Replaced(std::string text, const std::vector<std::pair<std::string, std::string>>& by) {
  for (const auto& [from, to] : by) {
    EXPECT_TRUE(absl::StrContains(text, from)) << "no \"" << from << "\" in deploy/router";
    text = absl::StrReplaceAll(text, {{from, to}});
  }
  return text;
}

void WriteFile(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  std::ofstream(draft) << text;
  ASSERT_EQ(std::rename(draft.c_str(), path.c_str()), 0) << path;
}

}  // namespace

int UnusedPort() {
  static std::atomic<int> next{getpid()};
  while (true) {
    const int port = 12000 + next++ % 16000;
    if (IsFree(port)) return port;
  }
}

client::SystemView View(const problems::Problem& problem) {
  return client::MakeSystemView(problem.num_blocks, problem.block_size, problem.diagonal.data(),
                                problem.coupling.data());
}

SolverProgram::SolverProgram(int index, const std::string& folder, std::vector<std::string> flags)
    : name_(absl::StrCat("solver-", index)),
      port_file_(absl::StrCat(folder, "/", name_, ".ports")),
      flags_(std::move(flags)),
      port_(UnusedPort()),
      metrics_port_(UnusedPort()) {
  Start();
}

void SolverProgram::Start() {
  std::remove(port_file_.c_str());
  std::vector<std::string> flags = {absl::StrCat("--server_name=", name_),
                                    absl::StrCat("--port=", port_),
                                    absl::StrCat("--metrics_port=", metrics_port_),
                                    absl::StrCat("--port_file=", port_file_),
                                    "--device_memory=128MiB",
                                    "--cpu_threads=1",
                                    "--log_level=warn"};
  flags.insert(flags.end(), flags_.begin(), flags_.end());
  program_ = std::make_unique<blockctl::RunningProgram>(BLOCKD_PROGRAM, flags);
  const bool serves =
      Eventually([&] { return access(port_file_.c_str(), F_OK) == 0 || program_->Ended(); });
  ASSERT_TRUE(serves && !program_->Ended()) << name_ << ": " << program_->Await().err;
}

void SolverProgram::Kill() {
  program_->Signal(SIGKILL);
  program_->Await();
}

void SolverProgram::Stop() {
  program_->Signal(SIGTERM);
  const blockctl::Outcome outcome = program_->Await();
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
}

std::string SolverProgram::address() const { return absl::StrCat("127.0.0.1:", port_); }

std::string SolverProgram::epoch() const {
  const auto info = client::SolverClient::Connect(address())->ServerInfo();
  EXPECT_TRUE(info.ok()) << info.status();
  if (!info.ok()) return "";
  EXPECT_EQ(info->server_name(), name_);
  return info->server_epoch();
}

int64_t SolverProgram::Metric(const std::string& name, const std::string& labels) const {
  const auto page = blockctl::FetchMetrics(absl::StrCat("127.0.0.1:", metrics_port_));
  EXPECT_TRUE(page.ok()) << page.status();
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(page.value_or(""), '\n')) {
    double value = 0;
    if (line.substr(0, line.find_first_of("{ ")) == name && absl::StrContains(line, labels) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return static_cast<int64_t>(sum);
}

void RouterTest::TearDown() {
  if (router_ == nullptr) return;
  router_->Signal(SIGTERM);
  const blockctl::Outcome outcome = router_->Await();
  if (HasFailure()) std::fprintf(stderr, "the router said:\n%s\n", outcome.err.c_str());
}

SolverProgram& RouterTest::AddServer(const std::vector<std::string>& flags) {
  const int index = static_cast<int>(servers_.size());
  servers_.push_back(std::make_unique<SolverProgram>(index, folder_.path(), flags));
  return *servers_.back();
}

void RouterTest::StartServers(int count, const std::vector<std::string>& flags) {
  for (int i = 0; i < count; ++i) AddServer(flags);
}

void RouterTest::WriteClusters() {
  const std::string endpoint =
      "      - endpoint: {address: {socket_address: {address: blockd-pods, port_value: 7117}}}\n";
  std::string endpoints;
  for (const auto& server : servers_) {
    absl::StrAppend(&endpoints, Replaced(endpoint, {{"blockd-pods", "127.0.0.1"},
                                                    {"7117", absl::StrCat(server->port())}}));
  }
  WriteFile(folder_ / "clusters.yaml",
            Replaced(ReadDeployed("clusters.yaml"), {{"type: STRICT_DNS", "type: STATIC"},
                                                     {"  dns_refresh_rate: 2s\n", ""},
                                                     {"  respect_dns_ttl: false\n", ""},
                                                     {endpoint, endpoints}}));
}

void RouterTest::StartEnvoy() {
  router_port_ = UnusedPort();
  ready_port_ = UnusedPort();
  admin_port_ = UnusedPort();
  WriteClusters();
  WriteFile(folder_ / "envoy.yaml",
            Replaced(ReadDeployed("envoy.yaml"),
                     {{"/etc/envoy", folder_.path()},
                      {"0.0.0.0", "127.0.0.1"},
                      {"port_value: 7117", absl::StrCat("port_value: ", router_port_)},
                      {"port_value: 7119", absl::StrCat("port_value: ", ready_port_)},
                      {"port_value: 9901", absl::StrCat("port_value: ", admin_port_)}}));
  router_ = std::make_unique<blockctl::RunningProgram>(
      ProgramOf("BLOCKD_ENVOY"),
      std::vector<std::string>{"-c", folder_ / "envoy.yaml", "--concurrency", "2",
                               "--disable-hot-restart", "-l", "warning"});
  ASSERT_TRUE(Eventually([&] { return FindsAllHealthy() || router_->Ended(); }));
  ASSERT_FALSE(router_->Ended()) << router_->Await().err;
}

bool RouterTest::FindsHealthy(const SolverProgram& server) const {
  return absl::StrContains(HttpGet(admin_port_, "/clusters"),
                           absl::StrCat("blockd::", server.address(), "::health_flags::healthy"));
}

bool RouterTest::FindsAllHealthy() const {
  for (const auto& server : servers_) {
    if (!FindsHealthy(*server)) return false;
  }
  return true;
}

std::string RouterTest::EnvoyReady() const {
  const std::string answer = HttpGet(ready_port_, "/ready");
  return answer.substr(0, answer.find("\r\n"));
}

void RouterTest::StartHaproxy() {
  router_port_ = UnusedPort();
  admin_port_ = UnusedPort();
  std::string servers;
  for (size_t i = 0; i < servers_.size(); ++i) {
    absl::StrAppend(&servers, "  server blockd-", i, " ", servers_[i]->address(), "\n");
  }
  const std::string deployed = ReadDeployed("haproxy.cfg");
  const size_t first = deployed.find("  server blockd-0 ");
  ASSERT_NE(first, std::string::npos);
  WriteFile(folder_ / "haproxy.cfg",
            Replaced(deployed.substr(0, first) + servers,
                     {{"bind :7117", absl::StrCat("bind 127.0.0.1:", router_port_)},
                      {"bind :7119", absl::StrCat("bind 127.0.0.1:", admin_port_)}}));
  const std::string program = ProgramOf("BLOCKD_HAPROXY");
  const blockctl::Outcome checked =
      blockctl::RunProgram(program, {"-c", "-f", folder_ / "haproxy.cfg"});
  ASSERT_EQ(checked.exit_status, 0) << checked.err;
  router_ = std::make_unique<blockctl::RunningProgram>(
      program, std::vector<std::string>{"-db", "-f", folder_ / "haproxy.cfg"});
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(HttpGet(admin_port_, "/ready"), " 200 ") || router_->Ended();
  }));
  ASSERT_FALSE(router_->Ended()) << router_->Await().err;
}

std::string RouterTest::target() const { return absl::StrCat("127.0.0.1:", router_port_); }

client::SolverClient RouterTest::Connect(const client::ClientOptions& options) const {
  return *client::SolverClient::Connect(target(), options);
}

int RouterTest::MakerOf(const client::Factorization& made) const {
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (absl::EndsWith(made.handle, servers_[i]->epoch())) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no server made this handle";
  return -1;
}

}  // namespace blockd::test
