// A session of shared memory whose caller writes anything anywhere at any time: rings, slots,
// places, messages. The poller's steps, posted work and the core's answers come in any order. All
// pieces that the core is given lie in the session's data, each request is answered once at most,
// and nothing is held after the end.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

  // The request's message and places, each somewhere, and the room for its reply.
  void Put(const google::protobuf::MessageLite& message, std::vector<v1::ShmPlace> places,
           v1::ShmRequest& request) {
    std::string bytes = message.SerializeAsString();
    if (OnceIn(16)) bytes = input_.ConsumeRandomLengthString(64);
    request.message_offset = Offset();
    request.message_bytes = static_cast<uint32_t>(bytes.size());
    Write(request.message_offset, bytes.data(), bytes.size());
    for (v1::ShmPlace& place : places) {
      if (OnceIn(32)) (input_.ConsumeBool() ? place.offset : place.bytes) = Odd();
    }
    if (OnceIn(16)) places.resize(input_.ConsumeIntegralInRange<size_t>(0, 20));
    request.places_offset = Offset();
    request.num_places = static_cast<uint32_t>(places.size());
    Write(request.places_offset, places.data(), places.size() * sizeof(v1::ShmPlace));
    request.reply_offset = Offset();
    request.reply_bytes = OnceIn(4) ? 0 : static_cast<uint32_t>(v1::ShmReplyRoom(places.size()));
  }
  void Write(uint64_t offset, const void* bytes, size_t size) {
    const uint64_t room = mapping().bytes() - offset;
    if (size > 0) std::memcpy(at(offset), bytes, std::min<uint64_t>(room, size));
  }
  bool OnceIn(int times) { return input_.ConsumeIntegralInRange<int>(1, times) == times; }

  void AddColumns(uint64_t bytes, std::vector<v1::ShmPlace>& places) {
    const uint64_t rhs = Offset();
    places.push_back({rhs, bytes});
    places.push_back({input_.ConsumeBool() ? rhs : Offset(), bytes});
  }
  void AddMatrix(const v1::SystemSpec& spec, std::vector<v1::ShmPlace>& places) {
    const auto [diagonal, coupling] = BytesOf(spec);
    places.push_back({Offset(), diagonal});
    places.push_back({Offset(), coupling});
  }
  uint64_t Columns() { return 8 * input_.ConsumeIntegralInRange<uint64_t>(0, 64); }
  v1::SolveOptions SolveOptions() {
    v1::SolveOptions options;
    options.set_check_finite(input_.ConsumeBool());
    options.set_residual(input_.ConsumeBool());
    options.set_priority(static_cast<v1::PriorityClass>(input_.ConsumeIntegralInRange<int>(0, 4)));
    return options;
  }

  void FillSolve(v1::ShmRequest& request) {
    v1::SolveRequest message;
    message.set_handle(HandleBytes());
    message.set_num_rhs(input_.ConsumeIntegralInRange<int>(0, 3));
    *message.mutable_options() = SolveOptions();
    if (OnceIn(16)) message.set_rhs("x");
    std::vector<v1::ShmPlace> places;
    AddColumns(Columns(), places);
    Put(message, places, request);
  }
  void FillMany(v1::ShmRequest& request) {
    v1::SolveManyRequest message;
    *message.mutable_options() = SolveOptions();
    std::vector<v1::ShmPlace> places;
    const auto solves = input_.ConsumeIntegralInRange<uint32_t>(0, 4);
    for (uint32_t i = 0; i < solves; ++i) {
      *message.mutable_handles() += HandleBytes();
      if (OnceIn(8)) message.add_num_rhs(1);
      AddColumns(Columns(), places);
    }
    if (OnceIn(8)) message.mutable_handles()->push_back('h');
    if (OnceIn(16)) message.add_rhs_bytes(8);
    Put(message, places, request);
  }
  void FillFused(v1::ShmRequest& request) {
    const v1::SystemSpec spec = Spec();
    const int64_t columns = input_.ConsumeIntegralInRange<int>(0, 3);
    const uint64_t bytes = static_cast<uint64_t>(spec.num_blocks() * spec.block_size()) *
                           (spec.scalar() == v1::FLOAT32 ? 4 : 8) *
                           static_cast<uint64_t>(std::max<int64_t>(columns, 1));
    std::vector<v1::ShmPlace> places;
    const auto fill = [&](auto& message, uint64_t systems) {
      *message.mutable_spec() = spec;
      message.set_num_rhs(columns);
      message.set_accuracy(static_cast<v1::Accuracy>(input_.ConsumeIntegralInRange<int>(0, 3)));
      *message.mutable_options() = SolveOptions();
      if (OnceIn(16)) message.set_rhs("x");
      for (uint64_t i = 0; i < systems; ++i) {
        AddMatrix(spec, places);
        AddColumns(bytes, places);
      }
      Put(message, places, request);
    };
    if (request.operation == ShmOperation::kFactorSolve) {
      v1::FactorSolveRequest message;
      if (input_.ConsumeBool()) message.set_handle(HandleBytes());
      return fill(message, 1);
    }
    v1::FactorSolveManyRequest message;
    const auto systems = input_.ConsumeIntegralInRange<uint64_t>(0, 4);
    for (uint64_t i = 0; i < systems; ++i) message.add_handle(HandleBytes());
    fill(message, systems);
  }
  void FillFactor(v1::ShmRequest& request) {
    v1::FactorRequest message;
    *message.mutable_spec() = Spec();
    if (input_.ConsumeBool()) message.mutable_options()->add_handle(HandleBytes());
    message.mutable_options()->set_check_finite(input_.ConsumeBool());
    if (OnceIn(16)) message.add_system();
    std::vector<v1::ShmPlace> places;
    const auto systems = input_.ConsumeIntegralInRange<int>(0, 3);
    for (int i = 0; i < systems; ++i) AddMatrix(message.spec(), places);
    Put(message, places, request);
  }
  void FillRelease(v1::ShmRequest& request) {
    v1::ReleaseRequest message;
    const auto handles = input_.ConsumeIntegralInRange<int>(0, 3);
    for (int i = 0; i < handles; ++i) message.add_handle(HandleBytes());
    Put(message, {}, request);
  }

  void Ask() {
    v1::ShmRequest request{};
    request.id = input_.ConsumeIntegralInRange<int>(0, 31) > 0 ? ++last_id_ : last_id_;
    request.operation = static_cast<ShmOperation>(input_.ConsumeIntegralInRange<int>(0, 8));
    request.other_id = last_id_ - input_.ConsumeIntegralInRange<uint64_t>(0, 3);
    switch (request.operation) {
      case ShmOperation::kFactorSolve:
      case ShmOperation::kFactorSolveMany:
        FillFused(request);
        break;
      case ShmOperation::kFactor:
        FillFactor(request);
        break;
      case ShmOperation::kSolveMany:
        FillMany(request);
        break;
      case ShmOperation::kRelease:
        FillRelease(request);
        break;
      case ShmOperation::kCancel:
        break;
      default:
        FillSolve(request);
        break;
    }
    if (OnceIn(8)) {
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
