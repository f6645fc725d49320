#include "tests/bench/wire_table.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rpc/answer_queue.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/reference/tcp_copy.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"

namespace blockd::bench {
namespace {

using test::ServerProcess;

constexpr char kMpc[] = "--problem=mpc --num_blocks=64 --block_size=16";
constexpr char kLooks[] = " --poll=1ms";  // of a controller, which has nothing else to do
constexpr int kMpcBytes = 8192;           // of a right-hand side
constexpr char kSixteen[] = " --callers=16 --connections=16";
constexpr int kUploadConnections[] = {4, 8, 16};

// The output of a command.
std::string OutputOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) Die("cannot start " + command);
  std::string text;
  char part[4096];
  for (size_t got; (got = fread(part, 1, sizeof(part), pipe)) > 0;) text.append(part, got);
  if (pclose(pipe) != 0) Die(command + " failed: " + text);
  return text;
}

// The report of `blockctl bench --json` on one kind of operation; seconds. An operation that never
// ended has no times, and reaches no goal.
struct Ran {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double per_second = 0, p50 = kNone, p99 = kNone;
  double upload = kNone, compute = kNone, download = kNone;  // medians
};

// The report of grpc_bench on one pair of a service and its callers.
struct Echo {
  double per_second = 0, p50 = 0;
};

using Object = google::protobuf::Map<std::string, google::protobuf::Value>;

const Object& FieldsOf(const Object& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) Die("blockctl bench --json has no " + name);
  return found->second.struct_value().fields();
}
double NumberOf(const Object& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) Die("blockctl bench --json has no " + name);
  return found->second.number_value();
}

// A variable of the environment, for programs that are started while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

class WireTable {
 public:
  WireTable(const Flags& flags, const WireOptions& options)
      : options_(options),
        kalman_(absl::StrCat("--problem=kalman --num_blocks=", options.kalman_blocks,
                             " --block_size=", options.kalman_block_size)),
        table_(flags) {}

  void Run() {
    if (options_.two_devices) return TwoDevices();
    {
      const auto server = ServeOnOneQueue();
      OneCaller();
      ManyCallers();
      Fused();
      Kalman();
      Uploads();
    }
    ManyCallersOfFourQueues("");
    {
      // A queue waits for its own connections, and what came is read into as few pieces as it can.
      const Variable poll("GRPC_POLL_STRATEGY", "poll");
      const Variable pieces("GRPC_EXPERIMENTS", "-tcp_read_chunks");
      ManyCallersOfFourQueues(", poll(2)");
      const int queues = Processors();
      const auto server = ServeQueues(queues, absl::StrCat(", ", queues, " queues, poll(2)"), 1);
      Uploads();
    }
    const auto server = Serve({"--backend=cpu"});
    OnCpu();
  }

 private:
  enum class Way { kTcp, kUnix, kShared };

  // The flag, where a thread that looks leaves processors to the others.
  static std::string Looks(const std::string& flag) { return Processors() < 4 ? "" : flag; }

  std::unique_ptr<ServerProcess> Serve(std::vector<std::string> flags) {
    socket_ = folder_ / "wire";
    // A session for an upload has the matrix twice.
    const int64_t shared = std::max(int64_t{1} << 30, int64_t{3} * UploadBytes());
    flags.push_back(absl::StrCat("--max_inflight_request_bytes=", 2 * shared));
    flags.insert(flags.end(), {"--unix_socket=" + socket_, "--shared_memory", "--log_level=error",
                               "--max_handles=100000"});
    auto server = std::make_unique<ServerProcess>(options_.blockd, std::move(flags));
    tcp_ = server->target();
    return server;
  }

  int64_t UploadBytes() const {
    const int64_t N = options_.upload_blocks, n = options_.upload_block_size;
    return (2 * N - 1) * n * n * int64_t{sizeof(double)};
  }

  static int Processors() { return static_cast<int>(std::thread::hardware_concurrency()); }

