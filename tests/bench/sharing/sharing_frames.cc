// Loads that misbehave in HTTP/2.
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/sharing/sharing_abuse.h"
#include "tests/integration/hostile/hostile_calls.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::bench {
namespace {

using test::IdleCall;
using test::RawHttp2;

constexpr int64_t kBombBytes = int64_t{60} << 20;  // inflated; 60 KB on the wire
constexpr uint32_t kIdleOfAConnection = 900;       // calls; a connection may have 1024
constexpr size_t kOpenConnections = 200;

// Sends with `send` until the server closes the connection, and then on a new one.
template <typename Send>
void Flood(const Place& place, Progress& progress, Send send) {
  for (bool first = true;; first = false) {
    RawHttp2 peer(place.port);
    peer.Greet();
    for (uint32_t stream = 1; stream < 0x7fffffff && !peer.closed(); stream += 2) {
      if (!send(peer, stream)) break;
      progress.Count(true);
      if (first && stream == 1) ++progress.threads_ready;
    }
    progress.Count(false);
  }
}

void RapidReset(const Place& place, Progress& progress) {
  const std::string block = RawHttp2::HeaderBlock("Solve"), cancel("\0\0\0\x08", 4);
  Flood(place, progress, [&](RawHttp2& peer, uint32_t stream) {
    return peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, block) &&
           peer.SendFrame(RawHttp2::kReset, 0, stream, cancel);
  });
}

void Pings(const Place& place, Progress& progress) {
  Flood(place, progress,
        [](RawHttp2& peer, uint32_t) { return peer.SendFrame(RawHttp2::kPing, 0, 0, "12345678"); });
}

void Settings(const Place& place, Progress& progress) {
  Flood(place, progress,
        [](RawHttp2& peer, uint32_t) { return peer.SendFrame(RawHttp2::kSettings, 0, 0, ""); });
}

void Continuations(const Place& place, Progress& progress) {
  const std::string more = std::string("\0\x04name\x7f\x81\x06", 9) + std::string(1024, 'x');
  const std::string block = RawHttp2::HeaderBlock("Solve");
  Flood(place, progress, [&](RawHttp2& peer, uint32_t stream) {
    return stream == 1 ? peer.SendFrame(RawHttp2::kHeaders, 0, 1, block)
                       : peer.SendFrame(RawHttp2::kContinuation, 0, 1, more);
  });
}

// Whole calls whose answers have no window.
void ZeroWindows(const Place& place, Progress& progress) {
  for (bool first = true;; first = false) {
    RawHttp2 peer(place.port);
    peer.Greet({{RawHttp2::kInitialWindow, 0}});
    for (uint32_t stream = 1; stream < 20'000 && !peer.closed(); stream += 2) {
      if (!peer.Call(stream, "GetServerInfo", "")) break;
      if (stream % 20 == 1) Nap(2);  // the flood is not what is measured here
      progress.Count(true);
      if (first && stream == 1) ++progress.threads_ready;
    }
    progress.Count(false);
  }
}

// A stream that is open, half of a call, and then silence; one of the connections goes each 20 ms.
void HalfOpen(const Place& place, Progress& progress) {
  std::vector<std::unique_ptr<RawHttp2>> silent(100);
  for (size_t at = 0;; at = (at + 1) % silent.size()) {
    silent[at] = std::make_unique<RawHttp2>(place.port);
    RawHttp2& peer = *silent[at];
    peer.Greet();
    peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 1,
                   RawHttp2::HeaderBlock("SolveStream"));
    peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 3, RawHttp2::HeaderBlock("Solve"));
    peer.SendFrame(RawHttp2::kData, 0, 3, std::string("\0\0\0\x01\0half", 9));
    progress.Count(!peer.closed());
    if (progress.answered == static_cast<int64_t>(silent.size())) ++progress.threads_ready;
    if (progress.answered > static_cast<int64_t>(silent.size())) Nap(20);
  }
}

// A byte of the preface to each of many connections every tenth of a second, and never all of it.
void SlowPrefaces(const Place& place, Progress& progress) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  std::vector<std::unique_ptr<RawHttp2>> slow(200);
  std::vector<size_t> sent(slow.size());
  for (bool first = true;; first = false) {
    for (size_t i = 0; i < slow.size(); ++i) {
      if (slow[i] == nullptr || slow[i]->closed() || sent[i] + 1 == preface.size()) {
        slow[i] = std::make_unique<RawHttp2>(place.port);
        sent[i] = 0;
        progress.Count(true);
      }
      slow[i]->Send(preface.substr(sent[i]++, 1));
    }
    if (first) ++progress.threads_ready;
    Nap(100);
  }
}

// Each on a connection of its own: it has the size of a connection's first window.
void Bombs(const Place& place, Progress& progress) {
  std::vector<std::string> headers, bombs;
  for (const std::string encoding : {"gzip", "deflate"}) {
    headers.push_back(RawHttp2::HeaderBlock("Factor") +
                      RawHttp2::HeaderField("grpc-encoding", encoding));
    bombs.push_back(test::CompressedZeros(encoding, kBombBytes));
  }
  for (size_t i = 0;; ++i) {
    RawHttp2 peer(place.port);
    peer.Greet();
    peer.SendHeaders(1, headers[i % 2]);
    peer.SendMessage(1, bombs[i % 2], RawHttp2::kEndStream, /*compressed=*/true);
    peer.WaitForEnd(1);
    progress.Count(!peer.closed());
    if (i == 0) ++progress.threads_ready;
  }
}

