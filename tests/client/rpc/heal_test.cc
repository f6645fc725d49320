// Handles that factor again by themselves: when, how often, for whom.
#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "tests/client/heal_fixture.h"
#include "tests/client/program.h"

namespace blockd::client {
namespace {

const RestoreOptions kCopy{.keep_copy = true};

TEST_F(HealTest, EachLossIsMendedOnce) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  int factored = 1;
  const auto heals = [&] {
    const auto x = Solve(client, handle);
    ASSERT_TRUE(x.ok()) << x.status();
    EXPECT_EQ(*x, 4);
    ++factored;
    EXPECT_EQ(this->factored(), factored);
    EXPECT_EQ(handle.get().handle, Name(factored));
  };
  for (const auto reason :
       {v1::HandleNotFound::EVICTED, v1::HandleNotFound::EXPIRED, v1::HandleNotFound::RESTARTED,
        v1::HandleNotFound::OTHER_SERVER, v1::HandleNotFound::DEVICE_FAILED}) {
    Lose(reason);
    heals();
  }
  Lose(Draining());
  heals();
  Lose(grpc::Status(grpc::StatusCode::UNAVAILABLE, "nobody is there"));
  heals();
  EXPECT_EQ(handle.restore_counters().restores, 7);
  EXPECT_EQ(handle.restore_counters().waited, 7);
  EXPECT_EQ(client.restore_counters().restores, 7);
  EXPECT_EQ(keys(), 8);  // one a Factor
}

TEST_F(HealTest, OtherFailuresAreNotMended) {
  const SolverClient client = Connect({.retry = {.max_attempts = 3}});
  const FactorHandle handle = Factor(client, kCopy);
  for (const auto reason : {v1::HandleNotFound::NEVER_EXISTED, v1::HandleNotFound::RELEASED,
                            v1::HandleNotFound::FAILED_REFACTOR}) {
    Lose(reason);
    EXPECT_EQ(GetHandleNotFound(Solve(client, handle).status())->reason(), reason);
  }
  Lose(UnavailableFor(absl::Milliseconds(1)));  // a full queue
  EXPECT_TRUE(absl::IsUnavailable(Solve(client, handle).status()));
  Lose(grpc::Status(grpc::StatusCode::INTERNAL, "the device failed"));
  EXPECT_TRUE(absl::IsInternal(Solve(client, handle).status()));
  EXPECT_EQ(factored(), 1);
  EXPECT_EQ(handle.restore_counters().waited, 0);
}

TEST_F(HealTest, WithoutAMatrixNothingIsMended) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {});
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(GetHandleNotFound(Solve(client, handle).status())->reason(),
            v1::HandleNotFound::EVICTED);
  EXPECT_EQ(handle.restore_counters().refused, 0);
}

TEST_F(HealTest, ManyCallsWaitForOneFactor) {
  constexpr int kCallers = 32;
  const SolverClient client = Connect();
  std::atomic<int> asked{0};
  absl::Notification may_answer;
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t system) {
                                       EXPECT_EQ(system, 0);
                                       ++asked;
                                       may_answer.WaitForNotification();
                                       return OwnedSystem{System(kTwo)};
                                     }});
  Lose(v1::HandleNotFound::EVICTED);
  std::vector<std::thread> callers;
  std::atomic<int> right{0};
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      const auto x = Solve(client, handle);
      if (x.ok() && *x == 4) ++right;
    });
  }
  EXPECT_TRUE(blockctl::Eventually([&] { return handle.restore_counters().waited == kCallers; }));
  may_answer.Notify();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, kCallers);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(factored(), 2);
  EXPECT_EQ(handle.restore_counters().restores, 1);
}

TEST_F(HealTest, TheLimitEndsIt) {
  const SolverClient client = Connect();
  const FactorHandle handle =
      Factor(client, {.keep_copy = true, .max_restores = 3, .window = absl::Hours(1)});
  LoseAll();
  Lose(v1::HandleNotFound::EVICTED);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Solve(client, handle).status();
    EXPECT_EQ(GetHandleNotFound(status)->reason(), v1::HandleNotFound::EVICTED);
    EXPECT_TRUE(absl::StrContains(status.message(), "tried 3 times within 1h")) << status;
  }
  EXPECT_EQ(factored(), 4);
  EXPECT_EQ(handle.restore_counters().restores, 3);
  EXPECT_EQ(handle.restore_counters().refused, 2);
}

