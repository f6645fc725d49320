// The processor time that the server takes to read a message, for the worst of each method's
// messages that this program can think of: every field of every type within it, and fields that it
// does not know, over and over, alone, in groups and in parts that take each other back.
//
//   parse_bench [--bytes=N] [--json=FILE --commit=NAME] [--quick]
//
// A row names a method, its worst message and the seconds of a processor that reading it takes, for
// a megabyte. Nothing but the transport's reading is measured: no gRPC, no core.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "blockd/v1/admin.pb.h"
#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/wire_format.h"
#include "server/base/clock.h"
#include "server/core/common/metrics.h"
#include "server/transport/rpc/call.h"
#include "server/transport/stream/stream_request.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/split_message.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/support/backends.h"
#include "tests/support/byte_buffers.h"

ABSL_FLAG(int64_t, bytes, 1'000'000, "The length of each message.");

namespace blockd::bench {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

// ------------------------------------------------------------------------------ the messages

struct Shape {
  std::string name;
  std::string bytes;
};
// Bytes that fill a message, over and over.
struct Filling {
  std::string name;
  std::string bytes;
};

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}
std::string Tag(int field, WireFormatLite::WireType type) {
  std::string tag;
  AppendVarint(WireFormatLite::MakeTag(field, type), &tag);
  return tag;
}
std::string Delimited(int field, const std::string& content) {
  std::string bytes = Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  AppendVarint(content.size(), &bytes);
  return bytes + content;
}
std::string Repeat(const std::string& bytes, size_t length) {
  std::string all;
  all.reserve(length);
  while (all.size() + bytes.size() <= length) all += bytes;
  return all;
}
std::string Nested(const std::string& before, const std::string& after, int depth) {
  std::string all;
  for (int i = 0; i < depth; ++i) all += before;
  for (int i = 0; i < depth; ++i) all += after;
  return all;
}

const std::string kLong(16, '\0');  // no string holds it without a piece of the heap

std::vector<Filling> Unknown(const Descriptor& type) {
  int field = 1;
  while (type.FindFieldByNumber(field) != nullptr) ++field;
  const auto tag = [&](WireFormatLite::WireType wire_type) { return Tag(field, wire_type); };
  const std::string begin = tag(WireFormatLite::WIRETYPE_START_GROUP);
  const std::string end = tag(WireFormatLite::WIRETYPE_END_GROUP);
  const std::string varint = tag(WireFormatLite::WIRETYPE_VARINT) + std::string(1, '\0');
  return {{"unknown varints", varint},
          {"unknown varints of 10 bytes",
           tag(WireFormatLite::WIRETYPE_VARINT) + std::string(9, '\xff') + std::string(1, '\x01')},
          {"unknown numbers of 4 bytes", tag(WireFormatLite::WIRETYPE_FIXED32) + kLong.substr(12)},
          {"unknown empty bytes", Delimited(field, "")},
          {"unknown bytes of 16", Delimited(field, kLong)},
          {"unknown bytes of 300", Delimited(field, std::string(300, '\0'))},
          {"unknown empty groups", begin + end},
          {"unknown groups of a varint", begin + varint + end},
          {"unknown groups, 9 deep", Nested(begin, end, 9)},
          {"unknown groups, 90 deep", Nested(begin, end, 90)}};
}

std::vector<Filling> Known(const FieldDescriptor& field) {
  const std::string& name = field.name();
  const WireFormatLite::WireType type = WireFormat::WireTypeForFieldType(field.type());
  const std::string tag = Tag(field.number(), type);
  std::vector<Filling> all;
  const auto add = [&](const std::string& what, const std::string& bytes) {
    all.push_back({name + what, bytes});
  };
  switch (type) {
    case WireFormatLite::WIRETYPE_VARINT:
      add("", tag + std::string(1, '\1'));
      add(" of 10 bytes", tag + std::string(9, '\xff') + std::string(1, '\x01'));
      break;
    case WireFormatLite::WIRETYPE_FIXED64:
      add("", tag + kLong.substr(8));
      break;
    default:
      add(" empty", Delimited(field.number(), ""));
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        add(" of 16", Delimited(field.number(), kLong));
        add(" of 24", Delimited(field.number(), std::string(24, 'h')));
      }
  }
  if (field.is_packable()) {
    add(" packed, empty", Delimited(field.number(), ""));
    add(" packed, 1 each", Delimited(field.number(), std::string(1, '\0')));
    add(" packed, 120 each", Delimited(field.number(), std::string(120, '\0')));
  }
  return all;
}

