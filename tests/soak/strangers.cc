#include "tests/soak/strangers.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <vector>

#include "blockd/v1/blockd.grpc.pb.h"
#include "tests/integration/hostile/hostile_calls.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/soak/faults.h"
#include "tests/soak/tenant.h"
#include "tests/support/eventually.h"

namespace blockd::soak {
namespace {

using enum grpc::StatusCode;
using test::RawHttp2;

constexpr char kAddress[] = "127.0.0.2";
constexpr int64_t kZeros = int64_t{60} << 20;
constexpr int kShortFields = 500'000;  // a message of 1 MB
constexpr uint32_t kWaitingCalls = 400, kConnections = 3, kMostWaiting = 1000;
constexpr char kNoEnd[] = "has no status";

grpc::Status StatusOf(int code) {
  return code < 0 ? grpc::Status(UNKNOWN, kNoEnd)
                  : grpc::Status(static_cast<grpc::StatusCode>(code), "");
}

}  // namespace

Strangers::Strangers(int port, Tally* tally)
    : port_(port), tally_(tally), stub_(Connect(port)), thread_([this] { Attack(); }) {}

void Strangers::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Strangers::Attack() {
  const std::string gzip = test::CompressedZeros("gzip", kZeros),
                    deflate = test::CompressedZeros("deflate", kZeros);
  const std::string long_field = RawHttp2::HeaderField("k", std::string(60 << 10, 'v'));
  while (!stop_) {
    SendCompressed("gzip", gzip);
    SendCompressed("deflate", deflate);
    SendLongMetadata(long_field);
    SendLongMetadata(test::ShortEntries(500));
    Wait();
    SendShortFields(/*cancels=*/false);
    SendShortFields(/*cancels=*/true);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Strangers::SendCompressed(const std::string& encoding, const std::string& message) {
  RawHttp2 peer(port_, kAddress);
  peer.Greet();
  peer.SendHeaders(
      1, RawHttp2::HeaderBlock("Solve") + RawHttp2::HeaderField("grpc-encoding", encoding));
  peer.SendMessage(1, message, RawHttp2::kEndStream, /*compressed=*/true);
  tally_->Add("Solve that is compressed", StatusOf(peer.WaitForStatus(1)), {UNIMPLEMENTED},
              peer.closed() ? "its connection ended" : "");
}

void Strangers::SendLongMetadata(const std::string& fields) {
  RawHttp2 peer(port_, kAddress);
  peer.Greet();
  peer.SendHeaders(1, RawHttp2::HeaderBlock("GetServerInfo") + fields);
  peer.SendMessage(1, "");
  tally_->Add("GetServerInfo with long metadata", StatusOf(peer.WaitForStatus(1)),
              {RESOURCE_EXHAUSTED}, peer.closed() ? "its connection ended" : "");
}

// More of them than an address may have: the oldest end.
void Strangers::Wait() {
  std::vector<std::unique_ptr<RawHttp2>> peers;
  for (uint32_t i = 0; i < kConnections; ++i) {
    std::string frames;
    for (uint32_t stream = 1; stream < 2 * kWaitingCalls; stream += 2) {
      frames += (i % 2 == 0 ? test::kHalfAMessage : test::kIdleWatch).Frames(stream);
    }
    peers.push_back(std::make_unique<RawHttp2>(port_, kAddress));
    peers.back()->Greet();
    peers.back()->Send(frames);
  }
  const bool ended = test::Eventually([&] {
    int64_t ended_calls = 0;
    for (const auto& peer : peers) {
      peer->Poll();
      ended_calls += peer->ended();
    }
    return ended_calls >= kConnections * kWaitingCalls - kMostWaiting;
  });
  tally_->Add("a thousand calls that wait", grpc::Status::OK, {}, ended ? "" : "too many are left");
}

void Strangers::SendShortFields(bool cancels) {
  v1::SolveManyRequest request;
  auto* const fields = request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i < kShortFields; ++i) fields->AddVarint(15, 0);
  grpc::ClientContext context;
  if (cancels)
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(5));
  SayWho(Tenants()[0], &context);
  v1::SolveManyReply reply;
  tally_->Add(cancels ? "SolveMany of short fields, cancelled" : "SolveMany of short fields",
              stub_->SolveMany(&context, request, &reply), {INVALID_ARGUMENT, DEADLINE_EXCEEDED});
}

}  // namespace blockd::soak
