// The threads that take what comes from a completion queue.
//
// gRPC 1.51 has one set of connections for the process, at which one thread looks at a time; when
// that one returns it wakes another to look on. gRPC does not return while a connection has more to
// read, whatever it reads: so a queue has two threads at least.
#ifndef BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_
#define BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <thread>
#include <vector>

namespace blockd::server {

class ServingThreads {
 public:
  // `take` has a tag of the queue, on any of `threads` threads, or of two. It must not block.
  ServingThreads(int threads, grpc::CompletionQueue* queue,
                 std::function<void(void* tag, bool ok)> take);
  ~ServingThreads();  // after the queue was shut down; takes what it still has
  ServingThreads(const ServingThreads&) = delete;
  ServingThreads& operator=(const ServingThreads&) = delete;

 private:
  void Serve();

  grpc::CompletionQueue* const queue_;
  const std::function<void(void* tag, bool ok)> take_;
  std::vector<std::thread> threads_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SERVING_THREADS_H_
