// Clients that break: each a process that is killed, or a thread that does not read or send.
#ifndef BLOCKD_TESTS_SOAK_FAULTS_H_
#define BLOCKD_TESTS_SOAK_FAULTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "blockd/v1/blockd.grpc.pb.h"
#include "tests/soak/tally.h"

namespace blockd::soak {

// On a connection of its own, which ends with the stub.
std::unique_ptr<v1::Solver::Stub> Connect(int port);

// Breaks clients from its making until Stop. Its processes are this program with --client.
class Faults {
 public:
  Faults(int port, Tally* tally);
  ~Faults() { Stop(); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  void Stop();  // returns once all are gone
  int64_t killed() const { return killed_; }

 private:
  void KillClients();
  void DoNotRead();
  void DoNotSend();

  const int port_;
  Tally* const tally_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> killed_{0};
  std::vector<std::thread> threads_;
};

// In such a process: "upload" or "reply", again and again until it is killed.
[[noreturn]] void BeClient(const std::string& kind, int port);

}  // namespace blockd::soak

#endif  // BLOCKD_TESTS_SOAK_FAULTS_H_
