// A server that shares memory, and what its tests ask of it.
#ifndef BLOCKD_TESTS_INTEGRATION_SHM_SHM_FIXTURE_H_
#define BLOCKD_TESTS_INTEGRATION_SHM_SHM_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/integration/fixture.h"
#include "tests/integration/shm/raw_shm.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {

class ShmTest : public IntegrationTest {
 protected:
  ShmTest() {
    options_.access.unix_socket = path_;
    options_.shared_memory.enabled = true;
    options_.drain_grace = absl::ZeroDuration();
  }

  static HostMatrix Matrix() {
    return HostMatrix(problems::RandomSpd(5, 7, 3, 10), Scalar::kFloat64);
  }
  static constexpr int64_t kRows = 35;
  static std::vector<double> Rhs() { return std::vector<double>(kRows, 1.5); }

  // True if the session answers a Solve with the same bits as the port.
  bool SolvesRight(RawShm& caller, const std::string& handle, uint64_t id = 1000) {
    const v1::ShmRequest request = caller.Solve(handle, kRows, id);
    const std::vector<double> rhs = Rhs();
    const v1::ShmPlace place = caller.place(request, 0);
    std::memcpy(caller.at(place.offset), rhs.data(), place.bytes);
    const v1::ShmReply reply = caller.Ask(request);
    if (reply.code != 0 || reply.id != id) return false;
    const std::vector<double> expected = Solve(handle, rhs);
    return std::memcmp(caller.at(place.offset), expected.data(), place.bytes) == 0;
  }
  const TempFolder folder_;
  const std::string path_ = folder_ / "socket";
  server::ServerOptions options_ = Options();
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_SHM_SHM_FIXTURE_H_
