// The page of metrics over HTTP, whoever else is connected.
#include "server/metrics_port.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::test {
namespace {

class MetricsPortTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(64); }
  void Start(int64_t max_connections) {
    absl::StatusOr<server::Listener> listener =
        server::Listen("127.0.0.1", 0, absl::InfiniteDuration());
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto started = server::MetricsPort::Start(*std::move(listener), max_connections,
                                              [this] { return absl::StrCat("page ", ++pages_); });
    ASSERT_TRUE(started.ok()) << started.status();
    port_ = *std::move(started);
  }
  // Asked with `verb`: the answer's first line, and what follows its headers.
  void ExpectAnswer(const std::string& verb, const std::string& path, const std::string& status,
                    const std::string& body) {
    const std::string answer =
        Ask(port_->port(), verb + " " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 " + status)) << answer;
    EXPECT_TRUE(absl::StrContains(answer, "text/plain; version=0.0.4")) << answer;
    EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), body);
  }

  int pages_ = 0;
  std::unique_ptr<server::MetricsPort> port_;
};

TEST_F(MetricsPortTest, ThePageIsMadeAnewForEachScrape) {
  ExpectAnswer("GET", "/metrics", "200", "page 1");
  ExpectAnswer("GET", "/metrics?name=x", "200", "page 2");
  ExpectAnswer("HEAD", "/metrics", "200", "");
}

TEST_F(MetricsPortTest, NothingElseIsServed) {
  ExpectAnswer("GET", "/", "404", "the metrics are at /metrics\n");
  ExpectAnswer("GET", "/metrics/..", "404", "the metrics are at /metrics\n");
  ExpectAnswer("POST", "/metrics", "405", "GET /metrics\n");
  EXPECT_EQ(pages_, 0);
}

TEST_F(MetricsPortTest, SilentConnectionsHoldUpNobody) {
  std::vector<server::FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) {
    silent.emplace_back(ConnectTo(port_->port()));
    ASSERT_GE(silent.back().get(), 0);
    if (i % 2 == 0) send(silent.back().get(), "GET /met", 8, MSG_NOSIGNAL);
  }
  ExpectAnswer("GET", "/metrics", "200", "page 1");
}

TEST_F(MetricsPortTest, MoreConnectionsThanThereMayBeWaitForSilentOnesToEnd) {
  port_.reset();
  Start(4);
  std::vector<server::FileDescriptor> silent;
  for (int i = 0; i < 6; ++i) silent.emplace_back(ConnectTo(port_->port()));
  ExpectAnswer("GET", "/metrics", "200", "page 1");
}

TEST_F(MetricsPortTest, ItStopsWithConnectionsOpen) {
  const server::FileDescriptor silent(ConnectTo(port_->port()));
  port_.reset();
  char byte = 0;
  EXPECT_LE(read(silent.get(), &byte, 1), 0);  // closed
}

}  // namespace
}  // namespace blockd::test
