// blockd as a process of its own, for programs that load it and are no unit tests.
#ifndef BLOCKD_TESTS_SUPPORT_SERVER_PROCESS_H_
#define BLOCKD_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace blockd::test {

// Starts with the constructor and serves when that returns; killed by the destructor, and when the
// thread that made it ends. A server that does not start ends this program. One thread at a time.
class ServerProcess {
 public:
  enum class Log { kNone, kUnread, kDrained };
  // Its log goes nowhere, to a pipe that nobody reads, or to a pipe that another process empties.
  // `tenants` is what the tenants file says; empty: there is none.
  ServerProcess(const std::string& program, std::vector<std::string> flags, Log log = Log::kNone,
                const std::string& tenants = "");
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  pid_t pid() const { return pid_; }
  int port() const { return port_; }
  std::string target() const;
  std::string metrics_target() const;

  // The kernel's figures for the process.
  int64_t ResidentBytes() const;
  int64_t OpenDescriptors() const;

  // SIGTERM; the exit status, or minus the signal. -1000 if it does not end within a minute.
  int Stop();

 private:
  TempFolder folder_;
  pid_t pid_ = -1, reader_ = -1;
  int unread_ = -1;
  int port_ = 0, metrics_port_ = 0;
};

// The values of a page of metrics: "name" or "name{labels}" to its value.
std::map<std::string, double> ParseMetrics(const std::string& page);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_SERVER_PROCESS_H_
