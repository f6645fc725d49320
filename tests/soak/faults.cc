#include "tests/soak/faults.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "blockd/v1/blockd.grpc.pb.h"
#include "tests/soak/systems.h"
#include "tests/soak/tenant.h"

namespace blockd::soak {
namespace {

using enum grpc::StatusCode;
constexpr int64_t kColumns = 8;  // a right-hand side of 512 KiB, beyond any window

void Nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// As one of the first two tenants, which have no rate of requests.
const Tenant& One() { return Tenants()[0]; }

std::string Factor(v1::Solver::Stub& stub, const System& system, int lease_seconds) {
  v1::FactorRequest request;
  *request.mutable_spec() = system.spec;
  *request.add_system() = system.data;
  request.mutable_options()->mutable_lease()->set_seconds(lease_seconds);
  for (;;) {
    grpc::ClientContext context;
    SayWho(One(), &context);
    v1::FactorReply reply;
    if (stub.Factor(&context, request, &reply).ok()) return reply.system(0).handle();
    Nap(10);
  }
}

v1::SolveStreamRequest LargeRequest(const std::string& handle) {
  v1::SolveStreamRequest request;
  const System& system = LargeSystem();
  request.mutable_request()->set_handle(handle);
  request.mutable_request()->set_num_rhs(kColumns);
  std::string rhs;
  for (int64_t i = 0; i < kColumns; ++i) rhs += system.RhsBytes(1);
  request.mutable_request()->set_rhs(std::move(rhs));
  return request;
}

}  // namespace

std::unique_ptr<v1::Solver::Stub> Connect(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // what is not read stays on the server
  return v1::Solver::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
}

Faults::Faults(int port, Tally* tally) : port_(port), tally_(tally) {
  threads_.emplace_back([this] { KillClients(); });
  threads_.emplace_back([this] { DoNotRead(); });
  threads_.emplace_back([this] { DoNotSend(); });
}

void Faults::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Faults::KillClients() {
  std::mt19937_64 random(1);
  std::string port = absl::StrCat("--port=", port_);
  for (int64_t i = 0; !stop_; ++i) {
    std::string program = "/proc/self/exe";
    std::string kind = i % 2 == 0 ? "--client=upload" : "--client=reply";
    char* argv[] = {program.data(), kind.data(), port.data(), nullptr};
    pid_t pid = -1;
    if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv, environ) != 0) std::abort();
    // Long enough to be under way, most of the time.
    Nap(static_cast<int>(50 + random() % 200));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    ++killed_;
    Nap(200);
  }
}

// A stream whose answers are not read is cancelled by the server, and so is its memory freed.
void Faults::DoNotRead() {
  const auto stub = Connect(port_);
  while (!stop_) {
    // It is there while it is used.
    const std::string handle = Factor(*stub, LargeSystem(), /*lease_seconds=*/60);
    v1::SolveStreamRequest request = LargeRequest(handle);
    grpc::ClientContext context;
    SayWho(One(), &context);
    const auto stream = stub->SolveStream(&context);
    for (uint64_t id = 1; id <= 8; ++id) {
      request.set_id(id);
      if (!stream->Write(request)) break;
    }
    // The server ends it after --reply_timeout: then a write fails.
    bool ended = false;
    for (int i = 0; i < 600 && !stop_ && !ended; ++i) {
      Nap(50);
      v1::SolveStreamRequest nothing;
      nothing.set_id(1'000'000);
      nothing.mutable_cancel();
      ended = !stream->Write(nothing);
    }
    const std::string wrong = ended || stop_ ? "" : "goes on for 30 s";
    context.TryCancel();
    v1::SolveStreamReply reply;
    while (stream->Read(&reply)) continue;
    tally_->Add("SolveStream that is not read", stream->Finish(), {CANCELLED}, wrong);
    grpc::ClientContext release_context;
    SayWho(One(), &release_context);
    v1::ReleaseRequest release;
    release.add_handle(handle);
    v1::ReleaseReply released;
    tally_->Add("Release of what was leased", stub->Release(&release_context, release, &released),
                {});
  }
}

// An upload that falls silent ends after --stream_idle_timeout.
void Faults::DoNotSend() {
  const auto stub = Connect(port_);
  while (!stop_) {
    grpc::ClientContext context;
    SayWho(One(), &context);
    v1::FactorReply reply;
    const auto writer = stub->FactorStream(&context, &reply);
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = LargeSystem().spec;
    message.mutable_header()->set_num_systems(1);
    writer->Write(message);
    message.set_chunk(std::string(10'000, 'x'));
    writer->Write(message);
    tally_->Add("FactorStream that falls silent", writer->Finish(),
                {DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE});
  }
}

void BeClient(const std::string& kind, int port) {
  const auto stub = Connect(port);
  const System& system = LargeSystem();
  const std::string handle = kind == "reply" ? Factor(*stub, system, 0) : "";
  for (;;) {
    grpc::ClientContext context;
    SayWho(One(), &context);
    if (kind == "upload") {
      v1::FactorReply reply;
      const auto writer = stub->FactorStream(&context, &reply);
      v1::FactorStreamRequest message;
      *message.mutable_header()->mutable_spec() = system.spec;
      message.mutable_header()->set_num_systems(1);
      writer->Write(message);
      for (size_t at = 0; at < system.data.diagonal().size(); at += 20'000) {
        message.set_chunk(system.data.diagonal().substr(at, 20'000));
        if (!writer->Write(message)) break;
        Nap(5);
      }
      (void)writer->Finish();
    } else {
      const auto stream = stub->SolveStream(&context);
      v1::SolveStreamRequest request = LargeRequest(handle);
      v1::SolveStreamReply reply;
      for (uint64_t id = 1; id <= 4; ++id) {
        request.set_id(id);
        if (!stream->Write(request) || !stream->Read(&reply)) break;
      }
      context.TryCancel();
      (void)stream->Finish();
    }
  }
}

}  // namespace blockd::soak