  // As by default on machines of 8 to 64 processors.
  std::unique_ptr<ServerProcess> ServeOnOneQueue() {
    return ServeQueues(1, "", std::clamp(Processors() / 4, 2, 16));
  }
  std::unique_ptr<ServerProcess> ServeQueues(int queues, const std::string& label,
                                             int threads_each = 1,
                                             std::vector<std::string> flags = {}) {
    label_ = label;
    queues_ = queues;
    threads_each_ = threads_each;
    flags.insert(flags.end(), {"--backend=" + options_.backend,
                               absl::StrCat("--serving_threads=", queues * threads_each_),
                               absl::StrCat("--serving_queues=", queues)});
    return Serve(std::move(flags));
  }
  // grpc_bench's with as many queues, and so many times as many threads.
  std::string Service(int times = 1) const {
    return absl::StrCat(queues_, "x", times * threads_each_);
  }

  // `one`: of the operations' names.
  Ran Bench(Way way, const std::string& words, const std::string& one = "solve") const {
    const double seconds = options_.seconds;
    std::string command = absl::StrCat(
        options_.blockctl,
        " --json --timeout=120s --server=", way == Way::kTcp ? tcp_ : "unix:" + socket_, " bench ",
        words, " --duration=", seconds, "s --warmup=", std::min(0.5, seconds), "s",
        way == Way::kShared ? " --shm" : "");
    google::protobuf::Struct all;
    const std::string text = OutputOf(command);
    if (!google::protobuf::util::JsonStringToMessage(text, &all).ok()) {
      Die("not JSON: " + text);
    }
    const Object& operations = FieldsOf(all.fields(), "operations");
    // A machine that is busy may have ended none of these in the short time of a quick run.
    if (operations.find(one) == operations.end()) return {};
    const Object& operation = FieldsOf(operations, one);
    if (NumberOf(operation, "failed") > 0) Die(command + ": calls failed: " + text);
    const Object& latency = FieldsOf(operation, "latency_seconds");
    const auto median = [&](const std::string& phase) {
      return NumberOf(FieldsOf(operation, phase + "_seconds"), "p50");
    };
    return {.per_second = NumberOf(operation, "per_second"),
            .p50 = NumberOf(latency, "p50"),
            .p99 = NumberOf(latency, "p99"),
            .upload = median("upload"),
            .compute = median("compute"),
            .download = median("download")};
  }

  // gRPC's empty service of the same shape, with as many queues and threads as the server has, and
  // for one caller one thread that looks as the server's does. `threads`: of the callers; 0: one
  // each.
  Echo EchoOf(int callers, int connections, int bytes, const std::string& socket = "",
              int threads = 0) const {
    const std::string ask = threads == 0 ? "each" : absl::StrCat(threads);
    const std::string text = OutputOf(absl::StrCat(
        options_.grpc_bench, " --callers=", callers, " --connections=", connections,
        " --bytes=", bytes, " --seconds=", options_.seconds, " --ask=", ask,
        " --service=", callers == 1 ? absl::StrCat("1x1", Looks(" --look")) : Service(),
        socket.empty() ? "" : " --socket=" + socket));
    Echo echo;
    const size_t at = text.find(" calls/s");
    const size_t before = text.find_last_not_of("0123456789", at - 1);
    if (at == std::string::npos || std::sscanf(text.c_str() + before, "%lf calls/s p50 %lf us",
                                               &echo.per_second, &echo.p50) != 2) {
      Die("grpc_bench says: " + text);
    }
    echo.p50 *= 1e-6;
    return echo;
  }

  void AtMost(const std::string& work, double seconds, double limit, const std::string& reference,
              double ratio = 0) {
    table_.Add({.work = work,
                .ours = FormatSeconds(seconds),
                .reference = reference,
                .ratio = ratio,
                .goal = "<= " + FormatSeconds(limit),
                .reached = seconds <= limit});
  }
  void AtLeast(const std::string& work, double rate, double limit, const std::string& reference,
               double ratio = 0) {
    table_.Add({.work = work,
                .ours = absl::StrFormat("%.0f/s", rate),
                .reference = reference,
                .ratio = ratio,
                .goal = limit > 0 ? absl::StrFormat(">= %.0f/s", limit) : "",
                .reached = rate >= limit});
  }
  static std::string Said(const Echo& echo, const std::string& what) {
    return absl::StrFormat("%s, %.0f/s, %s", FormatSeconds(echo.p50), echo.per_second, what);
  }

