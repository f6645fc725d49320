// Loads that misbehave in HTTP/2.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/sharing_abuse.h"
#include "tests/integration/raw_http2.h"

namespace blockd::bench {
namespace {

using test::RawHttp2;

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
  };
  return all;
}

}  // namespace blockd::bench
