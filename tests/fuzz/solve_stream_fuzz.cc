// A SolveStream: what a client sends, takes and leaves, what the core answers, in any order. What
// comes out is what the client asked for, each request is answered once, and at the end nothing is
// held.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "blockd/v1/blockd.pb.h"
#include "server/base/steady_time.h"
#include "server/transport/rpc/call.h"
#include "server/transport/stream/solve_stream.h"
#include "server/transport/wire/raw_message.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fake_call.h"
#include "tests/fuzz/fake_core.h"

namespace blockd::server {
namespace {

constexpr size_t kIds = 4;
constexpr int kSteps = 200;

struct Asked {
  uint8_t seed = 0;      // of the right-hand sides
  int64_t expected = 0;  // bytes that the server wants, and answers
};

// The client's knowledge of one id.
struct Sent {
  // Oldest first; more than one where the client has used the id again before it had the answer,
  // which the server may have sent already.
  std::deque<Asked> unanswered;
  Asked last;             // that chunks are for
  int64_t sent = 0;       // bytes of its right-hand sides
  Asked answered;         // that chunks of a solution are of
  int64_t solution = -1;  // bytes that they still bring; -1: none
  int64_t taken = 0;      // of the solution
};

class Client {
 public:
  Client(World* world, FuzzedDataProvider* input)
      : input_(*input),
        state_(&world->core, &world->metrics, Options(input), {}, world->identities.get()) {}

  void Run() {
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    TheWire().Begin(MakeSolveStream(&state_, std::make_unique<IncomingCall>(nullptr)));
    for (int i = 0; i < kSteps && input_.remaining_bytes() > 0 && !TheWire().gone(); ++i) Step();
    End();
    FUZZ_CHECK(TheWire().gone());
    FUZZ_CHECK(TheFakeCore().solves.empty() && ThePosted().empty());
    FUZZ_CHECK(state_.core->host().reserved() == 0);
    FUZZ_CHECK(state_.tracker.WaitUntilIdle(absl::ZeroDuration()));
  }

