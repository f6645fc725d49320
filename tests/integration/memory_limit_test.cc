// blockd where the kernel gives the process less memory than its callers ask for: each call is
// answered, and the process stays.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "tests/integration/program_fixture.h"

namespace blockd::test {
namespace {

constexpr int64_t kBlocks = 640, kBlockSize = 64;      // 40 MiB
constexpr int64_t kSmallBlocks = 64, kColumns = 1024;  // 32 MiB of right-hand sides
constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr int kCallsEach = 3;

v1::SystemSpec IdentitySpec(int64_t blocks) {
  v1::SystemSpec spec;
  spec.set_num_blocks(blocks);
  spec.set_block_size(kBlockSize);
  spec.set_scalar(v1::FLOAT64);
  spec.set_diagonal_form(v1::FULL);
  spec.set_coupling_form(v1::SUBDIAGONAL);
  return spec;
}

v1::SystemData Identity(int64_t blocks) {
  v1::SystemData data;
  std::string diagonal(static_cast<size_t>(blocks * kBlockSize * kBlockSize) * sizeof(double), 0);
  const double one = 1;
  for (int64_t row = 0; row < blocks * kBlockSize; ++row) {
    std::memcpy(diagonal.data() + (row * kBlockSize + row % kBlockSize) * sizeof(one), &one,
                sizeof(one));
  }
  data.set_coupling(std::string(diagonal.size() / blocks * (blocks - 1), 0));
  data.set_diagonal(std::move(diagonal));
  return data;
}

class MemoryLimitTest : public ProgramTest, public testing::WithParamInterface<int64_t> {
 protected:
  void Open(const std::vector<std::string>& flags) {
    const auto limit = static_cast<rlim_t>(GetParam() << 20);
    in_child_ = [limit] {
      const rlimit both = {.rlim_cur = limit, .rlim_max = limit};
      setrlimit(RLIMIT_AS, &both);
    };
    // Few threads, whatever the machine has: each has a stack of 8 MiB.
    std::vector<std::string> all = {"--backend=cpu",   "--drain_grace=0s", "--device_memory=128MiB",
                                    "--cpu_threads=2", "--cpu_lanes=2",    "--serving_threads=2"};
    all.insert(all.end(), flags.begin(), flags.end());
    Serve(all);
    large_ = Identity(kBlocks);
    stub_ = NewStub();
    *factor_.mutable_spec() = IdentitySpec(kBlocks);
    *factor_.add_system() = large_;
    v1::FactorRequest small;
    *small.mutable_spec() = IdentitySpec(kSmallBlocks);
    *small.add_system() = Identity(kSmallBlocks);
    small.mutable_options()->set_pin(true);
    v1::FactorReply reply;
    ASSERT_TRUE(IsOk(stub_->Factor(NewContext().get(), small, &reply))) << Output();
    solve_.set_handle(reply.system(0).handle());
    solve_.set_num_rhs(kColumns);
    solve_.set_rhs(std::string(kSmallBlocks * kBlockSize * kColumns * sizeof(double), 0));
  }
  // On a connection of its own, and without gRPC's retries, as our clients have it: where a GOAWAY
  // ends an upload, gRPC tells its writer so, and yet sends the header once more.
  std::unique_ptr<v1::Solver::Stub> NewStub() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return v1::Solver::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + port_, grpc::InsecureChannelCredentials(), arguments));
  }
  grpc::Status Upload(v1::Solver::Stub& stub) const {
    const auto context = NewContext();
    v1::FactorReply reply;
    const auto stream = stub.FactorStream(context.get(), &reply);
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = factor_.spec();
    message.mutable_header()->set_num_systems(1);
    bool ok = stream->Write(message);
    for (const std::string* part : {&large_.diagonal(), &large_.coupling()}) {
      for (size_t at = 0; ok && at < part->size(); at += kChunkBytes) {
        message.set_chunk(part->substr(at, kChunkBytes));
        ok = stream->Write(message);
      }
    }
    stream->WritesDone();
    return stream->Finish();
  }
  grpc::Status Call(v1::Solver::Stub& stub, int which) const {
    v1::FactorReply factored;
    v1::SolveReply solved;
    switch (which % 3) {
      case 0:
        return stub.Factor(NewContext().get(), factor_, &factored);
      case 1:
        return stub.Solve(NewContext().get(), solve_, &solved);
      default:
        return Upload(stub);
    }
  }
  // Done or refused. gRPC refuses in words of its own where its quota is full: it cuts off a call,
  // or ends a connection that is idle, on which a call may be on its way.
  static bool IsAnswer(const grpc::Status& status) {
    return status.ok() || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
           status.error_code() == grpc::StatusCode::UNAVAILABLE;
  }
  void CallAll() {
    std::vector<std::thread> callers;
    // Together they send as much as all memory, or 2.5 GiB, which take twice that once parsed.
    const int num_callers = static_cast<int>(std::min<int64_t>(GetParam() / 40, 64));
    for (int caller = 0; caller < num_callers; ++caller) {
      callers.emplace_back([&, caller] {
        const auto stub = NewStub();
        for (int i = 0; i < kCallsEach; ++i) {
          const grpc::Status status = Call(*stub, caller + i);
          EXPECT_TRUE(IsAnswer(status)) << status.error_code() << " " << status.error_message();
          ++(status.ok() ? succeeded_ : refused_);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  // With nobody else there it serves again, and then ends as asked.
  void ExpectServesAndEnds() {
    v1::SolveReply reply;
    grpc::Status status;
    EXPECT_TRUE(Eventually([&] {
      status = stub_->Solve(NewContext().get(), solve_, &reply);
      return status.ok() || kill(pid_, 0) != 0;
    })) << status.error_message();
    EXPECT_TRUE(IsOk(status));
    kill(pid_, SIGTERM);
    EXPECT_EQ(Wait(), 0) << Output();
  }
  std::atomic<int> succeeded_ = 0, refused_ = 0;
  v1::SystemData large_;
  v1::FactorRequest factor_;
  v1::SolveRequest solve_;
  std::unique_ptr<v1::Solver::Stub> stub_;
};

TEST_P(MemoryLimitTest, EveryCallIsAnsweredAndTheServerStays) {
  Open({});
  CallAll();
  ExpectServesAndEnds();
}

// Nothing but the reserve holds then what gRPC asks for. Where that does not suffice, the process
// says so and ends; it is not killed by what it does without memory.
TEST_P(MemoryLimitTest, WithLimitsLargerThanItsMemoryItStaysOrSaysWhyNot) {
  const std::string all = absl::StrCat(GetParam(), "MiB");
  Open({"--grpc_memory_bytes=" + all, "--max_inflight_request_bytes=" + all});
  CallAll();
  kill(pid_, SIGTERM);
  const int code = Wait();
  if (code == 0) return;
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(absl::StrContains(Output(), "blockd: the system has no memory")) << Output();
}

TEST_F(ProgramTest, WhereItsMemoryCannotBeMappedItSaysSoAndEnds) {
  in_child_ = [] {
    setenv("OPENBLAS_NUM_THREADS", "2", 1);  // threads that it starts before main
    const rlimit limit = {.rlim_cur = 200 << 20, .rlim_max = 200 << 20};
    setrlimit(RLIMIT_AS, &limit);
  };
  Spawn({"--port=0", "--metrics_port=-1", "--backend=cpu", "--device_memory=1GiB",
         "--cpu_threads=2", "--cpu_lanes=2", "--serving_threads=2"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_TRUE(absl::StrContains(Output(), "cannot map 1073741824 bytes")) << Output();
}

// Not even what a thread takes.
TEST_F(ProgramTest, WhereTheSystemHasNoMoreItEndsAsAsked) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Serve({"--backend=cpu", "--drain_grace=0s"});
    const rlimit none = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    ASSERT_EQ(prlimit(pid_, RLIMIT_AS, &none, nullptr), 0);
    kill(pid_, signal);
    EXPECT_EQ(Wait(), 0) << Output();
    fs::remove(folder_ / "ports");
  }
}

INSTANTIATE_TEST_SUITE_P(MiB, MemoryLimitTest, testing::Values(1024, 1536, 2048, 4096),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace blockd::test
