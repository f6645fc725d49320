// A FactorStream: headers, chunks, cancellations and looks at the time, in any order, over a core
// that accepts, finds, refuses or fails. The matrix that reaches the core is the one that was sent,
// there is one end, and nothing is held after it.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <string>

#include "blockd/v1/blockd.pb.h"
#include "server/base/steady_time.h"
#include "server/transport/calls/factor_stream.h"
#include "server/transport/rpc/call.h"
#include "server/transport/wire/raw_message.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fake_call.h"
#include "tests/fuzz/fake_core.h"

namespace blockd::server {
namespace {

constexpr int kSteps = 100;

ServerOptions Options() {
  ServerOptions options;
  options.max_message_bytes = 4000;
  options.serving_threads = 1;
  return options;
}

class Client {
 public:
  Client(World* world, FuzzedDataProvider* input)
      : input_(*input),
        state_(&world->core, &world->metrics, Options(), {}, world->identities.get()) {}

  void Run() {
    TheFakeCore().SetHost(4000);
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    TheFakeCore().fail_next_chunk = false;
    TheWire().Begin(MakeFactorStream(&state_, std::make_unique<IncomingCall>(nullptr)));
    for (int i = 0; i < kSteps && input_.remaining_bytes() > 0 && !TheWire().gone(); ++i) Step();
    End();
    FUZZ_CHECK(TheWire().gone());
    FUZZ_CHECK(TheFakeCore().factors.empty() && ThePosted().empty());
    FUZZ_CHECK(TheFakeCore().uploads == 0);
    FUZZ_CHECK(state_.core->host().reserved() == 0);
    FUZZ_CHECK(state_.tracker.WaitUntilIdle(absl::ZeroDuration()));
  }

 private:
  void Step() {
    FakeWire& wire = TheWire();
    switch (input_.ConsumeIntegralInRange<int>(0, 11)) {
      case 0:
        return Send(input_.ConsumeIntegralInRange<int>(0, 7) == 0 ? Join() : Header());
      case 1:
      case 2:
      case 3:
        return Send(Chunk());
      case 4:
      case 5:
      case 6:
        return ThePosted().RunFirst();
      case 7:
        if (!TheFakeCore().factors.empty()) Answer();
        return;
      case 8:
        TheFakeCore().next = static_cast<FakeCore::Next>(input_.ConsumeIntegralInRange<int>(0, 4));
        TheFakeCore().fail_next_chunk = input_.ConsumeIntegralInRange<int>(0, 7) == 0;
        return;
      case 9:
        return wire.Look(SteadyNow() + absl::Seconds(input_.ConsumeIntegralInRange<int>(0, 700)));
      case 10:
        if (wire.reading() && input_.ConsumeBool()) wire.EndReading();
        return;
      case 11:
        switch (input_.ConsumeIntegralInRange<int>(0, 7)) {
          case 0:
            if (!wire.over()) wire.Over(/*cancelled=*/true);
            return;
          case 1:
            return state_.tracker.StartDrain();
          case 2:
            raw_chunk_ = true;
            return Send(input_.ConsumeRandomLengthString(64));
          default:
            return;
        }
    }
  }