  void OneCaller() {
    const std::string looks = Looks(kLooks), mpc = kMpc + looks;
    const Ran empty = Bench(Way::kTcp, "--empty" + looks, "health");
    const Echo tcp = EchoOf(1, 1, kMpcBytes), local = EchoOf(1, 1, kMpcBytes, folder_ / "echo");
    const Ran by_tcp = Bench(Way::kTcp, mpc), by_unix = Bench(Way::kUnix, mpc),
              shared = Bench(Way::kShared, mpc);
    AtMost("one caller, TCP, p50", by_tcp.p50, 190e-6,
           absl::StrCat(FormatSeconds(empty.p50), " an empty call; ",
                        Said(tcp, "gRPC's echo of 8 KiB")),
           by_tcp.p50 / tcp.p50);
    AtMost("one caller, Unix socket, p50", by_unix.p50, 150e-6, Said(local, "gRPC's echo of 8 KiB"),
           by_unix.p50 / local.p50);
    AtMost("one caller, shared memory, p50", shared.p50, 80e-6,
           absl::StrCat(FormatSeconds(shared.compute), " of it compute, ",
                        FormatSeconds(shared.upload + shared.download), " copies"));
    for (const auto& [name, ran] : {std::pair("TCP", by_tcp), std::pair("Unix socket", by_unix),
                                    std::pair("shared memory", shared)}) {
      Row row = {.work = absl::StrCat("one caller, ", name, ", p99 against p50"),
                 .ours = FormatSeconds(ran.p99),
                 .reference = FormatSeconds(ran.p50)};
      table_.AddAtMost(row, ran.p99 / ran.p50, 2);
    }
  }

  void CompareWithEcho(const std::string& work, const std::string& words, double goal,
                       const Echo& echo, const std::string& what) {
    const Ran ran = Bench(Way::kTcp, words);
    AtLeast(work + label_, ran.per_second, goal, Said(echo, what),
            ran.per_second / echo.per_second);
  }
  void ManyUnaryCallers() {
    const std::string words = absl::StrCat(kMpc, " --callers=64 --connections=16");
    CompareWithEcho("64 callers, 16 connections", words, 80000, EchoOf(64, 16, kMpcBytes),
                    "gRPC's echo of 8 KiB");
    CompareWithEcho("64 callers without threads, 16 connections", words + " --async", 80000,
                    EchoOf(64, 16, kMpcBytes, "", client::AnswerQueue::count()),
                    "gRPC's echo of 8 KiB");
  }

  void ManyCallersOfFourQueues(const std::string& how) {
    MeasureFourQueues(how);
    if (options_.tcmalloc.empty()) return;
    const Variable preload("LD_PRELOAD", options_.tcmalloc.c_str());
    MeasureFourQueues(how + ", tcmalloc");
  }
  void MeasureFourQueues(const std::string& how) {
    const auto server = ServeQueues(4, ", four queues" + how);
    ManyUnaryCallers();
    ManyKalmanCallers();
  }

  void ManyCallers() {
    ManyUnaryCallers();
    const std::string frames = absl::StrCat(kMpc, kSixteen, " --handles=1024 --frames=64");
    AtLeast("16 callers, frames of 64 in a SolveStream",
            Bench(Way::kTcp, frames + " --session").per_second, 250000, "");
    AtLeast("16 callers, frames of 64 in shared memory", Bench(Way::kShared, frames).per_second,
            300000, "");
    AtLeast("16 callers, one solve a call in shared memory",
            Bench(Way::kShared, absl::StrCat(kMpc, kSixteen)).per_second, 0, "");
    const Ran batch =
        Bench(Way::kTcp, absl::StrCat(kMpc, kSixteen, " --handles=256 --frames=16 --session"));
    AtMost("upload and download of a batch of 256", batch.upload + batch.download, 150e-6,
           absl::StrCat(FormatSeconds(batch.compute), " compute"));
  }

