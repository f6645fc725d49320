// The speed of gRPC itself: an empty service, whose answer is its request, under the load of a
// benchmark's callers. The service's calls go through completion queues as the server's do, with
// some threads each, or through gRPC's callback API; the callers wait each for its own call, or
// some threads have all calls.
//
// Prints calls a second and the latency for each pair. Server and callers are processes of their
// own, on the loopback interface or a Unix socket.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"

ABSL_FLAG(int, callers, 64, "Calls under way.");
ABSL_FLAG(int, connections, 16, "Connections that they share.");
ABSL_FLAG(int, bytes, 8192, "Of a message, each way.");
ABSL_FLAG(double, seconds, 2, "For each pair.");
ABSL_FLAG(std::string, socket, "", "A Unix socket's path, in place of TCP.");
ABSL_FLAG(
    int64_t, upload, 0,
    "More than 0: so many bytes go to the service, in messages of --bytes over all connections "
    "at once, and lie there in memory. No calls are counted then; --service must be named.");
ABSL_FLAG(std::string, service, "", "Only this kind of service: QUEUESxTHREADS, or callback.");
ABSL_FLAG(std::string, ask, "", "Only callers of this kind: each, or a number of threads.");
ABSL_FLAG(bool, look, false,
          "Threads that wait look for what comes, for a millisecond, before they sleep: on a queue "
          "with one thread, and with one caller.");
ABSL_FLAG(std::string, method, "/bench/Echo", "What a client calls.");
ABSL_FLAG(std::string, role, "", "Internal: server or client.");
ABSL_FLAG(std::string, kind, "", "Internal: of the role.");
ABSL_FLAG(std::string, target, "", "Internal: of the client.");

extern char** environ;

namespace blockd::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The sizes of HTTP/2: how much it sends as one frame, how far ahead of its reader it sends, and
// how much it gives to the socket at once. They are those of blockd, of its client, and of the
// connections of an upload. No message is cut, none waits for a window.
struct WireSizes {
  int frame, window, write;
  int read = 1 << 20;  // of the socket into one piece, where that is not of a fixed size
};
constexpr WireSizes kServerSizes = {4 << 20, 64 << 20, 1 << 20};
constexpr WireSizes kCallSizes = {1 << 20, 4 << 20, 1 << 20};
constexpr WireSizes kUploadSizes = {(16 << 20) - 1, 16 << 20, 4 << 20};
constexpr int kUploadTurns = 5;  // that count
constexpr char kUpload[] = "/bench/Upload";

// Waits for the next event of the queue; false: nothing comes any more.
bool Next(grpc::CompletionQueue& queue, void** tag, bool* ok) {
  static const bool look = absl::GetFlag(FLAGS_look);
  for (const auto start = Clock::now();
       look && Clock::now() - start < std::chrono::milliseconds(1);) {
    const auto next = queue.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (next != grpc::CompletionQueue::TIMEOUT) return next == grpc::CompletionQueue::GOT_EVENT;
  }
  return queue.Next(tag, ok);
}

// ------------------------------------------------------------------------------------ the service

// Where uploads lie: each message behind the one that came before it on any connection, and from
// the beginning again once it is full.
class UploadMemory {
 public:
  void Take(const grpc::ByteBuffer& message) {
    if (bytes_.size() < message.Length()) return;
    size_t at = next_.fetch_add(message.Length()) % bytes_.size();
    if (at + message.Length() > bytes_.size()) at = 0;
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) std::exit(1);
    for (const grpc::Slice& slice : slices) {
      std::memcpy(bytes_.data() + at, slice.begin(), slice.size());
      at += slice.size();
    }
  }

 private:
  std::vector<char> bytes_ = std::vector<char>(static_cast<size_t>(absl::GetFlag(FLAGS_upload)));
  std::atomic<size_t> next_ = 0;
};

