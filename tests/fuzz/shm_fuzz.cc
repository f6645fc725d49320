// A session of shared memory whose caller writes anything anywhere at any time: rings, slots,
// descriptors, messages. The poller's steps, posted work and the core's answers come in any order.
// All pieces that the core is given lie in the session's data, each request is answered once at
// most, and nothing is held after the end.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "blockd/v1/blockd.pb.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/transport/rpc/call.h"
#include "server/transport/shm/shm_mapping.h"
#include "server/transport/shm/shm_session.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fake_call.h"
#include "tests/fuzz/fake_core.h"

namespace blockd::server {
namespace {

constexpr int kSteps = 60;
constexpr uint32_t kSlots = 8;
constexpr uint64_t kDataBytes = 16 << 10;
constexpr int64_t kHostBytes = 20'000;

using v1::ShmOperation;

ServerOptions Options() {
  ServerOptions options;
  options.max_message_bytes = 4000;
  options.serving_threads = 1;
  return options;
}

class Caller {
 public:
  Caller(World* world, FuzzedDataProvider* input)
      : input_(*input),
        state_(&world->core, &world->metrics, Options(), {}, world->identities.get()) {
    TheFakeCore().SetHost(kHostBytes);
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    TheFakeCore().takes_work = true;
    absl::StatusOr<ShmMapping> mapping = ShmMapping::Create(kSlots, kDataBytes);
    FUZZ_CHECK(mapping.ok());
    auto context = std::make_shared<RequestContext>();
    context->caller = "ada";
    context->tenant = *state_.core->tenants().Get("ada");
    // Without a socket: who is woken looks all the same.
    session_ = std::make_shared<ShmSession>(&state_, std::move(context), *std::move(mapping),
                                            Reservation(), FileDescriptor(), nullptr);
  }

  void Run() {
    for (int i = 0; i < kSteps && input_.remaining_bytes() > 0; ++i) {
      Step();
      CheckWork();
    }
    if (input_.ConsumeBool()) AnswerAll();
    // Its caller has gone: what waits is cancelled, and what is posted still runs.
    session_->End("");
    Finish();
    FUZZ_CHECK(!session_->Take(1, false));
    FUZZ_CHECK(session_.use_count() == 1);
    session_.reset();
    FUZZ_CHECK(state_.core->host().reserved() == 0);
    FUZZ_CHECK(state_.tracker.WaitUntilIdle(absl::ZeroDuration()));
  }

 private:
  const ShmMapping& mapping() const { return session_->mapping(); }
  std::byte* at(uint64_t offset) const {
    return reinterpret_cast<std::byte*>(&mapping().header()) + offset;
  }

  void Finish() {
    while (!ThePosted().empty() || !TheFakeCore().works.empty() || !TheFakeCore().solves.empty()) {
      CheckWork();
      ThePosted().RunFirst();
      AnswerOne(absl::OkStatus());
    }
  }

  // A caller that has kept the rules has as many replies as requests.
  void AnswerAll() {
    const std::atomic<uint64_t>& replies = mapping().header().replies_end;
    TheFakeCore().next = FakeCore::Next::kAsksOn;
    for (uint64_t i = 0; i <= kSteps; ++i) {
      if (keeps_rules_) mapping().header().replies_taken.store(replies.load());
      Take(static_cast<int>(kSlots));
      Finish();
    }
    FUZZ_CHECK(!keeps_rules_ || session_->ended() || replies.load() == asked_);
  }