 private:
  static ServerOptions Options(FuzzedDataProvider* input) {
    ServerOptions options;
    const bool large = input->ConsumeBool();
    TheFakeCore().SetHost(large ? 200'000 : 500);
    options.max_message_bytes = 150'000;
    options.max_stream_requests = 3;
    options.max_stream_bytes = large ? 150'000 : 400;
    options.stream_chunk_bytes = large ? 30'000 : 16;
    options.serving_threads = 1;
    return options;
  }

  void Step() {
    FakeWire& wire = TheWire();
    switch (input_.ConsumeIntegralInRange<int>(0, 15)) {
      case 0:
      case 1:
      case 2:
        return Send(Request());
      case 3:
      case 4:
      case 5:
        return Send(Chunk());
      case 6: {
        v1::SolveStreamRequest message;
        message.set_id(AnId());
        message.mutable_cancel();
        return Send(message.SerializeAsString());
      }
      case 7:
        switch (input_.ConsumeIntegralInRange<int>(0, 7)) {
          case 0:
            raw_ = true;
            return Send(input_.ConsumeRandomLengthString(64));
          case 1:
            return;
          case 2:
          case 3:
            return Send(Refactors());
          default:
            return Send(Frame());
        }
      case 8:
      case 9:
        if (wire.writing()) wire.EndWriting(input_.ConsumeIntegralInRange<int>(0, 15) != 0);
        return TakeReplies();
      case 10:
      case 11:
        return AnswerOne();
      case 12:
        return ThePosted().RunFirst();
      case 13:
        TheFakeCore().next = static_cast<FakeCore::Next>(input_.ConsumeIntegralInRange<int>(0, 4));
        return;
      case 14:
        return wire.Look(SteadyNow() + absl::Seconds(input_.ConsumeIntegralInRange<int>(0, 700)));
      case 15:
        switch (input_.ConsumeIntegralInRange<int>(0, 9)) {
          case 0:
            return state_.tracker.StartDrain();
          case 1:
            if (!wire.over()) wire.Over(/*cancelled=*/true);
            return;
          case 2:
            if (wire.reading()) wire.EndReading();
            return;
          default:
            return;
        }
    }
  }

  // Messages that come after the end are of no account.
  static bool WillBeRead() { return TheWire().reading() && !TheWire().status().has_value(); }
  uint64_t AnId() { return input_.ConsumeIntegralInRange<uint64_t>(0, kIds - 1); }
  static char Byte(uint8_t seed, int64_t at) { return static_cast<char>(seed * 31 + at * 7); }
  static std::string Bytes(uint8_t seed, int64_t from, int64_t count) {
    std::string bytes(static_cast<size_t>(count), '\0');
    for (int64_t i = 0; i < count; ++i) bytes[i] = Byte(seed, from + i);
    return bytes;
  }

  // The client has asked, and sent so many of the right-hand sides.
  void NoteSent(uint64_t id, const Asked& asked, int64_t sent) {
    if (!WillBeRead()) return;
    Sent& at = ids_[id];
    at.last = asked;
    at.unanswered.push_back(asked);
    at.sent = sent;
  }

  std::string Request() {
    v1::SolveStreamRequest message;
    const uint64_t id = AnId();
    message.set_id(id);
    const auto number = input_.ConsumeIntegralInRange<uint8_t>(0, 3);
    const Handle handle = FakeCore::HandleOf(number);
    message.mutable_request()->set_handle(std::string(handle.view()));
    const int64_t columns = input_.ConsumeIntegralInRange<int64_t>(-1, 10);
    message.mutable_request()->set_num_rhs(columns);
    int64_t bytes = 0;
    if (number < 3 && columns > 0) {
      const BorderedShape shape = FakeCore::ShapeOfNumber(number);
      bytes = columns * shape.rows() * ScalarBytes(shape.chain.scalar);
    }
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    const uint8_t seed = ++seed_;
    const bool whole = (flags & 3) != 0;
    int64_t sent = whole ? bytes : 0;
    if ((flags & 0x1c) == 0x1c) sent = std::max<int64_t>(0, sent + (flags & 0x20 ? 1 : -1));
    message.mutable_request()->set_rhs(Bytes(seed, 0, sent));
    message.set_replace_last((flags & 0x40) != 0);
    if ((flags & 0x80) != 0) message.mutable_timeout()->set_seconds(flags & 7);
    NoteSent(id, {seed, bytes}, sent);
    return message.SerializeAsString();
  }

  // A frame of equal solves, for handles of the stream or its own, or for some that are not there.
  std::string Frame() {
    v1::SolveStreamRequest message;
    const uint64_t id = AnId();
    message.set_id(id);
    v1::SolveManyRequest& many = *message.mutable_many();
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    for (int k = 0; k < (flags & 3); ++k) {
      const Handle handle = FakeCore::HandleOf(input_.ConsumeIntegralInRange<uint8_t>(0, 3));
      *many.mutable_handles() += handle.view();
    }
    const int solves = flags & 3;
    if ((flags & 0xc) == 0xc) many.mutable_handles()->push_back('h');
    const int64_t bytes = input_.ConsumeIntegralInRange<int64_t>(0, 300);
    if ((flags & 0x10) != 0) {
      for (int i = 0; i < solves; ++i) many.add_rhs_bytes(bytes / solves);
    }
    if ((flags & 0x20) != 0) many.add_num_rhs(1);
    message.set_replace_last((flags & 0xc0) == 0xc0);
    const uint8_t seed = ++seed_;
    many.set_rhs(Bytes(seed, 0, bytes));
    NoteSent(id, {seed, bytes}, bytes);
    return message.SerializeAsString();
  }

  // A frame of refactors of 1 x 1 or 2 x 2 systems of one block, in sizes that may not agree.
  std::string Refactors() {
    v1::SolveStreamRequest message;
    const uint64_t id = AnId();
    message.set_id(id);
    v1::FactorSolveManyRequest& refactor = *message.mutable_refactor();
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    const int64_t systems = flags & 3, size = 1 + (flags >> 2 & 1);
    v1::SystemSpec& spec = *refactor.mutable_spec();
    spec.set_num_blocks(1);
    spec.set_block_size(size);
    spec.set_scalar(v1::FLOAT64);
    spec.set_diagonal_form(v1::FULL);
    spec.set_coupling_form(v1::SUBDIAGONAL);
    for (int64_t k = 0; k < systems; ++k) {
      refactor.add_handle(std::string(FakeCore::HandleOf(static_cast<uint8_t>(k)).view()));
    }
    const int64_t columns = input_.ConsumeIntegralInRange<int64_t>(0, 4);
    refactor.set_num_rhs(columns);
    const int64_t wrong = (flags & 0x38) == 0x38 ? 1 : 0;
    refactor.set_matrix(
        std::string(static_cast<size_t>(systems * size * size * 8 + wrong), FakeCore::kMatrixByte));
    const int64_t bytes = systems * size * std::max<int64_t>(columns, 1) * 8;
    const uint8_t seed = ++seed_;
    refactor.set_rhs(Bytes(seed, 0, bytes));
    message.set_replace_last((flags & 0xc0) == 0xc0);
    NoteSent(id, {seed, bytes}, bytes);
    return message.SerializeAsString();
  }

  std::string Chunk() {
    v1::SolveStreamRequest message;
    const uint64_t id = AnId();
    message.set_id(id);
    Sent& at = ids_[id];
    int64_t bytes = at.last.expected - at.sent;
    const uint8_t how = input_.ConsumeIntegral<uint8_t>();
    if (how < 100) bytes = std::min<int64_t>(bytes, how);
    if (how > 250) ++bytes;
    bytes = std::max<int64_t>(0, bytes);
    message.set_chunk(Bytes(at.last.seed, at.sent, bytes));
    if (WillBeRead()) at.sent += bytes;
    return message.SerializeAsString();
  }

  void Send(const std::string& bytes) {
    if (!TheWire().reading()) return;
    const size_t cut = bytes.empty() ? 0 : input_.ConsumeIntegral<uint8_t>() % bytes.size();
    const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)),
                                  grpc::Slice(bytes.substr(cut))};
    TheWire().Deliver(bytes.empty() ? grpc::ByteBuffer() : grpc::ByteBuffer(slices, 2));
    TakeReplies();
  }