  void Fused() {
    const std::string fused = absl::StrCat(
        "--problem=kalman --num_blocks=64 --block_size=16 --palette "
        "--mix=refactor_solve --handles=64 --callers=");
    AtLeast("refactor and solve, 64 handles, 4 callers with 16 in a message",
            Bench(Way::kTcp, fused + "4 --connections=4 --frames=16", "refactor_solve").per_second,
            60000, "");
    AtLeast("refactor and solve, 64 handles, 64 callers with a call each",
            Bench(Way::kTcp, fused + "64 --connections=16", "refactor_solve").per_second, 0, "");
  }

  void Kalman() {
    const Echo one = EchoOf(1, 1, KalmanBytes());
    const std::string alone = kalman_ + Looks(kLooks);
    const Ran tcp = Bench(Way::kTcp, alone), shared = Bench(Way::kShared, alone);
    AtMost(
        "Kalman, one caller, TCP, p50", tcp.p50, 380e-6,
        absl::StrCat(Said(one, KalmanEcho()), "; ", FormatSeconds(tcp.compute), " of ours compute"),
        tcp.p50 / one.p50);
    AtMost("Kalman, one caller, shared memory, p50", shared.p50, 380e-6,
           FormatSeconds(shared.compute) + " of it compute");
    ManyKalmanCallers();
    AtLeast("Kalman, 16 callers of one handle, shared memory",
            Bench(Way::kShared, kalman_ + kSixteen).per_second, 20000, "");
  }

  int KalmanBytes() const {  // of a right-hand side
    return static_cast<int>(options_.kalman_blocks * options_.kalman_block_size * 8);
  }
  std::string KalmanEcho() const {
    return absl::StrCat("gRPC's echo of ", KalmanBytes() >> 10, " KiB");
  }

  void ManyKalmanCallers() {
    const std::string words = kalman_ + kSixteen;
    CompareWithEcho("Kalman, 16 callers of one handle, TCP", words, 20000,
                    EchoOf(16, 16, KalmanBytes()), KalmanEcho());
    CompareWithEcho("Kalman, 16 callers without threads, TCP", words + " --async", 20000,
                    EchoOf(16, 16, KalmanBytes(), "", client::AnswerQueue::count()), KalmanEcho());
  }

  // Bytes a second, from memory into memory.
  static double RawTcpRate(size_t bytes, int count) {
    const std::vector<char> from(bytes, 1);
    std::vector<char> to(bytes);
    const TcpConnections connections(count);
    connections.Copy(from, to);
    Samples samples;
    for (int i = 0; i < 5; ++i) {
      const double start = Now();
      connections.Copy(from, to);
      samples.seconds.push_back(Now() - start);
    }
    return static_cast<double>(bytes) / samples.median();
  }
  // As much by gRPC's empty service.
  double GrpcRate(size_t bytes, int connections, const std::string& service) const {
    const std::string text = OutputOf(
        absl::StrCat(options_.grpc_bench, " --upload=", bytes, " --bytes=", kUploadChunkBytes,
                     " --connections=", connections, " --service=", service, " --ask=each"));
    double rate = 0;
    const size_t at = text.find("upload ");
    if (at == std::string::npos || std::sscanf(text.c_str() + at, "upload %lf GB/s", &rate) != 1) {
      Die("grpc_bench says: " + text);
    }
    return 1e9 * rate;
  }