  void Step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 11)) {
      case 0:
      case 1:
      case 2:
        return Ask();
      case 3:
      case 4:
        return Take(input_.ConsumeIntegralInRange<int>(1, kSlots));
      case 5:
        return ThePosted().RunFirst();
      case 6:
        return AnswerOne(input_.ConsumeBool() ? absl::OkStatus() : absl::InternalError("fell off"));
      case 7:
        TheFakeCore().next = static_cast<FakeCore::Next>(input_.ConsumeIntegralInRange<int>(0, 4));
        return;
      case 8:
        return Scribble();
      case 9: {
        // As it should be, mostly: all that were sent are taken.
        uint64_t taken = mapping().header().replies_end.load();
        if (input_.ConsumeIntegralInRange<int>(0, 15) == 0) {
          taken = input_.ConsumeIntegral<uint64_t>();
          keeps_rules_ = false;
        }
        mapping().header().replies_taken.store(taken);
        return;
      }
      case 10:
        if (session_->FallAsleep()) Take(1);
        session_->WakeUp();
        return;
      case 11:
        switch (input_.ConsumeIntegralInRange<int>(0, 15)) {
          case 0:
            return session_->ReadSocket();
          case 1:
            return state_.tracker.StartDrain();
          case 2:
            return session_->CancelAll();
          case 3:
            keeps_rules_ = false;
            mapping().header().requests_end.store(input_.ConsumeIntegral<uint64_t>());
            return;
          default:
            return;
        }
    }
  }

  void Take(int most) { session_->Take(most, true); }

  void AnswerOne(const absl::Status& status) {
    FakeCore& core = TheFakeCore();
    if (!core.works.empty()) return core.AnswerWork(0, status);
    if (!core.solves.empty()) core.AnswerSolve(0, status);
  }

  // Bytes of any kind anywhere, or a bit of what was asked last.
  void Scribble() {
    keeps_rules_ = false;
    if (input_.ConsumeBool()) {
      const auto bit = input_.ConsumeIntegralInRange<uint64_t>(0, mapping().bytes() * 8 - 1);
      *at(bit / 8) ^= std::byte{1} << (bit % 8);
      return;
    }
    const std::string bytes = input_.ConsumeRandomLengthString(64);
    const auto offset = input_.ConsumeIntegralInRange<uint64_t>(0, mapping().bytes() - 64);
    std::memcpy(at(offset), bytes.data(), bytes.size());
  }

  // -------------------------------------------------------------------------------------------------
  // Requests that are right, but for a field

  uint64_t Offset() {
    const uint64_t data = mapping().data_offset();
    return data + kDataBytes / 64 * input_.ConsumeIntegralInRange<uint64_t>(0, 63);
  }
  uint64_t Odd() {
    switch (input_.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        return input_.ConsumeIntegral<uint64_t>();
      case 1:
        return mapping().bytes() - input_.ConsumeIntegral<uint8_t>();
      case 2:
        return uint64_t{0} - input_.ConsumeIntegral<uint8_t>();
      default:
        return input_.ConsumeIntegral<uint8_t>();
    }
  }

  v1::SystemSpec Spec() {
    v1::SystemSpec spec;
    spec.set_num_blocks(input_.ConsumeIntegralInRange<int>(0, 4));
    spec.set_block_size(input_.ConsumeIntegralInRange<int>(0, 3));
    const uint8_t forms = input_.ConsumeIntegral<uint8_t>();
    spec.set_scalar((forms & 1) != 0 ? v1::FLOAT32 : v1::FLOAT64);
    spec.set_diagonal_form((forms & 2) != 0 ? v1::PACKED_LOWER : v1::FULL);
    spec.set_coupling_form((forms & 4) != 0 ? v1::SUPERDIAGONAL : v1::SUBDIAGONAL);
    if ((forms & 0x18) == 0x18) {
      v1::Palette& palette = *spec.mutable_palette();
      palette.set_num_diagonal(1);
      palette.set_num_coupling(spec.num_blocks() > 1 ? 1 : 0);
      const auto index = static_cast<uint32_t>(forms >> 5);
      for (int i = 0; i < spec.num_blocks(); ++i) palette.add_diagonal_index(i == 1 ? index : 0);
      for (int i = 1; i < spec.num_blocks(); ++i) palette.add_coupling_index(0);
    }
    return spec;
  }
  // Bytes of the blocks of a small system; 0 where there is none.
  static std::pair<uint64_t, uint64_t> BytesOf(const v1::SystemSpec& spec) {
    const auto n = static_cast<uint64_t>(spec.block_size());
    const auto blocks = static_cast<uint64_t>(spec.num_blocks());
    const uint64_t scalar = spec.scalar() == v1::FLOAT32 ? 4 : 8;
    const bool palette = spec.has_palette();
    const uint64_t each = spec.diagonal_form() == v1::FULL ? n * n : n * (n + 1) / 2;
    const uint64_t couplings = blocks > 0 ? blocks - 1 : 0;
    return {scalar * each * (palette ? 1 : blocks),
            scalar * n * n * (palette ? std::min<uint64_t>(1, couplings) : couplings)};
  }

  std::string HandleBytes() {
    const uint8_t which = input_.ConsumeIntegralInRange<uint8_t>(0, 3);
    return std::string(FakeCore::HandleOf(which).view());
  }

  void PutMessage(const google::protobuf::MessageLite& message, v1::ShmRequest& request) {
    std::string bytes = message.SerializeAsString();
    if (input_.ConsumeIntegralInRange<int>(0, 15) == 0)
      bytes = input_.ConsumeRandomLengthString(64);
    request.message_offset = Offset();
    request.message_bytes = bytes.size();
    const uint64_t room = mapping().bytes() - request.message_offset;
    std::memcpy(at(request.message_offset), bytes.data(), std::min<uint64_t>(room, bytes.size()));
  }

  template <typename Descriptor>
  void PutDescriptors(uint64_t count, v1::ShmRequest& request, Descriptor descriptor) {
    request.num_rhs = static_cast<int64_t>(count);
    request.rhs_offset = Offset();
    for (uint64_t i = 0; i < count; ++i) {
      auto one = descriptor();
      if (input_.ConsumeIntegralInRange<int>(0, 15) == 0) {
        const auto word = input_.ConsumeIntegralInRange<size_t>(0, sizeof(one) / 8 - 1);
        const uint64_t odd = Odd();
        std::memcpy(reinterpret_cast<char*>(&one) + word * 8, &odd, sizeof(odd));
      }
      const uint64_t to = request.rhs_offset + i * sizeof(one);
      if (to + sizeof(one) <= mapping().bytes()) std::memcpy(at(to), &one, sizeof(one));
    }
  }

  v1::ShmFactorSolve Describe(const v1::SystemSpec& spec, int64_t columns) {
    const auto [diagonal, coupling] = BytesOf(spec);
    const uint64_t column = static_cast<uint64_t>(spec.num_blocks() * spec.block_size()) *
                            (spec.scalar() == v1::FLOAT32 ? 4 : 8);
    v1::ShmFactorSolve one{};
    one.diagonal_offset = Offset();
    one.diagonal_bytes = diagonal;
    one.coupling_offset = Offset();
    one.coupling_bytes = coupling;
    one.rhs_offset = Offset();
    one.solution_offset = input_.ConsumeBool() ? one.rhs_offset : Offset();
    one.bytes = column * static_cast<uint64_t>(columns);
    return one;
  }

  void FillFused(v1::ShmRequest& request) {
    const v1::SystemSpec spec = Spec();
    const int64_t columns = input_.ConsumeIntegralInRange<int>(0, 3);
    uint64_t systems = 1;
    const auto fill = [&](auto& message) {
      *message.mutable_spec() = spec;
      message.set_num_rhs(columns);
      message.set_accuracy(static_cast<v1::Accuracy>(input_.ConsumeIntegralInRange<int>(0, 3)));
      message.mutable_options()->set_priority(
          static_cast<v1::PriorityClass>(input_.ConsumeIntegralInRange<int>(0, 4)));
      if (input_.ConsumeIntegralInRange<int>(0, 15) == 0) message.set_rhs("x");
    };
    if (request.operation == ShmOperation::kFactorSolve) {
      v1::FactorSolveRequest message;
      fill(message);
      if (input_.ConsumeBool()) message.set_handle(HandleBytes());
      PutMessage(message, request);
    } else {
      v1::FactorSolveManyRequest message;
      fill(message);
      systems = input_.ConsumeIntegralInRange<uint64_t>(0, 4);
      for (uint64_t i = 0; i < systems; ++i) message.add_handle(HandleBytes());
      PutMessage(message, request);
    }
    PutDescriptors(systems, request,
                   [&] { return Describe(spec, std::max<int64_t>(columns, systems > 1)); });
  }

  void FillFactor(v1::ShmRequest& request) {
    v1::FactorStreamHeader header;
    *header.mutable_spec() = Spec();
    header.set_num_systems(input_.ConsumeIntegralInRange<int>(-1, 3));
    if (input_.ConsumeBool()) header.mutable_options()->add_handle(HandleBytes());
    PutMessage(header, request);
    const auto [diagonal, coupling] = BytesOf(header.spec());
    request.rhs_offset = Offset();
    request.bytes = (diagonal + coupling) * static_cast<uint64_t>(header.num_systems());
  }

  void Ask() {
    v1::ShmRequest request{};
    request.id = input_.ConsumeIntegralInRange<int>(0, 31) > 0 ? ++last_id_ : last_id_;
    request.operation = static_cast<ShmOperation>(input_.ConsumeIntegralInRange<int>(0, 8));
    const std::string handle = HandleBytes();
    std::memcpy(request.handle, handle.data(), sizeof(request.handle));
    request.flags = input_.ConsumeIntegralInRange<uint32_t>(0, 3);
    request.priority = input_.ConsumeIntegralInRange<int>(0, 4);
    request.reply_offset = Offset();
    request.reply_bytes = input_.ConsumeBool() ? 4096 + 4 * 128 : 0;
    request.other_id = last_id_ - input_.ConsumeIntegralInRange<uint64_t>(0, 3);
    request.num_rhs = input_.ConsumeIntegralInRange<int>(0, 3);
    request.rhs_offset = Offset();
    request.solution_offset = input_.ConsumeBool() ? request.rhs_offset : Offset();
    request.bytes = 8 * input_.ConsumeIntegralInRange<uint64_t>(0, 64);
    switch (request.operation) {
      case ShmOperation::kFactorSolve:
      case ShmOperation::kFactorSolveMany:
        FillFused(request);
        break;
      case ShmOperation::kFactor:
        FillFactor(request);
        break;
      case ShmOperation::kSolveMany:
        PutDescriptors(input_.ConsumeIntegralInRange<uint64_t>(0, 4), request, [&] {
          v1::ShmSolve one{};
          std::memcpy(one.handle, handle.data(), sizeof(one.handle));
          one.num_rhs = 1;
          one.rhs_offset = Offset();
          one.solution_offset = input_.ConsumeBool() ? one.rhs_offset : Offset();
          one.bytes = 8 * input_.ConsumeIntegralInRange<uint64_t>(0, 64);
          return one;
        });
        break;
      default:
        break;
    }
    if (input_.ConsumeIntegralInRange<int>(0, 7) == 0) {
      const auto word = input_.ConsumeIntegralInRange<size_t>(0, sizeof(request) / 8 - 1);
      const uint64_t odd = Odd();
      std::memcpy(reinterpret_cast<char*>(&request) + word * 8, &odd, sizeof(odd));
    }
    std::memcpy(&mapping().request(asked_++), &request, sizeof(request));
    mapping().header().requests_end.store(asked_);
  }

  // -------------------------------------------------------------------------------------------------
  // Checks of the work that the core was given

  void CheckLies(std::span<const std::byte> part) const {
    if (part.empty()) return;
    const std::byte* const begin = at(mapping().data_offset());
    const std::byte* const end = at(mapping().bytes());
    FUZZ_CHECK(part.data() >= begin && part.data() <= end &&
               part.size() <= static_cast<size_t>(end - part.data()));
  }
  void CheckWork() const {
    for (const FakeCore::PendingWork& work : TheFakeCore().works) {
      for (const auto part : work.reads) CheckLies(part);
      for (const auto part : work.writes) CheckLies(part);
    }
    for (const FakeCore::PendingSolve& solve : TheFakeCore().solves) {
      CheckLies(solve.params.rhs);
      CheckLies(solve.params.solution);
      for (const SolveManyParams::Columns& columns : solve.many.solves) {
        CheckLies(columns.rhs);
        CheckLies(columns.solution);
      }
    }
    FUZZ_CHECK(TheFakeCore().works.size() + TheFakeCore().solves.size() <= kSlots);
  }

  FuzzedDataProvider& input_;
  ServiceState state_;
  std::shared_ptr<ShmSession> session_;
  uint64_t asked_ = 0, last_id_ = 100;
  bool keeps_rules_ = true;  // of the rings
};

}  // namespace
}  // namespace blockd::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace blockd::server;
  static auto& world = *new World;
  FuzzedDataProvider input(data, size);
  Caller(&world, &input).Run();
  return 0;
}
