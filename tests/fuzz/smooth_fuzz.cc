// Smooth, from its messages to a core on the CPU and back, twice: models of every form, good ones
// and such as are none. What comes in chunks has as many bytes as its head says; and when all is
// released nothing is held.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzed_caller.h"

namespace blockd::server {
namespace {

class Client {
 public:
  Client(World* world, FuzzedDataProvider* input) : input_(*input), caller_(world) {}

  void Run() {
    for (int i = 0; i < 2 && input_.remaining_bytes() > 0; ++i) Call();
    caller_.End();
  }

 private:
  // So many numbers: `value` each, but `at_step` at each `step`.
  static std::string Doubles(int64_t count, double value, int64_t step, double at_step) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const double number = step > 0 && i % step == 0 ? at_step : value;
      bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    return bytes;
  }

  v1::ModelArray AnArray() {
    return static_cast<v1::ModelArray>(input_.ConsumeIntegralInRange<int>(0, 3));
  }

  // A header and what it announces, or a little less or more: numbers that make most models good,
  // with some of the input's among them.
  void Call() {
    v1::SmoothRequest first;
    v1::SmoothHeader& header = *first.mutable_header();
    const uint8_t flags = input_.ConsumeIntegral<uint8_t>();
    header.set_num_steps(flags == 255 ? input_.ConsumeIntegral<int64_t>()
                                      : input_.ConsumeIntegralInRange<int>(0, 5));
    header.set_state_size(flags == 254 ? input_.ConsumeIntegral<int64_t>()
                                       : input_.ConsumeIntegralInRange<int>(0, 3));
    header.set_observation_size(input_.ConsumeIntegralInRange<int>(0, 3));
    header.set_num_series(input_.ConsumeIntegralInRange<int>(0, 3));
    header.set_diffuse((flags & 1) != 0);
    header.set_diffuse_columns(input_.ConsumeIntegralInRange<int>(-1, 3));
    const v1::ModelArray forms[] = {AnArray(), AnArray(), AnArray(),
                                    AnArray(), AnArray(), AnArray()};
    header.set_transition(forms[0]);
    header.set_transition_covariance(forms[1]);
    header.set_observation(forms[2]);
    header.set_observation_covariance(forms[3]);
    header.set_transition_offset(forms[4]);
    header.set_observation_offset(forms[5]);
    v1::SmoothOptions& options = *header.mutable_options();
    options.set_covariances(static_cast<v1::SmoothedCovariances>(flags >> 1 & 3));
    options.set_lag_one_covariances((flags & 8) != 0);
    options.set_log_likelihood((flags & 16) != 0);
    options.set_residuals((flags & 32) != 0);
    options.set_keep((flags & 64) != 0);
    options.set_num_samples(input_.ConsumeIntegralInRange<int>(-1, 3));
    std::string values;
    if (flags < 254) {
      const int64_t steps = header.num_steps(), n = header.state_size(),
                    ny = header.observation_size();
      const auto add = [&](v1::ModelArray form, int64_t count, int64_t numbers, int64_t step) {
        if (form == v1::CONSTANT) count = std::min<int64_t>(count, 1);
        if (form == v1::CONSTANT || form == v1::PER_STEP) {
          values += Doubles(std::max<int64_t>(0, count) * numbers, 0.125, step, 2);
        }
      };
      const int64_t transitions = steps - 1;
      add(forms[0], transitions, n * n, n + 1);
      add(forms[1], transitions, n * n, n + 1);
      add(forms[2], steps, ny * n, 0);
      add(forms[3], steps, ny * ny, ny + 1);
      add(forms[4], transitions, n, 0);
      add(forms[5], steps, ny, 0);
      if (!header.diffuse()) {
        values += Doubles(n, 0.125, 0, 0) + Doubles(n * n, 0.125, n + 1, 2) +
                  Doubles(n * std::max<int64_t>(0, header.diffuse_columns()), 0, n + 1, 1);
      }
      values += Doubles(ny * steps * std::max<int64_t>(1, header.num_series()), 1, 0, 0);
    }
    const std::string other = input_.ConsumeRandomLengthString(24);
    if (!other.empty() && other.size() <= values.size()) {
      const size_t at = static_cast<uint8_t>(other[0]) % (values.size() - other.size() + 1);
      values.replace(at, other.size(), other);
    }
    std::vector<std::string> messages(1);
    const size_t piece = input_.ConsumeIntegralInRange<size_t>(1, 500);
    for (size_t at = 0; at < values.size(); at += piece) {
      v1::SmoothRequest chunk;
      chunk.set_chunk(values.substr(at, piece));
      messages.push_back(chunk.SerializeAsString());
    }
    const bool is_short = input_.ConsumeIntegralInRange<int>(0, 15) == 0;
    const auto outputs = input_.ConsumeIntegral<uint16_t>();  // some of 12, and what is none
    for (int i = 0; i < 14; ++i) {
      if ((outputs >> i & 1) != 0) options.add_output(static_cast<v1::SmoothOutput>(i));
    }
    messages[0] = first.SerializeAsString();
    if (is_short) messages.pop_back();
    v1::SmoothReply reply;
    int64_t bytes = 0;
    if (!caller_.AskChunked("Smooth", messages, &reply, &bytes)) return;
    const v1::SmoothHead& head = reply.head();
    int64_t said = head.means_bytes() + head.covariances_bytes() + head.lag_one_bytes() +
                   head.residuals_bytes() + head.samples_bytes();
    for (const int64_t output : head.output_bytes()) said += output;
    FUZZ_CHECK(bytes == said && head.output_bytes_size() == options.output_size());
    const int64_t series = std::max<int64_t>(1, header.num_series());
    FUZZ_CHECK(head.means_bytes() == 8 * header.num_steps() * header.state_size() * series);
    FUZZ_CHECK(head.system_of_series_size() == series && head.observed_size() == series);
    FUZZ_CHECK(head.handle_size() == (options.keep() ? head.num_systems() : 0));
    FUZZ_CHECK(head.system_size() == head.num_systems());
  }

  FuzzedDataProvider& input_;
  FuzzedCaller caller_;
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
