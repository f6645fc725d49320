// Loads of well-formed calls: other people's work, and what only quotas and limits hold back. But
// for the one that is over its rate, they say no name: they are the tenant "anonymous".
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockd/client/solver_client.h"
#include "blockd/v1/blockd.grpc.pb.h"
#include "engine/problems/problems.h"
#include "tests/bench/sharing/sharing_abuse.h"

namespace blockd::bench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string TargetOf(const Place& place) { return absl::StrCat("127.0.0.1:", place.port); }

// A connection of the thread's own.
std::shared_ptr<grpc::Channel> Connect(const Place& place) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // what is not read shall stay on the server
  return grpc::CreateCustomChannel(TargetOf(place), grpc::InsecureChannelCredentials(), arguments);
}

std::string BytesOf(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

v1::SystemSpec SpecOf(int64_t num_blocks, int64_t block_size) {
  v1::SystemSpec spec;
  spec.set_num_blocks(num_blocks);
  spec.set_block_size(block_size);
  spec.set_scalar(v1::FLOAT64);
  spec.set_diagonal_form(v1::FULL);
  spec.set_coupling_form(v1::SUBDIAGONAL);
  return spec;
}

v1::FactorRequest FactorOf(int64_t num_blocks, int64_t block_size, int64_t systems) {
  v1::FactorRequest request;
  *request.mutable_spec() = SpecOf(num_blocks, block_size);
  const problems::Problem problem = problems::Mpc(num_blocks, block_size, 1);
  for (int64_t k = 0; k < systems; ++k) {
    v1::SystemData* data = request.add_system();
    data->set_diagonal(BytesOf(problem.diagonal));
    data->set_coupling(BytesOf(problem.coupling));
  }
  return request;
}

std::string Factor(v1::Solver::Stub& stub, const v1::FactorRequest& request) {
  grpc::ClientContext context;
  v1::FactorReply reply;
  const grpc::Status status = stub.Factor(&context, request, &reply);
  if (!status.ok()) {
    std::fprintf(stderr, "load: %s\n", status.error_message().c_str());
    std::exit(1);
  }
  return reply.system(0).handle();
}

// --- Honest work
// ------------------------------------------------------------------------------------

// Time-invariant, so that it is small to upload and large to factor.
problems::Problem PaletteOf(const LoadSize& size) {
  problems::Problem problem = problems::Mpc(2, size.block_size, 1);
  const int64_t square = size.block_size * size.block_size;
  problem.num_blocks = size.num_blocks;
  problem.diagonal.resize(square);
  problem.coupling.resize(square);
  // Dominant, whatever its neighbours.
  for (int64_t i = 0; i < square; ++i) problem.coupling[i] = 0.1 / static_cast<double>(1 + i % 7);
  for (int64_t i = 0; i < size.block_size; ++i) {
    problem.diagonal[i * (size.block_size + 1)] += static_cast<double>(size.block_size);
  }
  problem.diagonal_index.assign(size.num_blocks, 0);
  problem.coupling_index.assign(size.num_blocks - 1, 0);
  return problem;
}

client::SystemView ViewOf(const problems::Problem& problem) {
  client::SystemView view = client::MakeSystemView(
      problem.num_blocks, problem.block_size, problem.diagonal.data(), problem.coupling.data());
  if (problem.diagonal_index.empty()) return view;
  view.num_diagonal = view.num_coupling = 1;
  view.diagonal_index = problem.diagonal_index;
  view.coupling_index = problem.coupling_index;
  return view;
}

// One after the other; a factorization is given back when the next one is there.
void FactorLoop(const Place& place, const problems::Problem& problem, Progress& progress) {
  auto client = client::SolverClient::Connect(TargetOf(place));
  if (!client.ok()) std::abort();
  client::FactorHandle kept;
  for (;;) {
    auto factored = client->Factor(ViewOf(problem));
    progress.Count(factored.ok());
    if (!factored.ok()) {
      std::fprintf(stderr, "load: %s\n", factored.status().ToString().c_str());
      std::exit(1);
    }
    kept = std::move(factored->handle);
    ++progress.threads_ready;
  }
}
void Factors(const Place& place, Progress& progress) {
  FactorLoop(place, PaletteOf(place.size), progress);
}
void FullFactors(const Place& place, Progress& progress) {
  FactorLoop(place, problems::Expand(PaletteOf(place.size)), progress);
}

// As many callers as there are requests under way: each asks again once it is answered.
void Solves(const Place& place, Progress& progress) {
  constexpr int kCallers = 64;
  const problems::Problem problem = problems::Mpc(place.size.num_blocks, place.size.block_size, 1);
  auto client = client::SolverClient::Connect(TargetOf(place));
  auto factored = client->Factor(ViewOf(problem));
  if (!factored.ok()) std::exit(1);
  const client::Factorization handle = factored->handle.get();
  const std::vector<double> rhs = problems::RandomColumns(problem.rows(), place.size.num_rhs, 1);
  std::vector<std::vector<double>> solutions(kCallers, std::vector<double>(rhs.size()));
  // One thread asks for all: an answer says only who may ask again.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> free;
  for (int i = 0; i < kCallers; ++i) free.push_back(i);
  ++progress.threads_ready;
  for (;;) {
    std::vector<int> now;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !free.empty(); });
      now.swap(free);
    }
    for (const int caller : now) {
      client->SolveAsync(handle, rhs, solutions[caller], {}, [&, caller](auto result) {
        progress.Count(result.ok());
        const std::lock_guard lock(mutex);
        free.push_back(caller);
        changed.notify_one();
      });
    }
  }
}