std::vector<Filling> Fillings(const Descriptor& type) {
  std::vector<Filling> all = Unknown(type);
  std::vector<Filling> shortest;
  for (int i = 0; i < type.field_count(); ++i) {
    const std::vector<Filling> known = Known(*type.field(i));
    all.insert(all.end(), known.begin(), known.end());
    shortest.push_back(known.front());
  }
  shortest.push_back(all.front());
  for (size_t i = 0; i < shortest.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      all.push_back({absl::StrCat(shortest[j].name, ", ", shortest[i].name, " in turn"),
                     shortest[j].bytes + shortest[i].bytes});
    }
  }
  return all;
}

// `prefix` are the fields from the root to `type`.
void AddShapes(const Descriptor& type, std::vector<const FieldDescriptor*>& path, size_t length,
               std::vector<Shape>* shapes) {
  for (const Filling& filling : Fillings(type)) {
    // The message within which it is repeated.
    for (size_t repeated = 0; repeated <= path.size(); ++repeated) {
      std::string bytes = filling.bytes, name = filling.name;
      for (size_t i = path.size(); i-- > repeated;) {
        bytes = Delimited(path[i]->number(), bytes);
        name = absl::StrCat(path[i]->name(), " {", name, "}");
      }
      bytes = Repeat(bytes, length);
      name = absl::StrCat("(", name, ")*");
      for (size_t i = repeated; i-- > 0;) {
        bytes = Delimited(path[i]->number(), bytes);
        name = absl::StrCat(path[i]->name(), " {", name, "}");
      }
      shapes->push_back({std::move(name), std::move(bytes)});
    }
  }
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    path.push_back(type.field(i));
    AddShapes(*type.field(i)->message_type(), path, length, shapes);
    path.pop_back();
  }
}

std::vector<Shape> ShapesOf(const Message& type, size_t length) {
  std::vector<Shape> shapes;
  std::vector<const FieldDescriptor*> path;
  AddShapes(*type.GetDescriptor(), path, length, &shapes);
  return shapes;
}

// ------------------------------------------------------------------------------- reading them

using server::ServiceState;

struct Server {
  Server() {
    options.max_message_bytes = int64_t{1} << 40;
    state = std::make_unique<ServiceState>(&core, &metrics, options, identity, nullptr);
    context.tenant = Must(core.tenants().Get("bench"));
  }
  absl::Status Parse(const grpc::ByteBuffer& bytes, Message* message) {
    server::Reservation share;
    return state->Parse(bytes, context, message, &share);
  }

  const server::ServerIdentity identity{"here", server::Epoch::Start("here")};
  server::Metrics metrics{{"1", "cpu", "bench", "here"}};
  server::RealClock clock;
  server::SolverCore core{test::MakeSolver("cpu", {.memory_bytes = 1 << 20}),
                          {.max_inflight_request_bytes = int64_t{1} << 36},
                          identity,
                          &metrics,
                          &clock};
  server::ServerOptions options;
  std::unique_ptr<ServiceState> state;
  server::RequestContext context;
};

struct Method {
  std::string name;
  const Message* type;
  absl::Status (*read)(Server&, const Message&, grpc::ByteBuffer*);
};

absl::Status ReadWhole(Server& server, const Message& type, grpc::ByteBuffer* bytes) {
  const std::unique_ptr<Message> message(type.New());
  return server.Parse(*bytes, message.get());
}
template <typename Request>
absl::Status ReadSplit(Server& server, const Message& type, grpc::ByteBuffer* bytes) {
  const auto split = server::SplitBytes(bytes, Request(), {.field = Request::kRhsFieldNumber},
                                        server::kMaxSolveManyHeadBytes);
  if (!split.ok()) return split.status();
  const grpc::ByteBuffer rest = server::AsBuffer(split->rest);
  const std::unique_ptr<Message> message(type.New());
  return server.Parse(rest, message.get());
}
template <typename Request>
absl::Status ReadPart(Server& server, const Message& type, grpc::ByteBuffer* bytes) {
  const auto part = server::SplitPart(
      bytes, Request(), {.field = Request::kChunkFieldNumber, .whole = Request::kHeaderFieldNumber},
      /*max_rest=*/64 << 10);
  if (!part.ok()) return part.status();
  const bool is_chunk = part->part == Request::kChunkFieldNumber;
  return is_chunk ? absl::OkStatus() : ReadWhole(server, type, bytes);
}
absl::Status ReadStream(Server& server, const Message& type, grpc::ByteBuffer* bytes) {
  auto read = server::ReadStreamMessage(bytes);
  if (!read.ok()) return read.status();
  if (read->part == v1::SolveStreamRequest::kRefactorFieldNumber)
    return ReadWhole(server, type, bytes);
  if (read->unparsed.empty()) return absl::OkStatus();
  return server.Parse(server::AsBuffer(read->unparsed), &read->request);
}

