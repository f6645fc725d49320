// Calls, from their messages to a core on the CPU and back, several after one another. Each is
// answered once; what a good matrix is solved for is a solution; what comes in chunks has as many
// bytes as its head says; and when all is released nothing is held.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzed_caller.h"

namespace blockd::server {
namespace {

constexpr int kCalls = 6;
constexpr const char* kMethods[] = {
    "Factor",           "Solve",
    "FactorSolve",      "Release",
    "GetFactorization", "ListFactorizations",
    "GetServerInfo",    "GetPlan",
    "SolveMany",        "FactorSolveMany",
    "SelectedInverse",  "Sample",
    "Smooth",           "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"};

// A factorization that a Factor has made, as far as the client can know.
struct Held {
  std::string handle;
  int64_t rows = 0, scalar_bytes = 8;
};

// The scalars, each NaN the same one: IEEE 754 leaves its sign to the processor.
template <typename T>
std::string WithOneNaN(std::string bytes) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    if (std::isnan(value)) std::memcpy(bytes.data() + at, &nan, sizeof(T));
  }
  return bytes;
}
std::string WithOneNaN(const std::string& bytes, int64_t scalar_bytes) {
  return scalar_bytes == sizeof(float) ? WithOneNaN<float>(bytes) : WithOneNaN<double>(bytes);
}

class Client {
 public:
  Client(World* world, FuzzedDataProvider* input) : input_(*input), caller_(world) {}

  void Run() {
    for (int i = 0; i < kCalls && input_.remaining_bytes() > 0; ++i) CallOnce();
    caller_.End();
  }

 private:
  void CallOnce() {
    switch (input_.ConsumeIntegralInRange<int>(0, 10)) {
      case 0:
      case 1:
        return Factor();
      case 2:
      case 3:
        return Solve();
      case 4:
        return FactorSolve();
      case 5: {
        v1::ReleaseRequest request;
        request.add_handle(AHandle());
        if (input_.ConsumeBool()) request.add_handle(AHandle());
        v1::ReleaseReply reply;
        caller_.Ask("Release", request, &reply);
        return;
      }
      case 6: {
        v1::GetPlanRequest request;
        *request.mutable_spec() = Spec();
        request.set_num_systems(input_.ConsumeIntegral<int8_t>());
        request.set_num_rhs(input_.ConsumeIntegral<int8_t>());
        v1::Plan reply;
        caller_.Ask("GetPlan", request, &reply);
        return;
      }
      case 7: {
        v1::ListFactorizationsRequest request;
        request.set_page_size(input_.ConsumeIntegralInRange<int>(-1, 2));
        request.set_page_token(AHandle());
        v1::ListFactorizationsReply reply;
        caller_.Ask("ListFactorizations", request, &reply);
        return;
      }
      case 8: {
        const char* const method = input_.PickValueInArray(kMethods);
        std::vector<grpc::ByteBuffer> answers;
        caller_.AskAll(method, {input_.ConsumeRandomLengthString(200)}, &answers);
        return;
      }
      case 9:
        return SelectedInverse();
      case 10:
        return Sample();
    }
  }

  std::string AHandle() {
    const uint8_t which = input_.ConsumeIntegral<uint8_t>();
    if (held_.empty() || which > 240) return input_.ConsumeRandomLengthString(Handle::kBytes);
    return held_[which % held_.size()].handle;
  }

  v1::SystemSpec Spec() {
    v1::SystemSpec spec;
    const uint8_t forms = input_.ConsumeIntegral<uint8_t>();
    spec.set_num_blocks(input_.ConsumeIntegralInRange<int>(forms > 250 ? -1 : 1, 6));
    spec.set_block_size(input_.ConsumeIntegralInRange<int>(forms > 250 ? -1 : 1, 5));
    if (forms == 255) spec.set_num_blocks(input_.ConsumeIntegral<int64_t>());
    spec.set_arrow_size(forms == 253 ? input_.ConsumeIntegral<int64_t>() : forms >> 5 & 3);
    spec.set_scalar(forms & 1 ? v1::FLOAT32 : v1::FLOAT64);
    spec.set_diagonal_form(forms & 2 ? v1::PACKED_LOWER : v1::FULL);
    spec.set_coupling_form(forms & 4 ? v1::SUPERDIAGONAL : v1::SUBDIAGONAL);
    if ((forms & 0x18) == 0x18) {
      spec.mutable_palette()->set_num_diagonal(1);
      spec.mutable_palette()->set_num_coupling(spec.num_blocks() > 1 ? 1 : 0);
      for (int i = 0; i < std::min<int64_t>(9, spec.num_blocks()); ++i) {
        spec.mutable_palette()->add_diagonal_index(forms == 254 ? i : 0);
        if (i > 0) spec.mutable_palette()->add_coupling_index(0);
      }
    }
    return spec;
  }