// --- Abuse
// ------------------------------------------------------------------------------------------

// Factors until it is refused, and then goes on asking.
void Hoard(const Place& place, v1::FactorRequest all, const v1::FactorRequest& one,
           Progress& progress) {
  const auto stub = v1::Solver::NewStub(Connect(place));
  for (bool full = false;;) {
    grpc::ClientContext context;
    v1::FactorReply reply;
    const grpc::Status status = stub->Factor(&context, full ? one : all, &reply);
    progress.Count(status.ok());
    if (!status.ok() && !full) {
      full = true;
      ++progress.threads_ready;
    }
  }
}
void Pins(const Place& place, Progress& progress) {
  v1::FactorRequest all = FactorOf(1, 1, 4096), one = FactorOf(1, 1, 1);
  all.mutable_options()->set_pin(true);
  one.mutable_options()->set_pin(true);
  Hoard(place, all, one, progress);
}
void Leases(const Place& place, Progress& progress) {
  v1::FactorRequest request = FactorOf(64, 64, 4);
  request.mutable_options()->mutable_lease()->set_seconds(3600);
  Hoard(place, request, request, progress);
}

// Headers that reserve, and then next to nothing.
void StalledUploads(const Place& place, Progress& progress) {
  const auto stub = v1::Solver::NewStub(Connect(place));
  v1::FactorStreamRequest header, nothing;
  *header.mutable_header()->mutable_spec() = SpecOf(64, 64);
  header.mutable_header()->set_num_systems(16);
  nothing.set_chunk("");
  for (bool first = true;; first = false) {
    grpc::ClientContext context;
    v1::FactorReply reply;
    const auto writer = stub->FactorStream(&context, &reply);
    bool goes_on = writer->Write(header);
    if (first) ++progress.threads_ready;
    while (goes_on) {
      Nap(100);
      goes_on = writer->Write(nothing);
    }
    progress.Count(writer->Finish().ok());
    Nap(20);
  }
}

// Streams whose solutions are never read. Ready once they all stand still: until then they are
// ordinary callers.
void AwaitStandstill(Progress& progress) {
  for (int64_t last = -1; last != progress.answered || last == 0;) {
    last = progress.answered;
    Nap(500);
  }
  ++progress.threads_ready;
}
void StalledReaders(const Place& place, Progress& progress) {
  constexpr int64_t kColumns = 128;
  if (progress.threads_started++ == 0) return AwaitStandstill(progress);
  ++progress.threads_ready;
  const auto stub = v1::Solver::NewStub(Connect(place));
  const v1::FactorRequest system = FactorOf(1024, 8, 1);
  const std::string handle = Factor(*stub, system);
  v1::SolveStreamRequest request;
  request.mutable_request()->set_handle(handle);
  request.mutable_request()->set_num_rhs(kColumns);
  request.mutable_request()->set_rhs(BytesOf(problems::RandomColumns(1024 * 8, kColumns, 1)));
  for (;;) {
    grpc::ClientContext context;
    const auto stream = stub->SolveStream(&context);
    for (uint64_t id = 1; id <= 64; ++id) {
      request.set_id(id);
      if (!stream->Write(request)) break;  // waits once the server reads no more
      progress.Count(true);
    }
    context.TryCancel();
    progress.Count(stream->Finish().ok());
  }
}

// Cancelled after `timeout`, if it lasts longer.
grpc::Status RawCall(grpc::Channel& channel, const std::string& method,
                     const grpc::ByteBuffer& message,
                     std::chrono::milliseconds timeout = std::chrono::hours(1)) {
  const std::string path = "/blockd.v1.Solver/" + method;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::ByteBuffer answer;
  return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      &channel, grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC),
      &context, message, &answer);
}

