// Calls over a core on the CPU, from their messages and back, for fuzz targets.
#ifndef BLOCKD_TESTS_FUZZ_FUZZED_CALLER_H_
#define BLOCKD_TESTS_FUZZ_FUZZED_CALLER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockd/engine/backend_registry.h"
#include "blockd/v1/blockd.pb.h"
#include "server/transport/calls/reflection.h"
#include "server/transport/rpc/call.h"
#include "server/transport/solver_service.h"
#include "server/transport/wire/raw_message.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fake_call.h"
#include "tests/support/eventually.h"

namespace blockd::server {

inline std::unique_ptr<Solver> MakeSolver() {
  BackendOptions options;
  options.memory_bytes = int64_t{4} << 20;
  options.cpu_threads = 1;
  options.cpu_lanes = 1;
  return std::make_unique<Solver>(*CreateBackend("cpu", options));
}

inline CoreLimits Limits() {
  CoreLimits limits;
  limits.max_systems = 3;
  limits.max_rhs = 16;
  limits.tombstones = 16;
  limits.max_handles = 8;
  limits.max_inflight_request_bytes = 20'000;
  return limits;
}

struct World {
  Metrics metrics{{"fuzz", "cpu", "this one", "fuzz"}};
  std::unique_ptr<Identities> identities = *Identities::Load("", {.trust_caller_metadata = true});
  const ServerIdentity identity{"fuzz", Epoch::Start("fuzz")};
  RealClock clock;
  SolverCore core{MakeSolver(), Limits(), identity, &metrics, &clock};
};

inline ServerOptions Options() {
  ServerOptions options;
  options.core = Limits();
  options.max_message_bytes = 10'000;
  options.serving_threads = 1;
  return options;
}

// Each call is answered once.
class FuzzedCaller {
 public:
  explicit FuzzedCaller(World* world)
      : core_(world->core),
        state_(&world->core, &world->metrics, Options(), world->identity, world->identities.get()) {
    state_.reflection = &reflection_;
  }

  // OK with the answers' bytes, or not.
  bool AskAll(std::string_view method, const std::vector<std::string>& messages,
              std::vector<grpc::ByteBuffer>* answers) {
    FakeWire& wire = TheWire();
    const std::string name =
        method.starts_with('/') ? std::string(method) : "/blockd.v1.Solver/" + std::string(method);
    wire.Begin(MakeSolverCallOf(name, &state_, std::make_unique<IncomingCall>(nullptr)));
    for (size_t sent = 0; !wire.finishing();) {
      if (wire.reading() && sent == messages.size()) {
        wire.EndReading();
      } else if (wire.reading()) {
        const grpc::Slice slice(messages[sent]);
        wire.Deliver(messages[sent].empty() ? grpc::ByteBuffer() : grpc::ByteBuffer(&slice, 1));
        ++sent;
      } else if (wire.writing()) {
        wire.EndWriting(true);
      } else {
        ThePosted().WaitForOne();
        ThePosted().RunFirst();
      }
    }
    const grpc::Status status = *wire.status();
    FUZZ_CHECK(status.error_code() != grpc::StatusCode::INTERNAL);
    FUZZ_CHECK(wire.written().empty() != status.ok());
    if (status.ok()) *answers = wire.written();
    wire.EndFinishing();
    wire.Over(false);
    // A lane may hold it for a moment yet.
    FUZZ_CHECK(state_.tracker.WaitUntilIdle(absl::Seconds(10)));
    return status.ok();
  }
  bool Ask(std::string_view method, const std::string& bytes, grpc::ByteBuffer* answer) {
    std::vector<grpc::ByteBuffer> answers;
    if (!AskAll(method, {bytes}, &answers)) return false;
    FUZZ_CHECK(answers.size() == 1);
    *answer = answers.front();
    return true;
  }
  // A head and chunks; the head, and how many bytes the chunks have.
  template <typename Reply>
  bool AskChunked(std::string_view method, const std::vector<std::string>& messages, Reply* head,
                  int64_t* bytes) {
    std::vector<grpc::ByteBuffer> answers;
    if (!AskAll(method, messages, &answers)) return false;
    FUZZ_CHECK(ParseMessage(answers.front(), head) && head->has_head());
    *bytes = 0;
    for (size_t i = 1; i < answers.size(); ++i) {
      Reply chunk;
      FUZZ_CHECK(ParseMessage(answers[i], &chunk) && chunk.has_chunk());
      *bytes += static_cast<int64_t>(chunk.chunk().size());
    }
    return true;
  }
  template <typename Reply>
  bool Ask(std::string_view method, const google::protobuf::Message& request, Reply* reply) {
    grpc::ByteBuffer answer;
    if (!Ask(method, request.SerializeAsString(), &answer)) return false;
    FUZZ_CHECK(ParseMessage(answer, reply));
    return true;
  }

  // Releases all, and checks that nothing is held.
  void End() {
    ReleaseAll();
    FUZZ_CHECK(test::Eventually([this] {
      const SolverCore::MemoryStats memory = core_.memory();
      return memory.factorizations == 0 && memory.free_bytes == memory.total_bytes &&
             memory.pool.used_bytes == memory.solve_reserve_bytes;
    }));
    FUZZ_CHECK(core_.healthy());
    FUZZ_CHECK(state_.core->host().reserved() == 0);
    FUZZ_CHECK(state_.tracker.WaitUntilIdle(absl::ZeroDuration()));
  }

 private:
  void ReleaseAll() {
    while (true) {
      v1::ListFactorizationsReply list;
      FUZZ_CHECK(Ask("ListFactorizations", v1::ListFactorizationsRequest(), &list));
      if (list.factorization_size() == 0) return;
      v1::ReleaseRequest release;
      for (const v1::FactorizationInfo& info : list.factorization()) {
        release.add_handle(info.handle());
      }
      v1::ReleaseReply reply;
      FUZZ_CHECK(Ask("Release", release, &reply));
    }
  }

  SolverCore& core_;
  ServiceState state_;
  Reflection reflection_{{"blockd.v1.Solver"}, &state_.work};
};

}  // namespace blockd::server

#endif  // BLOCKD_TESTS_FUZZ_FUZZED_CALLER_H_