  std::string Header() {
    v1::FactorStreamRequest message;
    v1::FactorStreamHeader& header = *message.mutable_header();
    v1::SystemSpec& spec = *header.mutable_spec();
    spec.set_num_blocks(input_.ConsumeIntegralInRange<int>(0, 5));
    spec.set_block_size(input_.ConsumeIntegralInRange<int>(0, 4));
    const uint8_t forms = input_.ConsumeIntegral<uint8_t>();
    spec.set_scalar(forms & 1 ? v1::FLOAT32 : v1::FLOAT64);
    spec.set_diagonal_form(forms & 2 ? v1::PACKED_LOWER : v1::FULL);
    spec.set_coupling_form(forms & 4 ? v1::SUPERDIAGONAL : v1::SUBDIAGONAL);
    if ((forms & 8) != 0) spec.set_scalar(v1::SCALAR_TYPE_UNSPECIFIED);
    if ((forms & 16) != 0) {
      spec.mutable_palette()->set_num_diagonal(1);
      spec.mutable_palette()->set_num_coupling(spec.num_blocks() > 1 ? 1 : 0);
      for (int i = 0; i < spec.num_blocks(); ++i) spec.mutable_palette()->add_diagonal_index(0);
      for (int i = 1; i < spec.num_blocks(); ++i) spec.mutable_palette()->add_coupling_index(0);
    }
    header.set_num_systems(input_.ConsumeIntegralInRange<int>(-1, 3));
    if ((forms & 32) != 0) header.set_upload_id(std::string((forms & 64) != 0 ? 16 : 3, 'u'));
    return message.SerializeAsString();
  }

  // A join to an upload that is not there: one call at a time is under way.
  std::string Join() {
    v1::FactorStreamRequest message;
    message.mutable_join()->set_upload_id(input_.ConsumeRandomLengthString(16));
    message.mutable_join()->set_first_byte(input_.ConsumeIntegral<int64_t>());
    message.mutable_join()->set_num_bytes(input_.ConsumeIntegral<int64_t>());
    return message.SerializeAsString();
  }

  std::string Chunk() {
    v1::FactorStreamRequest message;
    // Mostly a few bytes, and sometimes all that a small matrix has.
    std::string bytes(input_.ConsumeIntegral<uint8_t>(), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = Byte(sent_.size() + i);
    message.set_chunk(bytes);
    if (TheWire().reading()) sent_ += bytes;
    return message.SerializeAsString();
  }
  static char Byte(size_t at) { return static_cast<char>(at * 7 + 3); }

  void Send(const std::string& bytes) {
    if (!TheWire().reading()) return;
    const size_t cut = bytes.empty() ? 0 : input_.ConsumeIntegral<uint8_t>() % bytes.size();
    const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)),
                                  grpc::Slice(bytes.substr(cut))};
    TheWire().Deliver(bytes.empty() ? grpc::ByteBuffer() : grpc::ByteBuffer(slices, 2));
  }

  void Answer() {
    const FakeCore::PendingFactor& factor = TheFakeCore().factors.front();
    FUZZ_CHECK(std::string_view(sent_).substr(0, factor.bytes.size()) == factor.bytes ||
               raw_chunk_);
    const uint8_t which = input_.ConsumeIntegral<uint8_t>();
    TheFakeCore().AnswerFactor(0, factor.context->cancelled ? absl::CancelledError("cancelled")
                                  : which > 240             ? absl::InternalError("fell off")
                                                            : absl::OkStatus());
  }

  void End() {
    FakeWire& wire = TheWire();
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    if (input_.ConsumeBool() && !wire.over()) wire.Over(/*cancelled=*/true);
    bool moved = true;
    while (moved) {
      moved = true;
      if (!ThePosted().empty()) {
        ThePosted().RunFirst();
      } else if (!TheFakeCore().factors.empty()) {
        Answer();
      } else if (wire.reading()) {
        wire.EndReading();
      } else if (wire.finishing()) {
        CheckEnd();
        wire.EndFinishing();
        if (!wire.over()) wire.Over(false);
      } else {
        moved = false;
      }
    }
  }

  // One answer where all is well, none else.
  static void CheckEnd() {
    const FakeWire& wire = TheWire();
    FUZZ_CHECK(wire.status().has_value());
    FUZZ_CHECK(TheWire().written().size() == (wire.status()->ok() ? 1u : 0u));
    if (!wire.status()->ok()) return;
    v1::FactorReply reply;
    FUZZ_CHECK(ParseMessage(TheWire().written().front(), &reply));
  }

  FuzzedDataProvider& input_;
  ServiceState state_;
  std::string sent_;
  bool raw_chunk_ = false;  // bytes of any kind were sent; they may be a chunk
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