std::string Field(int field, const std::string& bytes) {
  std::string all(1, static_cast<char>(field << 3 | 2));
  for (size_t length = bytes.size(); length > 0; length >>= 7) {
    all += static_cast<char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
  }
  return all + bytes;
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Empty handles, a palette, a right-hand side of nobody's handle: 63 MiB each.
void LargeMessages(const Place& place, Progress& progress) {
  const auto channel = Connect(place);
  std::string empty_handles;
  while (empty_handles.size() < 63 * kMiB) empty_handles += std::string("\x0a\x00", 2);
  const std::string palette = Field(1, Field(6, Field(3, std::string(63 * kMiB, '\1'))));
  v1::SolveRequest solve;
  solve.set_handle(std::string(24, 'h'));
  solve.set_num_rhs(1);
  solve.set_rhs(std::string(63 * kMiB, '\0'));
  const std::pair<const char*, grpc::ByteBuffer> messages[] = {
      {"Release", BufferOf(empty_handles)},
      {"Factor", BufferOf(palette)},
      {"Solve", BufferOf(solve.SerializeAsString())}};
  for (bool first = true;; first = false) {
    for (const auto& [method, message] : messages) {
      progress.Count(RawCall(*channel, method, message).ok());
      if (first) ++progress.threads_ready;
      first = false;
    }
  }
}

void HandleFlood(const Place& place, Progress& progress) {
  const auto stub = v1::Solver::NewStub(Connect(place));
  const v1::FactorRequest request = FactorOf(1, 1, 4096);
  for (bool first = true;; first = false) {
    grpc::ClientContext context;
    v1::FactorReply reply;
    progress.Count(stub->Factor(&context, request, &reply).ok());
    if (first) ++progress.threads_ready;
  }
}

// Handles that nobody has: ten thousand a call, and 2.5 million in one.
void ReleaseFlood(const Place& place, Progress& progress) {
  const auto channel = Connect(place);
  std::string some, many;
  for (int i = 0; i < 10'000; ++i) {
    some += Field(1, absl::StrCat(i, std::string(24, 'x')).substr(0, 24));
  }
  for (int i = 0; i < 250; ++i) many += some;
  many.resize(63 * kMiB / some.size() * some.size());
  const grpc::ByteBuffer messages[] = {BufferOf(some), BufferOf(many)};
  for (int64_t i = 0;; ++i) {
    progress.Count(RawCall(*channel, "Release", messages[i % 16 == 15]).ok());
    if (i == 0) ++progress.threads_ready;
  }
}

// Varints of a field that no message has: for each two bytes the server remembers many.
grpc::ByteBuffer UnknownFields() {
  std::string fields;
  while (fields.size() < 3 * kMiB) fields += std::string("\x78\x00", 2);
  return BufferOf(fields);
}

template <int kTimeoutMs>
void UnknownFieldCalls(const Place& place, Progress& progress) {
  const std::chrono::milliseconds timeout(kTimeoutMs);
  const auto channel = Connect(place);
  const grpc::ByteBuffer message = UnknownFields();
  const bool streams = progress.threads_started++ % 2 == 1;
  const grpc::internal::RpcMethod method("/blockd.v1.Solver/SolveStream",
                                         grpc::internal::RpcMethod::BIDI_STREAMING);
  for (bool first = true;; first = false) {
    if (streams) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + timeout);
      const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
          grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
              channel.get(), method, &context));
      grpc::ByteBuffer answer;
      if (stream->Write(message)) stream->Read(&answer);
      stream->WritesDone();
      progress.Count(stream->Finish().ok());
    } else {
      progress.Count(RawCall(*channel, "SolveMany", message, timeout).ok());
    }
    if (first) ++progress.threads_ready;
  }
}

// A tenant with a rate of its own, far above it.
void OverTheRate(const Place& place, Progress& progress) {
  const auto stub = v1::Solver::NewStub(Connect(place));
  v1::SolveRequest request;
  request.set_handle(std::string(24, 'h'));
  request.set_num_rhs(1);
  request.set_rhs(std::string(8192, '\0'));
  for (bool first = true;; first = false) {
    grpc::ClientContext context;
    context.AddMetadata("blockd-caller", "limited");
    v1::SolveReply reply;
    progress.Count(stub->Solve(&context, request, &reply).ok());
    if (first) ++progress.threads_ready;
  }
}

}  // namespace

const std::vector<Abuse>& CallAbuses() {
  static const auto& all = *new std::vector<Abuse>{
      {{"pins", "pins of 1 x 1 systems until refused, then 2 callers go on"}, 2, Pins},
      {{"leases", "leases of an hour until refused, then 2 callers go on"}, 2, Leases},
      {{"stalled_uploads", "64 uploads that send nothing after their header"}, 64, StalledUploads},
      {{"stalled_readers", "6 SolveStreams that read nothing"}, 7, StalledReaders},
      {{"large_messages", "2 callers with messages of 63 MiB"}, 2, LargeMessages},
      {{"handle_flood", "2 callers that factor 4096 systems a call"}, 2, HandleFlood},
      {{"release_flood", "2 callers that release millions of unknown handles"}, 2, ReleaseFlood},
      {{"over_rate", "16 callers far over their rate"}, 16, OverTheRate},
  };
  return all;
}

const std::vector<Abuse>& MessageAbuses() {
  static const auto& all = *new std::vector<Abuse>{
      {{"unknown_fields", "SolveMany and SolveStream of 3 MiB of short unknown fields"},
       8,
       UnknownFieldCalls<3'600'000>},
      {{"unknown_cancelled", "the same, cancelled after 30 ms"}, 8, UnknownFieldCalls<30>},
  };
  return all;
}

const std::vector<Abuse>& HonestWork() {
  static const auto& all = *new std::vector<Abuse>{
      {{kFactors, "Factors back to back"}, 1, Factors},
      {{kFullFactors, "Factors back to back, every block sent"}, 1, FullFactors},
      {{kSolves, "64 callers of one handle"}, 1, Solves},
  };
  return all;
}

}  // namespace blockd::bench