  void Uploads() {
    for (const int connections : kUploadConnections) Upload(connections);
    if (!label_.empty()) return;
    const auto size = static_cast<double>(UploadBytes());
    const Ran shared = Bench(Way::kShared, UploadWords(), "factor");
    table_.Add({.work = absl::StrFormat("Factor of %.2f GB, shared memory, upload", 1e-9 * size),
                .ours = Format(1e-9 * size / shared.upload, "GB/s"),
                .reference = absl::StrCat(FormatSeconds(shared.p50),
                                          " a call with its copy into the memory"),
                .goal = ">= 25.0 GB/s",
                .reached = size / shared.upload >= 25e9});
  }
  std::string UploadWords() const {
    return absl::StrCat("--problem=poisson --num_blocks=", options_.upload_blocks,
                        " --block_size=", options_.upload_block_size, " --mix=factor ");
  }
  void Upload(int connections) {
    const Ran tcp = Bench(
        Way::kTcp, absl::StrCat(UploadWords(), "--upload_connections=", connections), "factor");
    const auto bytes = static_cast<size_t>(UploadBytes());
    const auto size = static_cast<double>(bytes);
    const double rate = size / (tcp.p50 - tcp.compute);
    const double raw = RawTcpRate(bytes, connections);
    // Where threads share a queue the server has twice as many more that copy.
    const double by_grpc = GrpcRate(bytes, connections, Service(queues_ == 1 ? 3 : 1));
    Row row = {
        .work = absl::StrFormat("Factor of %.2f GB, TCP, %d connections%s, without compute",
                                1e-9 * size, connections, label_),
        .ours = Format(1e-9 * rate, "GB/s"),
        .reference = absl::StrCat(Format(1e-9 * raw, "GB/s raw TCP"), "; ",
                                  Format(1e-9 * by_grpc, "GB/s"), ", gRPC's of the same messages")};
    table_.AddAtLeast(row, rate / raw, 0.8, "%");
  }

  void OnCpu() {
    const std::string small = "--problem=mpc --num_blocks=32 --block_size=8";
    const Ran shared = Bench(Way::kShared, small + Looks(kLooks));
    for (const bool sleeps : {true, false}) {
      if (!sleeps && Looks(kLooks).empty()) break;
      const std::string how = sleeps ? " --poll=0" : kLooks;
      const Ran empty = Bench(Way::kTcp, "--empty" + how, "health");
      const Ran tcp = Bench(Way::kTcp, small + how);
      Row row = {
          .work = absl::StrCat("CPU, N=32 n=8, one caller that ", sleeps ? "sleeps" : "looks",
                               ", TCP, p50 against an empty call"),
          .ours = FormatSeconds(tcp.p50),
          .reference = FormatSeconds(empty.p50)};
      table_.AddAtMost(row, tcp.p50 / empty.p50, 1.15);
    }
    AtMost("CPU, N=32 n=8, one caller, shared memory, p50", shared.p50, 20e-6,
           FormatSeconds(shared.compute) + " of it compute");
  }

  void TwoDevices() {
    struct Work {
      std::string name, words, operation;
    };
    const std::vector<Work> works = {
        {"Kalman N=100 n=256, solves of 32 handles",
         absl::StrCat(kalman_, " --callers=32 --connections=32 --handles=32"), "solve"},
        {"Kalman N=100 n=256, refactors with a solve",
         absl::StrCat(kalman_,
                      " --callers=32 --connections=32 --handles=32 --palette "
                      "--mix=refactor_solve"),
         "refactor_solve"},
        {"MPC N=64 n=16, solves in frames of 64",
         absl::StrCat(kMpc, " --callers=32 --connections=32 --handles=2048 --frames=64"), "solve"}};
    std::vector<double> one, both;
    for (std::vector<double>* rates : {&one, &both}) {
      const auto server = Serve({rates == &one ? "--devices=0" : "--devices=all"});
      for (const Work& work : works) {
        const Way way = work.operation == "solve" ? Way::kShared : Way::kTcp;
        rates->push_back(Bench(way, work.words, work.operation).per_second);
      }
    }
    for (size_t i = 0; i < works.size(); ++i) {
      Row row = {.work = "two devices, " + works[i].name,
                 .ours = absl::StrFormat("%.0f/s", both[i]),
                 .reference = absl::StrFormat("%.0f/s of one device", one[i])};
      table_.AddAtLeast(row, both[i] / one[i], 1.9);
    }
  }

  const WireOptions options_;
  const std::string kalman_;
  const test::TempFolder folder_;
  std::string tcp_, socket_;
  // The server's; and what rows say of it, if it is not as by default.
  int queues_ = 1, threads_each_ = 1;
  std::string label_;
  Table table_;
};

}  // namespace

void PrintWireTable(const Flags& flags, const WireOptions& options) {
  WireTable(flags, options).Run();
}

}  // namespace blockd::bench