  void AnswerOne() {
    FakeCore& core = TheFakeCore();
    if (core.solves.empty()) return;
    const uint8_t which = input_.ConsumeIntegral<uint8_t>();
    absl::Status status;
    if (core.solves[which % core.solves.size()].context->cancelled) {
      status = absl::CancelledError("cancelled");
    } else if (which > 250) {
      status = absl::InternalError("the device fell off");
    }
    core.AnswerSolve(which % core.solves.size(), status);
    TakeReplies();
  }

  void TakeReplies() {
    for (const grpc::ByteBuffer& buffer : std::exchange(TheWire().written(), {})) {
      v1::SolveStreamReply reply;
      FUZZ_CHECK(ParseMessage(buffer, &reply));
      Take(reply);
    }
  }

  void Take(const v1::SolveStreamReply& reply) {
    // A message that is not of the client's own making may have had any id.
    const auto found = ids_.find(reply.id());
    if (found == ids_.end()) return;
    Sent& at = found->second;
    if (reply.has_chunk()) {
      FUZZ_CHECK(at.solution > 0 && static_cast<int64_t>(reply.chunk().size()) <= at.solution);
      CheckSolution(at, reply.chunk());
      at.solution -= static_cast<int64_t>(reply.chunk().size());
      if (at.solution == 0) at.solution = -1;
      return;
    }
    FUZZ_CHECK(at.solution == -1);  // chunks of one are not mixed with an answer of the same id
    FUZZ_CHECK(!at.unanswered.empty() || raw_);
    if (!at.unanswered.empty()) {
      at.answered = at.unanswered.front();
      at.unanswered.pop_front();
    }
    if (reply.has_status()) {
      FUZZ_CHECK(reply.status().code() != 0);
      return;
    }
    FUZZ_CHECK(reply.has_reply() || reply.has_many());
    const std::string& solution =
        reply.has_many() ? reply.many().solution() : reply.reply().solution();
    at.taken = 0;
    if (reply.solution_bytes() > 0) {
      FUZZ_CHECK(solution.empty());
      FUZZ_CHECK(raw_ || reply.solution_bytes() == at.answered.expected);
      at.solution = reply.solution_bytes();
    } else {
      FUZZ_CHECK(raw_ || static_cast<int64_t>(solution.size()) == at.answered.expected);
      CheckSolution(at, solution);
    }
  }

  void CheckSolution(Sent& at, const std::string& piece) {
    for (const char value : piece) {
      FUZZ_CHECK(raw_ || value == static_cast<char>(~Byte(at.answered.seed, at.taken)));
      ++at.taken;
    }
  }

  // The client goes, or has no more to say and takes what comes; the core answers all.
  void End() {
    FakeWire& wire = TheWire();
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    if (input_.ConsumeBool() && !wire.over()) wire.Over(/*cancelled=*/true);
    const bool cancelled = wire.over();
    bool moved = true;
    while (moved) {
      moved = true;
      if (!ThePosted().empty()) {
        ThePosted().RunFirst();
      } else if (!TheFakeCore().solves.empty()) {
        AnswerOne();
      } else if (wire.writing()) {
        wire.EndWriting(!cancelled);
        TakeReplies();
      } else if (wire.reading()) {
        wire.EndReading();
      } else if (wire.finishing()) {
        CheckEnd(cancelled);
        wire.EndFinishing();
        if (!wire.over()) wire.Over(false);
      } else {
        moved = false;
      }
    }
  }

  // Who was told that all is well, or that the server drains, has an answer to everything.
  void CheckEnd(bool cancelled) {
    TakeReplies();
    FUZZ_CHECK(TheWire().status().has_value());
    const grpc::Status& status = *TheWire().status();
    // It may have ended before the drain, for want of memory.
    const bool drained = state_.tracker.draining() &&
                         status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                         status.error_message().find("is shutting down") != std::string::npos;
    const bool whole = status.ok() || drained;
    if (!whole || cancelled || raw_) return;
    for (const auto& [id, at] : ids_) FUZZ_CHECK(at.unanswered.empty() && at.solution == -1);
  }

  FuzzedDataProvider& input_;
  ServiceState state_;
  std::map<uint64_t, Sent> ids_;
  uint8_t seed_ = 0;
  bool raw_ = false;  // bytes of any kind were sent: what they asked for is not known
};

}  // namespace
}  // namespace blockd::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::server;
  static auto& world = *new World;
  FuzzedDataProvider input(data, size);
  Client(&world, &input).Run();
  return 0;
}