  // So many scalars: `value` each, but `at_step` at each `step`; or what comes.
  std::string Scalars(const v1::SystemSpec& spec, int64_t count, double value, int64_t step,
                      double at_step) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const double number = step > 0 && i % step == 0 ? at_step : value;
      const auto small = static_cast<float>(number);
      const bool is_small = spec.scalar() == v1::FLOAT32;
      bytes.append(
          is_small ? reinterpret_cast<const char*>(&small) : reinterpret_cast<const char*>(&number),
          is_small ? sizeof(small) : sizeof(number));
    }
    return bytes;
  }

  // Diagonal blocks and a corner of 8 I, or what the input has; couplings of 0.25, a border of
  // 0.125. True if it is a good one.
  bool Fill(const v1::SystemSpec& spec, v1::SystemData* data) {
    const int64_t n = spec.block_size();
    if (n < 1 || n > 5 || spec.num_blocks() < 1 || spec.num_blocks() > 6) return false;
    const bool palette = spec.has_palette();
    const int64_t diagonals = palette ? spec.palette().num_diagonal() : spec.num_blocks();
    const int64_t couplings = palette ? spec.palette().num_coupling() : spec.num_blocks() - 1;
    const uint8_t how = input_.ConsumeIntegral<uint8_t>();
    for (int64_t b = 0; b < diagonals; ++b) {
      if (spec.diagonal_form() == v1::FULL) {
        *data->mutable_diagonal() += Scalars(spec, n * n, 0, n + 1, 8);
      } else {
        for (int64_t c = n; c > 0; --c) *data->mutable_diagonal() += Scalars(spec, c, 0, c, 8);
      }
    }
    *data->mutable_coupling() = Scalars(spec, couplings * n * n, 0.25, 0, 0);
    const int64_t p = spec.arrow_size();
    if (p < 0 || p > 3) return false;
    *data->mutable_border() = Scalars(spec, p * n * spec.num_blocks(), 0.125, 0, 0);
    *data->mutable_corner() = Scalars(spec, p * p, 0, p + 1, 8);
    if (how < 200) return true;
    std::string& spoiled = how < 218   ? *data->mutable_diagonal()
                           : how < 236 ? *data->mutable_coupling()
                           : how < 246 ? *data->mutable_border()
                                       : *data->mutable_corner();
    if (how % 2 == 0)
      spoiled.resize(spoiled.size() - std::min<size_t>(1 + how % 13, spoiled.size()));
    const std::string other = input_.ConsumeRandomLengthString(16);
    if (other.size() <= spoiled.size()) spoiled.replace(0, other.size(), other);
    return false;
  }

  void FillOptions(v1::FactorOptions* options) {
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    options->set_overwrite((flags & 1) != 0);
    options->set_keep_matrix((flags & 2) != 0);
    options->set_check_finite((flags & 4) != 0);
    options->set_pin((flags & 8) != 0);
    options->set_log_determinant((flags & 16) != 0);
    options->set_condition_estimate((flags & 32) != 0);
    if ((flags & 64) != 0) options->set_idempotency_key(std::string(1, 'a' + (flags & 3)));
    if ((flags & 128) == 0) return;
    const uint8_t more = input_.ConsumeIntegral<uint8_t>();
    if ((more & 1) != 0) options->add_handle(AHandle());
    if ((more & 2) != 0) options->mutable_lease()->set_seconds(more);
    options->set_accuracy(static_cast<v1::Accuracy>(more >> 2 & 3));
    options->set_priority(static_cast<v1::PriorityClass>(more >> 4 & 7));
  }

  void Factor() {
    v1::FactorRequest request;
    *request.mutable_spec() = Spec();
    const int systems = input_.ConsumeIntegralInRange<int>(1, 4);
    for (int k = 0; k < systems; ++k) Fill(request.spec(), request.add_system());
    FillOptions(request.mutable_options());
    v1::FactorReply reply;
    if (!caller_.Ask("Factor", request, &reply)) return;
    FUZZ_CHECK(reply.system_size() == systems);
    for (const v1::FactoredSystem& system : reply.system()) {
      FUZZ_CHECK(system.handle().empty() == system.has_status());
      if (system.has_status()) continue;
      FUZZ_CHECK(system.handle().size() == Handle::kBytes);
      held_.push_back(
          {system.handle(),
           request.spec().num_blocks() * request.spec().block_size() + request.spec().arrow_size(),
           request.spec().scalar() == v1::FLOAT32 ? 4 : 8});
    }
  }

  void FillSolve(v1::SolveOptions* options) {
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    options->set_residual((flags & 1) != 0);
    options->set_check_finite((flags & 2) != 0);
    options->set_max_refinements(static_cast<int8_t>(flags) >> 4);
    options->set_priority(static_cast<v1::PriorityClass>(flags >> 2 & 3));
  }

  void Solve() {
    v1::SolveRequest request;
    const std::string handle = AHandle();
    request.set_handle(handle);
    const int64_t columns = input_.ConsumeIntegralInRange<int>(0, 17);
    request.set_num_rhs(columns);
    const auto held =
        std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.handle == handle; });
    int64_t scalar_bytes = 8;
    if (held != held_.end()) {
      scalar_bytes = held->scalar_bytes;
      request.set_rhs(std::string(held->rows * scalar_bytes * columns, '\0'));
      const std::string begin = input_.ConsumeRandomLengthString(24);
      if (begin.size() <= request.rhs().size()) {
        request.mutable_rhs()->replace(0, begin.size(), begin);
      }
    } else {
      request.set_rhs(input_.ConsumeRandomLengthString(24));
    }
    FillSolve(request.mutable_options());
    v1::SolveReply reply;
    const bool solved = caller_.Ask("Solve", request, &reply);
    if (solved) FUZZ_CHECK(reply.solution().size() == request.rhs().size());
    // Twice in one message: the same bits.
    v1::SolveManyRequest many;
    for (int i = 0; i < 2; ++i) {
      *many.mutable_handles() += handle;
      many.add_num_rhs(static_cast<uint32_t>(columns));
      *many.mutable_rhs() += request.rhs();
    }
    *many.mutable_options() = request.options();
    v1::SolveManyReply replies;
    if (!caller_.Ask("SolveMany", many, &replies)) return;
    FUZZ_CHECK(replies.solution().size() == many.rhs().size());
    FUZZ_CHECK(replies.backward_error_bound_size() == 2);
    if (!solved) return;
    for (const v1::SolveFailure& failure : replies.failure()) {
      FUZZ_CHECK(failure.status().code() != 0 && failure.solve() < 2);
    }
    if (replies.failure_size() == 0) {
      FUZZ_CHECK(WithOneNaN(replies.solution(), scalar_bytes) ==
                 WithOneNaN(reply.solution() + reply.solution(), scalar_bytes));
    }
  }

  void FactorSolve() {
    v1::FactorSolveRequest request;
    *request.mutable_spec() = Spec();
    const bool good = Fill(request.spec(), request.mutable_system());
    const int64_t columns = input_.ConsumeIntegralInRange<int>(0, 4);
    request.set_num_rhs(columns);
    const int64_t blocks = request.spec().num_blocks(), size = request.spec().block_size();
    const int64_t p = request.spec().arrow_size();
    const int64_t rows = blocks > 0 && blocks < 10 && p >= 0 && p < 4 ? blocks * size + p : 0;
    if (rows > 0) request.set_rhs(Scalars(request.spec(), rows * columns, 1, 0, 0));
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    request.set_check_finite((flags & 1) != 0);
    request.set_log_determinant((flags & 2) != 0);
    request.set_accuracy(static_cast<v1::Accuracy>(flags >> 2 & 3));
    if ((flags & 16) != 0) request.set_handle(AHandle());
    request.set_overwrite((flags & 32) != 0);
    request.set_keep_matrix((flags & 64) != 0);
    FillSolve(request.mutable_options());
    v1::FactorSolveReply reply;
    const bool solved = caller_.Ask("FactorSolve", request, &reply);
    if (solved) FUZZ_CHECK(reply.solution().size() == request.rhs().size());
    if (!request.handle().empty()) FactorSolveMany(request, solved ? &reply : nullptr);
    if (!solved) return;
    if (!good || request.spec().scalar() == v1::FLOAT32) return;
    for (size_t at = 0; at < reply.solution().size(); at += sizeof(double)) {
      double x = 0;
      std::memcpy(&x, reply.solution().data() + at, sizeof(x));
      FUZZ_CHECK(std::abs(x) < 1);  // since the matrix is dominated by its diagonal of 8
    }
  }

  // The same as a message of many, with one of them: the same bits, unless it failed.
  void FactorSolveMany(const v1::FactorSolveRequest& one, const v1::FactorSolveReply* reply) {
    v1::FactorSolveManyRequest many;
    *many.mutable_spec() = one.spec();
    many.add_handle(one.handle());
    many.set_matrix(one.system().diagonal() + one.system().coupling() + one.system().border() +
                    one.system().corner());
    many.set_rhs(one.rhs());
    many.set_num_rhs(one.num_rhs());
    *many.mutable_options() = one.options();
    many.set_check_finite(one.check_finite());
    many.set_accuracy(one.accuracy());
    many.set_overwrite(one.overwrite());
    many.set_keep_matrix(one.keep_matrix());
    v1::SolveManyReply replies;
    if (!caller_.Ask("FactorSolveMany", many, &replies)) return;
    FUZZ_CHECK(replies.solution().size() == many.rhs().size());
    FUZZ_CHECK(replies.backward_error_bound_size() == 1 && replies.growth_size() == 1);
    for (const v1::SolveFailure& failure : replies.failure()) {
      FUZZ_CHECK(failure.status().code() != 0 && failure.solve() == 0);
    }
    if (reply != nullptr && replies.failure_size() == 0) {
      FUZZ_CHECK(replies.solution() == reply->solution());
    }
  }

  void SelectedInverse() {
    v1::SelectedInverseRequest request;
    request.set_handle(AHandle());
    request.set_parts(static_cast<v1::InverseParts>(input_.ConsumeIntegralInRange<int>(0, 4)));
    request.set_first_block(input_.ConsumeIntegralInRange<int>(-1, 6));
    request.set_num_blocks(input_.ConsumeIntegralInRange<int>(-1, 6));
    request.set_border(input_.ConsumeBool());
    v1::SelectedInverseReply reply;
    int64_t bytes = 0;
    if (!caller_.AskChunked("SelectedInverse", {request.SerializeAsString()}, &reply, &bytes))
      return;
    const v1::SelectedInverseHead& head = reply.head();
    FUZZ_CHECK(bytes == head.diagonal_bytes() + head.coupling_bytes() + head.border_bytes() +
                            head.corner_bytes());
  }

  void Sample() {
    v1::SampleRequest request;
    request.set_handle(AHandle());
    request.set_seed(input_.ConsumeIntegral<uint64_t>());
    request.set_first_sample(input_.ConsumeIntegral<uint64_t>());
    request.set_num_samples(input_.ConsumeIntegralInRange<int>(-1, 17));
    v1::SampleReply reply;
    int64_t bytes = 0;
    if (!caller_.AskChunked("Sample", {request.SerializeAsString()}, &reply, &bytes)) return;
    FUZZ_CHECK(bytes == reply.head().samples_bytes());
  }

  FuzzedDataProvider& input_;
  FuzzedCaller caller_;
  std::vector<Held> held_;
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