TEST_F(HealTest, AnAttemptThatFindsNoServerDoesNotCount) {
  const SolverClient client = Connect({.retry = {.max_attempts = 2}});
  const FactorHandle handle =
      Factor(client, {.keep_copy = true, .max_restores = 1, .window = absl::Hours(1)});
  const auto on_factor = fake_.on_factor.Get();
  for (const grpc::Status& nobody :
       {grpc::Status(grpc::StatusCode::UNAVAILABLE, "nobody is there"), Draining()}) {
    fake_.on_factor = [nobody](const v1::FactorRequest&, v1::FactorReply*) { return nobody; };
    Lose(nobody);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsUnavailable(Solve(client, handle).status()));
  }
  fake_.on_factor = on_factor;
  EXPECT_EQ(*Solve(client, handle), 4);
  EXPECT_EQ(handle.restore_counters().failures, 6);
  EXPECT_EQ(handle.restore_counters().refused, 0);
}

TEST_F(HealTest, TheLimitIsOfTheLastWhile) {
  const SolverClient client = Connect();
  const FactorHandle handle =
      Factor(client, {.keep_copy = true, .max_restores = 1, .window = absl::Nanoseconds(1)});
  for (int i = 0; i < 5; ++i) {
    Lose(v1::HandleNotFound::EVICTED);
    EXPECT_TRUE(Solve(client, handle).ok());
  }
}

TEST_F(HealTest, ACallbackThatFailsFailsWhoWaitsAndIsAskedAgain) {
  const SolverClient client = Connect();
  std::atomic<bool> fails{true};
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t) -> absl::StatusOr<OwnedSystem> {
                                       if (fails) return absl::PermissionDeniedError("no more");
                                       return OwnedSystem{System(kTwo)};
                                     }});
  Lose(v1::HandleNotFound::EVICTED);
  const absl::Status status = Solve(client, handle).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no more")) << status;
  fails = false;
  EXPECT_EQ(*Solve(client, handle), 4);
  EXPECT_EQ(handle.restore_counters().failures, 1);
  EXPECT_EQ(handle.restore_counters().restores, 1);
}

TEST_F(HealTest, AMatrixOfAnotherShapeIsRefused) {
  const SolverClient client = Connect();
  static const double kIdentity[] = {1, 0, 0, 1};
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t) {
                                       return OwnedSystem{MakeSystemView(1, 2, kIdentity, kTwo)};
                                     }});
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_TRUE(absl::IsInvalidArgument(Solve(client, handle).status()));
  EXPECT_EQ(factored(), 1);
}

TEST_F(HealTest, AFactorThatFailsFailsWhoWaits) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  Lose(v1::HandleNotFound::EVICTED);
  fake_.on_factor = [](const v1::FactorRequest&, v1::FactorReply*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  };
  const absl::Status status = Solve(client, handle).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "full")) << status;
}

TEST_F(HealTest, EachCallEndsWithItsOwnTimeout) {
  const SolverClient client = Connect();
  absl::Notification may_answer;
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t) {
                                       may_answer.WaitForNotification();
                                       return OwnedSystem{System(kTwo)};
                                     }});
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Solve(client, handle, absl::Seconds(1)).status()));
  const std::vector<double> b = {8};
  std::vector<double> x = {0}, y = {0};
  absl::Notification late, in_time;
  client.SolveAsync(handle, b, x, {.timeout = absl::Seconds(1)},
                    [&](absl::StatusOr<SolveResult> result) {
                      EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
                      late.Notify();
                    });
  client.SolveAsync(handle, b, y, {}, [&](absl::StatusOr<SolveResult> result) {
    EXPECT_TRUE(result.ok()) << result.status();
    in_time.Notify();
  });
  late.WaitForNotification();
  EXPECT_FALSE(in_time.HasBeenNotified());
  may_answer.Notify();
  in_time.WaitForNotification();
  EXPECT_EQ(y[0], 4);
  EXPECT_EQ(x[0], 0);
  EXPECT_EQ(factored(), 2);
  EXPECT_EQ(handle.restore_counters().waited, 3);
}