std::vector<Method> Methods() {
  using namespace v1;  // NOLINT: the messages are the methods'
  return {{"Factor", &FactorRequest::default_instance(), ReadWhole},
          {"FactorStream", &FactorStreamRequest::default_instance(), ReadPart<FactorStreamRequest>},
          {"Solve", &SolveRequest::default_instance(), ReadSplit<SolveRequest>},
          {"SolveMany", &SolveManyRequest::default_instance(), ReadSplit<SolveManyRequest>},
          {"SolveStream", &SolveStreamRequest::default_instance(), ReadStream},
          {"FactorSolve", &FactorSolveRequest::default_instance(), ReadWhole},
          {"FactorSolveMany", &FactorSolveManyRequest::default_instance(), ReadWhole},
          {"SelectedInverse", &SelectedInverseRequest::default_instance(), ReadWhole},
          {"Sample", &SampleRequest::default_instance(), ReadWhole},
          {"Smooth", &SmoothRequest::default_instance(), ReadPart<SmoothRequest>},
          {"Release", &ReleaseRequest::default_instance(), ReadWhole},
          {"GetFactorization", &GetFactorizationRequest::default_instance(), ReadWhole},
          {"ListFactorizations", &ListFactorizationsRequest::default_instance(), ReadWhole},
          {"GetServerInfo", &GetServerInfoRequest::default_instance(), ReadWhole},
          {"GetPlan", &GetPlanRequest::default_instance(), ReadWhole},
          {"Admin's", &SetLogLevelRequest::default_instance(), ReadWhole},
          {"Factor in shared memory", &FactorStreamHeader::default_instance(), ReadWhole}};
}

double ProcessorNow() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of a processor for a megabyte.
double Measure(Server& server, const Method& method, const Shape& shape, size_t slice_bytes) {
  grpc::ByteBuffer buffer = test::InSlices(shape.bytes, slice_bytes);
  const double start = ProcessorNow();
  absl::Status status = server.state->CheckMessage(buffer);
  if (status.ok()) status = method.read(server, *method.type, &buffer);
  buffer.Clear();
  return (ProcessorNow() - start) * 1e6 / static_cast<double>(shape.bytes.size());
}

void Run(const Flags& flags) {
  constexpr double kGoal = 0.05;
  constexpr size_t kSliceBytes[] = {16 << 10, 64};
  const size_t length = flags.quick ? 2'000 : static_cast<size_t>(absl::GetFlag(FLAGS_bytes));
  const size_t looked_at_again = flags.quick ? 1 : 8;
  Server server;
  Table table(flags);
  for (const Method& method : Methods()) {
    struct Candidate {
      double seconds;
      const Shape* shape;
      size_t slice_bytes;
    };
    std::vector<Candidate> candidates;
    const std::vector<Shape> shapes = ShapesOf(*method.type, length);
    for (const Shape& shape : shapes) {
      for (const size_t slice_bytes : kSliceBytes) {
        candidates.push_back({Measure(server, method, shape, slice_bytes), &shape, slice_bytes});
      }
    }
    std::ranges::sort(candidates, std::greater<>(), &Candidate::seconds);
    candidates.resize(std::min(candidates.size(), looked_at_again));
    Samples worst;
    const Candidate* worst_one = nullptr;
    for (const Candidate& candidate : candidates) {
      Samples samples;
      for (int i = 0; i < 7; ++i) {
        samples.seconds.push_back(Measure(server, method, *candidate.shape, candidate.slice_bytes));
      }
      if (worst_one != nullptr && samples.median() <= worst.median()) continue;
      worst = samples;
      worst_one = &candidate;
    }
    Row row = {
        .work = method.name, .ours = FormatSeconds(worst.median()), .spread = worst.spread()};
    row.reference = absl::StrCat(worst_one->shape->name, ", in pieces of ", worst_one->slice_bytes,
                                 "; ", shapes.size(), " messages tried");
    row.goal = absl::StrCat("<= ", FormatSeconds(kGoal));
    row.reached = worst.median() <= kGoal;
    table.Add(row);
  }
}

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  blockd::bench::Run(blockd::bench::ParseFlags(argc, argv));
  return 0;
}
