// Calls that no client of ours makes: compressed messages, long metadata and calls that wait, from
// callers without a name, and a tenant's messages of short fields.
#ifndef BLOCKD_TESTS_SOAK_STRANGERS_H_
#define BLOCKD_TESTS_SOAK_STRANGERS_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "blockd/v1/blockd.grpc.pb.h"
#include "tests/soak/tally.h"

namespace blockd::soak {

// Attacks in turn, from its making until Stop. Callers without a name come from an address of their
// own, so that the calls which the server ends for them are theirs.
class Strangers {
 public:
  Strangers(int port, Tally* tally);
  ~Strangers() { Stop(); }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  void Stop();  // returns once the attack under way is over

 private:
  void Attack();
  void SendCompressed(const std::string& encoding, const std::string& message);
  void SendLongMetadata(const std::string& fields);
  void Wait();
  void SendShortFields(bool cancels);

  const int port_;
  Tally* const tally_;
  const std::unique_ptr<v1::Solver::Stub> stub_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace blockd::soak

#endif  // BLOCKD_TESTS_SOAK_STRANGERS_H_
