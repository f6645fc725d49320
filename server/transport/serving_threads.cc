#include "server/transport/serving_threads.h"

#include <algorithm>
#include <utility>

#include "server/core/thread_name.h"
#include "server/transport/executor.h"

namespace blockd::server {

ServingThreads::ServingThreads(int threads, grpc::CompletionQueue* queue,
                               std::function<void(void* tag, bool ok)> take)
    : queue_(queue), take_(std::move(take)) {
  for (int i = 0; i < std::max(threads, 2); ++i) threads_.emplace_back([this] { Serve(); });
}

ServingThreads::~ServingThreads() {
  for (std::thread& thread : threads_) thread.join();
}

void ServingThreads::Serve() {
  NameThread("serving");
  MarkTransportThread();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) take_(tag, ok);
}

}  // namespace blockd::server