TEST_F(HealTest, LargeSolvesHealToo) {
  const SolverClient client = Connect({.stream_threshold_bytes = 4});
  fake_.on_factor_stream = [this](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
    v1::FactorRequest request;
    v1::FactorStreamRequest part;
    EXPECT_TRUE(reader->Read(&part));
    *request.mutable_options() = part.header().options();
    std::string bytes;
    while (reader->Read(&part)) bytes += part.chunk();
    request.add_system()->set_diagonal(bytes);
    return fake_.on_factor.Get()(request, reply);
  };
  const FactorHandle handle = Factor(client, kCopy);
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(*Solve(client, handle), 4);
  Lose(Draining());
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  absl::Notification done;
  client.SolveAsync(handle, b, x, {}, [&](absl::StatusOr<SolveResult> result) {
    EXPECT_TRUE(result.ok()) << result.status();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(x[0], 4);
  EXPECT_EQ(factored(), 3);
}

TEST_F(HealTest, ARefactorHealsAndItsValuesAreThoseThatComeBack) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  ASSERT_TRUE(client.Refactor(handle, System(kFour)).ok());
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(*Solve(client, handle), 2);
  EXPECT_EQ(factored(), 2);
  Lose(v1::HandleNotFound::OTHER_SERVER);
  ASSERT_TRUE(client.Refactor(handle, System(kTwo)).ok());
  EXPECT_EQ(factored(), 3);
  EXPECT_EQ(*Solve(client, handle), 4);
}

TEST_F(HealTest, ARefactorDuringARestorationIsNotUndoneByIt) {
  const SolverClient client = Connect();
  std::atomic<int> asked{0};
  Shared<const double*> values(kTwo);
  absl::Notification asking, may_answer;
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t) {
                                       const double* now = values.Get();
                                       if (++asked == 1) {
                                         asking.Notify();
                                         may_answer.WaitForNotification();
                                       }
                                       return OwnedSystem{System(now)};
                                     }});
  // One Solve finds nobody; the refactor meets the server again.
  std::atomic<bool> gone{true};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest& request,
                       v1::SolveReply* reply) {
    if (gone) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "nobody is there");
    return Answer(request, reply);
  };
  std::thread solver([&] { EXPECT_EQ(*Solve(client, handle), 2); });
  asking.WaitForNotification();
  gone = false;
  values = kFour;
  ASSERT_TRUE(client.Refactor(handle, System(kFour)).ok());
  may_answer.Notify();
  solver.join();
  EXPECT_EQ(asked, 2);  // the first answer was yesterday's
}

TEST_F(HealTest, WhatIsLeftBehindIsReleased) {
  const SolverClient client = Connect();
  {
    const FactorHandle handle = Factor(client, kCopy);
    Lose(v1::HandleNotFound::OTHER_SERVER);  // which may hold it
    EXPECT_TRUE(Solve(client, handle).ok());
    Lose(v1::HandleNotFound::EVICTED);  // which is gone
    EXPECT_TRUE(Solve(client, handle).ok());
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Minutes(1)));
  std::vector<std::string> released = released_.Get();
  std::sort(released.begin(), released.end());
  EXPECT_EQ(released, (std::vector<std::string>{Name(1), Name(3)}));
}

TEST_F(HealTest, AHandleThatEndsWhileItHealsLeavesNothing) {
  const SolverClient client = Connect();
  absl::Notification asking, may_answer, answered;
  std::vector<double> x = {0};
  {
    const FactorHandle handle = Factor(client, {.matrix = [&](size_t) {
                                         asking.Notify();
                                         may_answer.WaitForNotification();
                                         return OwnedSystem{System(kTwo)};
                                       }});
    Lose(v1::HandleNotFound::EVICTED);
    const std::vector<double> b = {8};
    client.SolveAsync(handle, b, x, {}, [&](absl::StatusOr<SolveResult> result) {
      EXPECT_TRUE(absl::IsNotFound(result.status())) << result.status();
      answered.Notify();
    });
    asking.WaitForNotification();
  }
  may_answer.Notify();
  answered.WaitForNotification();
  EXPECT_TRUE(client.AwaitReleases(absl::Minutes(1)));
  EXPECT_EQ(released_.Get().size(), 2);
}