// A call by completion queue: asked for, read, answered. A call of kUpload is read to its end.
class QueuedCall {
 public:
  QueuedCall(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
             UploadMemory* uploads)
      : service_(service), queue_(queue), uploads_(uploads) {
    service_->RequestCall(&context_, &stream_, queue_, queue_, this);
  }
  void Go(bool ok) {
    const bool upload = step_ == 1 && context_.method() == kUpload;
    if ((!ok && !upload) || step_ == 2) {
      delete this;
      return;
    }
    if (step_ == 0) {
      new QueuedCall(service_, queue_, uploads_);
      step_ = 1;
      stream_.Read(&message_, this);
    } else if (upload && ok) {
      uploads_->Take(message_);
      message_.Clear();
      stream_.Read(&message_, this);
    } else {
      step_ = 2;
      if (upload) message_ = Nothing();
      stream_.WriteAndFinish(message_, {}, grpc::Status::OK, this);
    }
  }

 private:
  static grpc::ByteBuffer Nothing() {
    const grpc::Slice nothing;
    return grpc::ByteBuffer(&nothing, 1);
  }

  grpc::AsyncGenericService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  UploadMemory* const uploads_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer message_;
  int step_ = 0;
};

class Echo final : public grpc::ServerGenericBidiReactor {
 public:
  Echo() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartWriteAndFinish(&message_, {}, grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
};
class EchoService final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Echo;
  }
};

// kind: "callback", or "QUEUESxTHREADS". Serves until its input ends.
int Serve(const std::string& kind, const std::string& socket) {
  // As blockd: what was freed is used again.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_ARENA_MAX, static_cast<int>(std::max(2U, std::thread::hardware_concurrency())));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(socket.empty() ? "127.0.0.1:0" : "unix:" + socket,
                           grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kServerSizes.frame);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kServerSizes.window);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kServerSizes.write);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kServerSizes.read);
  UploadMemory uploads;
  EchoService by_callback;
  grpc::AsyncGenericService by_queue;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  int num_queues = 0, threads = 0;
  if (std::sscanf(kind.c_str(), "%dx%d", &num_queues, &threads) == 2) {
    builder.RegisterAsyncGenericService(&by_queue);
    for (int i = 0; i < num_queues; ++i) queues.push_back(builder.AddCompletionQueue());
  } else {
    builder.RegisterCallbackGenericService(&by_callback);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::vector<std::thread> serving;
  for (const auto& queue : queues) {
    for (int i = 0; i < 64; ++i) new QueuedCall(&by_queue, queue.get(), &uploads);
    for (int i = 0; i < threads; ++i) {
      serving.emplace_back([&queue] {
        void* tag;
        bool ok;
        while (Next(*queue, &tag, &ok)) static_cast<QueuedCall*>(tag)->Go(ok);
      });
    }
  }
  std::printf("%s\n", socket.empty() ? ("127.0.0.1:" + std::to_string(port)).c_str()
                                     : ("unix:" + socket).c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  for (const auto& queue : queues) queue->Shutdown();
  for (std::thread& thread : serving) thread.join();
  return 0;
}

// ------------------------------------------------------------------------------------- the callers

struct Load {
  std::atomic<bool> counts{false}, over{false};
  std::atomic<int64_t> calls{0};
};

std::vector<std::shared_ptr<grpc::Channel>> Connect(const std::string& target, int connections) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(-1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  const WireSizes& sizes = absl::GetFlag(FLAGS_upload) > 0 ? kUploadSizes : kCallSizes;
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, sizes.frame);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, sizes.window);
  args.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, sizes.write);
  for (int i = 0; i < connections; ++i) {
    channels.push_back(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), args));
  }
  return channels;
}

