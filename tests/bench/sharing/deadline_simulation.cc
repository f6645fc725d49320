#include "tests/bench/sharing/deadline_simulation.h"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <set>
#include <utility>

namespace blockd::bench {
namespace {

using Waiting = std::set<std::pair<double, size_t>>;  // keys of the order, and indices

// The request with the earliest deadline of Moore's set; the end of `waiting` if the set is empty.
Waiting::const_iterator FirstOfMost(const std::vector<TimedRequest>& requests,
                                    const Waiting& waiting, double now) {
  std::priority_queue<std::pair<double, Waiting::const_iterator>,
                      std::vector<std::pair<double, Waiting::const_iterator>>,
                      decltype([](const auto& a, const auto& b) { return a.first < b.first; })>
      kept;
  double end = now;
  for (auto at = waiting.begin(); at != waiting.end(); ++at) {
    const TimedRequest& request = requests[at->second];
    kept.emplace(request.service, at);
    end += request.service;
    if (end > request.due) {
      end -= kept.top().first;
      kept.pop();
    }
  }
  auto first = waiting.end();
  for (; !kept.empty(); kept.pop()) {
    if (first == waiting.end() || *kept.top().second < *first) first = kept.top().second;
  }
  return first;
}

Waiting::const_iterator Next(const std::vector<TimedRequest>& requests, const Waiting& waiting,
                             Order order, double now) {
  auto next = waiting.begin();
  if (order == Order::kMostInTime) {
    next = FirstOfMost(requests, waiting, now);
  } else if (order == Order::kDeadlineInTime) {
    next = std::find_if(waiting.begin(), waiting.end(), [&](const auto& each) {
      return now + requests[each.second].service <= requests[each.second].due;
    });
  }
  return next == waiting.end() ? waiting.begin() : next;
}

}  // namespace

std::vector<bool> DoneInTime(const std::vector<TimedRequest>& requests, Order order) {
  std::vector<bool> in_time(requests.size());
  Waiting waiting;
  double now = 0;
  for (size_t come = 0; come < requests.size() || !waiting.empty();) {
    if (waiting.empty()) now = std::max(now, requests[come].ready);
    for (; come < requests.size() && requests[come].ready <= now; ++come) {
      waiting.emplace(order == Order::kArrival ? requests[come].ready : requests[come].due, come);
    }
    if (order != Order::kArrival) {
      while (!waiting.empty() && waiting.begin()->first <= now) waiting.erase(waiting.begin());
      if (waiting.empty()) continue;
    }
    const auto next = Next(requests, waiting, order, now);
    now += requests[next->second].service;
    in_time[next->second] = now <= requests[next->second].due;
    waiting.erase(next);
  }
  return in_time;
}

double LeastMissedPart(const std::vector<TimedRequest>& requests) {
  int64_t most = 0;
  for (const Order order :
       {Order::kArrival, Order::kDeadline, Order::kDeadlineInTime, Order::kMostInTime}) {
    const std::vector<bool> in_time = DoneInTime(requests, order);
    most = std::max<int64_t>(most, std::count(in_time.begin(), in_time.end(), true));
  }
  return 1 - static_cast<double>(most) / static_cast<double>(requests.size());
}

std::vector<double> ServiceTimes(const std::vector<double>& ready,
                                 const std::vector<double>& done) {
  std::vector<double> service;
  double free = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    const double end = std::max(done[i], free);
    service.push_back(std::max(end - std::max(ready[i], free), 0.0));
    free = end;
  }
  return service;
}

}  // namespace blockd::bench