// A restoration gives up the old handle before the server has answered another call on it.
TEST_F(HealTest, ACallThatARestorationHasOvertakenGoesOn) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  absl::Notification arrived, may_answer;
  std::atomic<bool> first = true;
  const auto on_solve = fake_.on_solve.Get();
  fake_.on_solve = [&](grpc::ServerContext* context, const v1::SolveRequest& request,
                       v1::SolveReply* reply) {
    if (!first.exchange(false)) return on_solve(context, request, reply);
    arrived.Notify();
    may_answer.WaitForNotification();
    return NotFound(request.handle(), v1::HandleNotFound::RELEASED);
  };
  absl::StatusOr<double> slow;
  std::thread caller([&] { slow = Solve(client, handle); });
  arrived.WaitForNotification();
  Lose(v1::HandleNotFound::OTHER_SERVER);
  EXPECT_EQ(*Solve(client, handle), 4);
  may_answer.Notify();
  caller.join();
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(*slow, 4);
  EXPECT_EQ(factored(), 2);
}

TEST_F(HealTest, ARestorationAsksForWhatTheLastRefactorAskedFor) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  const auto on_factor = fake_.on_factor.Get();
  Shared<std::vector<v1::FactorOptions>> asked;
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    asked.Append(request.options());
    return on_factor(request, reply);
  };
  ASSERT_TRUE(
      client
          .Refactor(handle, System(kFour), {.keep_matrix = true, .accuracy = Accuracy::kGuaranteed})
          .ok());
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(*Solve(client, handle), 2);
  ASSERT_EQ(asked.Get().size(), 2);
  EXPECT_TRUE(asked.Get()[1].keep_matrix());
  EXPECT_EQ(asked.Get()[1].accuracy(), asked.Get()[0].accuracy());
}

TEST_F(HealTest, ARequestOfASessionIsNotSentAgainForEver) {
  const SolverClient client = Connect();
  const FactorHandle handle =
      Factor(client, {.keep_copy = true, .max_restores = 3, .window = absl::Nanoseconds(1)});
  LoseAll();
  Lose(v1::HandleNotFound::EVICTED);
  SolveSession session = client.OpenSession();
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  const auto id = session.Send(handle, b, x);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(GetHandleNotFound(session.Await(*id, absl::Minutes(1)).status())->reason(),
            v1::HandleNotFound::EVICTED);
  EXPECT_EQ(factored(), 4);
}

TEST_F(HealTest, ACopyOutlivesTheCallersMemory) {
  const SolverClient client = Connect();
  std::vector<double> mine = {2};
  const FactorHandle handle = Factor(client, kCopy, mine.data());
  mine[0] = 1000;
  Lose(v1::HandleNotFound::RESTARTED);
  EXPECT_EQ(*Solve(client, handle), 4);
}

TEST_F(HealTest, ASessionSendsAgainWhatWasNotAnswered) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, kCopy);
  SolveSession session = client.OpenSession();
  std::vector<double> b = {8};
  std::vector<double> x(20, 0);
  const auto send = [&](size_t i) {
    const auto id = session.Send(handle, b, std::span<double>(x).subspan(i, 1));
    ASSERT_TRUE(id.ok()) << id.status();
  };
  const auto take = [&] {
    const auto answer = session.Next(absl::Minutes(1));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->result.ok()) << answer->result.status();
  };
  send(0);
  take();
  Lose(v1::HandleNotFound::EVICTED);  // the stream goes on
  for (size_t i = 1; i < 10; ++i) send(i);
  for (size_t i = 1; i < 10; ++i) take();
  Lose(Draining());  // the stream ends with it
  for (size_t i = 10; i < 20; ++i) send(i);
  for (size_t i = 10; i < 20; ++i) take();
  EXPECT_EQ(x, std::vector<double>(20, 4));
  EXPECT_EQ(factored(), 3);
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(HealTest, ASessionSaysWhereNothingHelps) {
  const SolverClient client = Connect();
  const FactorHandle handle =
      Factor(client, {.matrix = [](size_t) { return absl::AbortedError("no more"); }});
  SolveSession session = client.OpenSession();
  std::vector<double> b = {8}, x = {0};
  Lose(Draining());
  const auto id = session.Send(handle, b, x);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(absl::IsAborted(session.Await(*id, absl::Minutes(1)).status()));
}

}  // namespace
}  // namespace blockd::client