// One call after another on each channel, with a queue of their own.
void Call(const std::vector<std::shared_ptr<grpc::Channel>>& channels, Load& load,
          std::vector<double>* latencies) {
  struct One {
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer reply;
    grpc::Status status;
    Clock::time_point start;
  };
  const std::string bytes(static_cast<size_t>(absl::GetFlag(FLAGS_bytes)), 'x');
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::CompletionQueue queue;
  std::vector<One> all(channels.size());
  for (size_t k = 0; k < all.size(); ++k) {
    all[k].stub = std::make_unique<grpc::GenericStub>(channels[k]);
  }
  const auto start = [&](One& one) {
    one.context = std::make_unique<grpc::ClientContext>();
    one.context->set_wait_for_ready(true);
    one.start = Clock::now();
    one.reader =
        one.stub->PrepareUnaryCall(one.context.get(), absl::GetFlag(FLAGS_method), request, &queue);
    one.reader->StartCall();
    one.reader->Finish(&one.reply, &one.status, &one);
  };
  for (One& one : all) start(one);
  void* tag;
  bool ok;
  for (size_t under_way = all.size(); under_way > 0 && Next(queue, &tag, &ok);) {
    One& one = *static_cast<One*>(tag);
    if (!one.status.ok()) {
      std::fprintf(stderr, "grpc_bench: %s\n", one.status.error_message().c_str());
      std::exit(1);
    }
    if (load.counts) {
      ++load.calls;
      latencies->push_back(std::chrono::duration<double>(Clock::now() - one.start).count());
    }
    if (load.over) {
      --under_way;
    } else {
      start(one);
    }
  }
}

// All of it in one call.
bool UploadPart(const std::shared_ptr<grpc::Channel>& channel, std::span<const char> part) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, kUpload, &queue);
  const auto done = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  bool ok = done();
  while (ok && !part.empty()) {
    const auto message =
        part.first(std::min(part.size(), static_cast<size_t>(absl::GetFlag(FLAGS_bytes))));
    part = part.subspan(message.size());
    const grpc::Slice slice(message.data(), message.size(), grpc::Slice::STATIC_SLICE);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    ok = done();
  }
  grpc::ByteBuffer reply;
  grpc::Status status;
  if (ok) {
    call->WritesDone(nullptr);
    ok = done();
  }
  call->Read(&reply, nullptr);
  ok = done() && ok;
  call->Finish(&status, nullptr);
  return done() && ok && status.ok();
}