// One call after another, each with one of these blocks of headers.
void CallWith(const std::vector<std::string>& blocks, const Place& place, Progress& progress) {
  Flood(place, progress, [&](RawHttp2& peer, uint32_t stream) {
    return peer.SendHeaders(stream, blocks[stream / 2 % blocks.size()]) &&
           peer.SendMessage(stream, "");
  });
}

std::string BlockOf(size_t kibibytes) {
  return RawHttp2::HeaderBlock("GetServerInfo") +
         RawHttp2::HeaderField("k", std::string(kibibytes << 10, 'v'));
}

void LargeMetadata(const Place& place, Progress& progress) {
  CallWith({BlockOf(9), BlockOf(64), BlockOf(256), BlockOf(1024),
            RawHttp2::HeaderBlock("GetServerInfo") + test::ShortEntries(500)},
           place, progress);
}

// As much as a router lets through.
void RoutedMetadata(const Place& place, Progress& progress) {
  CallWith({BlockOf(60), RawHttp2::HeaderBlock("GetServerInfo") + test::ShortEntries(90)}, place,
           progress);
}

// As many as three connections carry, and one more every millisecond: the server ends the oldest.
template <const IdleCall& kCall>
void Idle(const Place& place, Progress& progress) {
  struct Peer {
    std::unique_ptr<RawHttp2> wire;
    uint32_t stream = 1;
  };
  std::vector<Peer> peers(3);
  for (size_t i = 0;; ++i) {
    auto& [wire, stream] = peers[i % peers.size()];
    std::string frames;
    if (wire == nullptr || wire->closed()) {
      wire = std::make_unique<RawHttp2>(place.port);
      wire->Greet();
      for (stream = 1; stream < 2 * kIdleOfAConnection; stream += 2) frames += kCall.Frames(stream);
    }
    progress.Count(wire->Send(frames + kCall.Frames(stream)));
    stream += 2;
    if (i + 1 == peers.size()) ++progress.threads_ready;
    if (i >= peers.size()) Nap(1);
    wire->Poll();
  }
}

// Headers that never end, on connections with an open call, which may bring more.
void UnansweredBytes(const Place& place, Progress& progress) {
  const std::string block = RawHttp2::HeaderBlock("SolveStream"), more = test::EndlessHeaders(3);
  for (bool first = true;; first = false) {
    RawHttp2 peer(place.port);
    peer.Greet();
    peer.SendHeaders(1, block);
    peer.WaitFor(RawHttp2::kHeaders, 1);
    peer.SendFrame(RawHttp2::kHeaders, 0, 3, block);
    if (first) ++progress.threads_ready;
    while (peer.Send(more)) progress.Count(true);
    progress.Count(false);
  }
}

// Connections without end, that say so many bytes of the preface; only the latest are open.
template <size_t kBytes>
void Connects(const Place& place, Progress& progress) {
  std::deque<int> open;
  for (;;) {
    const int fd = test::ConnectTo(place.port);
    progress.Count(fd >= 0 && send(fd, "P", kBytes, MSG_NOSIGNAL) >= 0);
    if (fd >= 0) open.push_back(fd);
    if (open.size() < kOpenConnections) continue;
    close(open.front());
    open.pop_front();
    if (progress.threads_ready == 0) ++progress.threads_ready;
  }
}

}  // namespace

const std::vector<Abuse>& FrameAbuses() {
  static const auto& all = *new std::vector<Abuse>{
      {{"rapid_reset", "calls reset as soon as they are made"}, 1, RapidReset},
      {{"continuation", "headers that never end"}, 1, Continuations},
      {{"settings", "a flood of SETTINGS"}, 1, Settings},
      {{"ping", "a flood of PING"}, 1, Pings},
      {{"zero_windows", "calls with no window for their answers"}, 1, ZeroWindows},
      {{"half_open", "100 connections that fall silent in a call"}, 1, HalfOpen},
      {{"slow_preface", "200 connections that say hello byte by byte"}, 1, SlowPrefaces},
      {{"bombs", "gzip and deflate bombs of 60 MiB"}, 2, Bombs},
      {{"metadata", "calls with 9 KiB to 1 MiB of metadata, or 500 entries"}, 1, LargeMetadata},
      {{"metadata_60", "calls with 60 KiB of metadata, or 90 entries"}, 1, RoutedMetadata},
      {{"idle_watches", "2700 idle calls of Watch"}, 1, Idle<test::kIdleWatch>},
      {{"idle_reflection", "2700 idle calls of reflection"}, 1, Idle<test::kIdleReflection>},
      {{"idle_smooths", "2700 idle Smooths"}, 1, Idle<test::kIdleSmooth>},
      {{"idle_unary", "2700 Solves without a message"}, 1, Idle<test::kNoMessage>},
      {{"idle_half", "2700 Factors with a part of a message"}, 1, Idle<test::kHalfAMessage>},
      {{"unanswered", "4 connections that bring unanswered bytes beside a call"},
       4,
       UnansweredBytes},
      {{"connects", "connections without end"}, 1, Connects<0>},
      {{"one_byte", "connections without end that say one byte"}, 1, Connects<1>},
  };
  return all;
}

}  // namespace blockd::bench
