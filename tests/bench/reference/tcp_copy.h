// Bytes through TCP on the loopback interface, with nothing else: what an upload is compared with.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_TCP_COPY_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_TCP_COPY_H_

#include <span>
#include <utility>
#include <vector>

namespace blockd::bench {

// Connections whose two ends are in this process. Ends the program where there are none. For one
// thread; Copy uses two for each connection.
class TcpConnections {
 public:
  explicit TcpConnections(int count);
  ~TcpConnections();
  TcpConnections(const TcpConnections&) = delete;
  TcpConnections& operator=(const TcpConnections&) = delete;

  // Copies `from` to `to`, of the same size, a part over each connection at once.
  void Copy(std::span<const char> from, std::span<char> to) const;

 private:
  std::vector<std::pair<int, int>> sockets_;  // sender, receiver
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_TCP_COPY_H_