int Upload(const std::string& target) {
  const auto channels = Connect(target, absl::GetFlag(FLAGS_connections));
  const std::vector<char> bytes(static_cast<size_t>(absl::GetFlag(FLAGS_upload)), 'x');
  const size_t part = bytes.size() / channels.size();
  std::vector<double> seconds;
  for (int turn = 0; turn < 1 + kUploadTurns; ++turn) {
    std::atomic<bool> ok = true;
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < channels.size(); ++i) {
      threads.emplace_back([&, i] {
        if (!UploadPart(channels[i], std::span(bytes).subspan(i * part, part))) ok = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!ok) return 1;
    if (turn == 0) continue;  // it connects
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("upload %.3f GB/s",
              1e-9 * static_cast<double>(part * channels.size()) / seconds[kUploadTurns / 2]);
  return 0;
}

// kind: "each" caller is a thread, or so many threads have all calls.
int Ask(const std::string& kind, const std::string& target) {
  const int callers = absl::GetFlag(FLAGS_callers);
  const auto channels = Connect(target, absl::GetFlag(FLAGS_connections));
  const int threads = kind == "each" ? callers : std::min(callers, std::atoi(kind.c_str()));
  Load load;
  std::vector<std::vector<double>> latencies(static_cast<size_t>(threads));
  std::vector<std::thread> asking;
  for (int i = 0; i < threads; ++i) {
    asking.emplace_back([&, i] {
      std::vector<std::shared_ptr<grpc::Channel>> of_thread;
      for (int caller = i; caller < callers; caller += threads) {
        of_thread.push_back(channels[static_cast<size_t>(caller) % channels.size()]);
      }
      Call(of_thread, load, &latencies[static_cast<size_t>(i)]);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto start = Clock::now();
  load.counts = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(absl::GetFlag(FLAGS_seconds)));
  load.counts = false;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  load.over = true;
  for (std::thread& thread : asking) thread.join();
  std::vector<double> all;
  for (const auto& some : latencies) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  if (all.empty()) return 1;
  std::printf("%8.0f calls/s  p50 %7.1f us  p99 %7.1f us",
              static_cast<double>(load.calls) / seconds, 1e6 * all[all.size() / 2],
              1e6 * all[all.size() * 99 / 100]);
  return 0;
}

// --------------------------------------------------------------------------------------- both

std::string program;

// A process of this program, with its input and its output.
struct Child {
  pid_t pid = 0;
  int in = -1, out = -1;
};
Child Spawn(const std::vector<std::string>& more) {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) std::exit(1);
  std::vector<std::string> args = {
      program,
      "--callers=" + std::to_string(absl::GetFlag(FLAGS_callers)),
      "--connections=" + std::to_string(absl::GetFlag(FLAGS_connections)),
      "--bytes=" + std::to_string(absl::GetFlag(FLAGS_bytes)),
      "--seconds=" + std::to_string(absl::GetFlag(FLAGS_seconds)),
      "--socket=" + absl::GetFlag(FLAGS_socket),
      "--upload=" + std::to_string(absl::GetFlag(FLAGS_upload)),
      std::string("--look=") + (absl::GetFlag(FLAGS_look) ? "true" : "false")};
  args.insert(args.end(), more.begin(), more.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  for (const int fd : {in[0], in[1], out[0], out[1]}) {
    posix_spawn_file_actions_addclose(&actions, fd);
  }
  Child child;
  if (posix_spawn(&child.pid, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) {
    std::exit(1);
  }
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  child.in = in[1];
  child.out = out[0];
  return child;
}
std::string ReadAll(int fd, char until) {
  std::string text;
  for (char c; read(fd, &c, 1) == 1 && c != until;) text += c;
  return text;
}
void End(const Child& child) {
  close(child.in);
  close(child.out);
  waitpid(child.pid, nullptr, 0);
}

void Measure(const std::string& service, const std::string& ask) {
  const Child serving = Spawn({"--role=server", "--kind=" + service});
  const std::string target = ReadAll(serving.out, '\n');
  const Child asking = Spawn({"--role=client", "--kind=" + ask, "--target=" + target});
  const std::string result = ReadAll(asking.out, '\n');
  End(asking);
  End(serving);
  std::printf("service %-8s  callers' threads %-4s  %s\n", service.c_str(), ask.c_str(),
              result.c_str());
  std::fflush(stdout);
}

void MeasureAll() {
  const int processors = static_cast<int>(std::max(2U, std::thread::hardware_concurrency()));
  const auto queues = [](int count, int threads) {
    return std::to_string(count) + "x" + std::to_string(threads);
  };
  std::vector<std::string> services = {queues(std::max(1, processors / 4), 4),
                                       queues(std::max(1, processors / 2), 1),
                                       queues(processors, 1),
                                       queues(std::max(1, processors / 4), 1),
                                       queues(1, processors),
                                       "callback"};
  std::vector<std::string> asks = {"each", std::to_string(processors / 2)};
  if (!absl::GetFlag(FLAGS_service).empty()) services = {absl::GetFlag(FLAGS_service)};
  if (!absl::GetFlag(FLAGS_ask).empty()) asks = {absl::GetFlag(FLAGS_ask)};
  for (const std::string& service : services) {
    for (const std::string& ask : asks) Measure(service, ask);
  }
}

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("What gRPC itself carries, with an empty service of each kind.");
  absl::ParseCommandLine(argc, argv);
  blockd::bench::program = argv[0];
  const std::string role = absl::GetFlag(FLAGS_role), kind = absl::GetFlag(FLAGS_kind);
  if (role == "server") return blockd::bench::Serve(kind, absl::GetFlag(FLAGS_socket));
  if (role == "client" && absl::GetFlag(FLAGS_upload) > 0) {
    return blockd::bench::Upload(absl::GetFlag(FLAGS_target));
  }
  if (role == "client") return blockd::bench::Ask(kind, absl::GetFlag(FLAGS_target));
  blockd::bench::MeasureAll();
  return 0;
}
