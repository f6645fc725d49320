// The text that blockctl prints: numbers with units, costs, handles, the tables of list and bench.
#include "client/blockctl/text/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "client/blockctl/load/bench_text.h"
#include "client/blockctl/text/accuracy.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"

namespace blockd::blockctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TextTest, BytesHaveTheLargestUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1024), "1.0 KiB");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(1 << 20), "1.0 MiB");
  EXPECT_EQ(BytesText(2.5 * (1 << 30)), "2.5 GiB");
  EXPECT_EQ(BytesText(3.0 * 1024 * (1 << 30)), "3.0 TiB");
  EXPECT_EQ(BytesText(5000.0 * 1024 * (1 << 30)), "5000.0 TiB");
}

TEST(TextTest, SecondsHaveTheUnitOfTheirSize) {
  EXPECT_EQ(SecondsText(0), "0.0 us");
  EXPECT_EQ(SecondsText(12.3e-6), "12.3 us");
  EXPECT_EQ(SecondsText(999.9e-6), "999.9 us");
  EXPECT_EQ(SecondsText(1e-3), "1.00 ms");
  EXPECT_EQ(SecondsText(0.25), "250.00 ms");
  EXPECT_EQ(SecondsText(1), "1.00 s");
  EXPECT_EQ(SecondsText(119.5), "119.50 s");
  EXPECT_EQ(SecondsText(120), "2m");
  EXPECT_EQ(SecondsText(3725.9), "1h2m5s");
}

TEST(TextTest, AProgressLineSaysHowFarAndHowFast) {
  EXPECT_EQ(ProgressLine(512, 1024, absl::Seconds(2)),
            "[###############---------------]  50%  512 B of 1.0 KiB, 256 B/s");
  EXPECT_EQ(ProgressLine(1024, 1024, absl::Seconds(1)),
            "[##############################] 100%  1.0 KiB of 1.0 KiB, 1.0 KiB/s");
  EXPECT_EQ(ProgressLine(0, 1024, absl::Seconds(1)),
            "[------------------------------]   0%  0 B of 1.0 KiB, 0 B/s");
  EXPECT_THAT(ProgressLine(0, 0, absl::ZeroDuration()), HasSubstr("100%"));
}

v1::Cost SomeCost() {
  v1::Cost cost;
  cost.set_queue_seconds(0.5);
  cost.set_batch_requests(2);
  cost.set_batch_items(3);
  cost.set_upload_seconds(4.5);
  cost.set_compute_seconds(5.5);
  cost.set_download_seconds(6.5);
  return cost;
}

TEST(TextTest, ACostNamesItsPhases) {
  EXPECT_EQ(CostText(SomeCost()),
            "queue 500.00 ms, upload 4.50 s, compute 5.50 s, download 6.50 s");
  JsonWriter json;
  WriteCost(SomeCost(), json);
  EXPECT_EQ(json.text(),
            "{\"queue_seconds\": 0.5, \"batch_requests\": 2, \"batch_items\": 3, "
            "\"upload_seconds\": 4.5, \"compute_seconds\": 5.5, \"download_seconds\": 6.5}");
}

TEST(TextTest, ScalarsAreCalledAsNumPyCallsThem) {
  EXPECT_EQ(ScalarText(client::Scalar::kFloat64), "float64");
  EXPECT_EQ(ScalarText(client::Scalar::kFloat32), "float32");
  EXPECT_EQ(ScalarText(v1::FLOAT64), "float64");
  EXPECT_EQ(ScalarText(v1::FLOAT32), "float32");
  EXPECT_EQ(ScalarText(v1::SCALAR_TYPE_UNSPECIFIED), "?");
}

TEST(HandleTextTest, HandlesAreHexadecimal) {
  const std::string handle("\x00\x7f\xff\xa1", 4);
  EXPECT_EQ(HandleText(handle), "007fffa1");
  EXPECT_EQ(ParseHandle("007fffa1")->handle, handle);
  EXPECT_EQ(ParseHandle("007FFFA1")->handle, handle);
  EXPECT_EQ(ParseHandle("007fffa1")->route, "");
  for (const std::string wrong :
       {"", "0", "007", "0g", "00 7f", "0x00", "@", "00@", "@cm91dGU=", "00@a b", "00@\x01"}) {
    EXPECT_EQ(ExitCodeOf(ParseHandle(wrong).status()), kUsage) << wrong;
  }
}

v1::FactorizationInfo SomeInfo() {
  v1::FactorizationInfo info;
  info.set_handle("\x01\x02");
  info.set_num_blocks(10);
  info.set_block_size(4);
  info.set_scalar(v1::FLOAT32);
  info.set_held_bytes(2048);
  info.set_age_seconds(5);
  info.set_idle_seconds(0.5);
  info.set_lease_seconds(60);
  info.set_times_solved(7);
  info.set_rhs_solved(21);
  return info;
}

TEST(HandleTextTest, ARouteFollowsItsHandle) {
  EXPECT_EQ(HandleText("\x01\x02", "cm91dGU="), "0102@cm91dGU=");
  const absl::StatusOr<RoutedHandle> parsed = ParseHandle("0102@a@b");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->handle, "\x01\x02");
  EXPECT_EQ(parsed->route, "a@b");
  EXPECT_THAT(HandleTable({SomeInfo()}, "cm91dGU="), HasSubstr("\n0102@cm91dGU= "));
}

TEST(HandleTextTest, PaddingFollowsItsHandle) {
  EXPECT_EQ(HandleText("\x01\x02", "", 3), "0102+3");
  EXPECT_EQ(HandleText("\x01\x02", "a+b", 3), "0102+3@a+b");
  for (const std::string text : {"0102+3", "0102+3@a+b"}) {
    const absl::StatusOr<RoutedHandle> parsed = ParseHandle(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->handle, "\x01\x02");
    EXPECT_EQ(parsed->padding, 3);
    EXPECT_EQ(HandleText(parsed->handle, parsed->route, parsed->padding), text);
  }
  EXPECT_EQ(ParseHandle("0102@a+b")->padding, 0);
  for (const std::string wrong : {"0102+", "0102+0", "0102+-1", "0102+x", "+3", "0102+3+4",
                                  "0102+99999999999999999999", "0102+3@"}) {
    EXPECT_EQ(ExitCodeOf(ParseHandle(wrong).status()), kUsage) << wrong;
  }
}

TEST(HandleTextTest, TheTableHasALineAHandle) {
  EXPECT_EQ(HandleTable({}), "");
  v1::FactorizationInfo plain = SomeInfo(), noted = SomeInfo();
  noted.set_lease_seconds(0);
  noted.set_pinned(true);
  noted.set_matrix_kept(true);
  noted.set_times_refactored(3);
  const std::string table = HandleTable({plain, noted});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_EQ(table.rfind("HANDLE", 0), 0);
  EXPECT_THAT(table, HasSubstr("      10      4 float32    2.0 KiB    5.00 s 500.00 ms   60.00 s"
                               "        7       21\n"));
  EXPECT_THAT(table, HasSubstr("         -        7       21 pinned matrix-kept refactored:3\n"));
}

TEST(HandleTextTest, JsonHasEveryField) {
  v1::FactorizationInfo info = SomeInfo();
  info.set_pinned(true);
  info.set_times_refactored(3);
  info.set_growth(1.5);
  info.set_backward_error_bound(2.5);
  info.set_condition_estimate(3.5);
  JsonWriter json;
  WriteHandle(info, "", json);
  for (const char* field :
       {"\"handle\": \"0102\"", "\"num_blocks\": 10", "\"block_size\": 4",
        "\"scalar\": \"float32\"", "\"held_bytes\": 2048", "\"matrix_kept\": false",
        "\"pinned\": true", "\"age_seconds\": 5", "\"idle_seconds\": 0.5", "\"lease_seconds\": 60",
        "\"times_solved\": 7", "\"rhs_solved\": 21", "\"times_refactored\": 3", "\"growth\": 1.5",
        "\"backward_error_bound\": 2.5", "\"condition_estimate\": 3.5"}) {
    EXPECT_THAT(json.text(), HasSubstr(field));
  }
}

TEST(AccuracyTest, TextSaysWhatIsKnown) {
  client::Conditioning conditioning{.growth = 3.14159, .backward_error_bound = 7.1e-15};
  EXPECT_EQ(ConditioningText(conditioning), "growth 3.14, backward errors of at most 7.1e-15");
  conditioning.matrix_kept = true;
  conditioning.condition_estimate = 12345;
  EXPECT_EQ(ConditioningText(conditioning),
            "growth 3.14, backward errors of at most 7.1e-15 before refinement, condition number "
            "about 1.23e+04");
  JsonWriter json;
  json.BeginObject();
  WriteConditioning({.growth = 2, .backward_error_bound = 0.5}, json);
  EXPECT_EQ(json.EndObject().text(), "{\"growth\": 2, \"backward_error_bound\": 0.5}");
}

const BenchTitle kTitle = {.problem = "mpc",
                           .num_blocks = 32,
                           .block_size = 8,
                           .num_rhs = 2,
                           .connections = 3,
                           .handles = 1,
                           .operations = {"factor", "solve", "refactor"}};

// Ten solves in two seconds, a factor that failed, no refactor.
LoadReport SomeReport() {
  LoadReport report;
  report.seconds = 2;
  report.operations.resize(3);
  report.operations[0].failed[absl::StatusCode::kUnavailable] = 3;
  report.operations[0].failed[absl::StatusCode::kAborted] = 1;
  report.operations[0].first_error = absl::UnavailableError("full");
  OperationReport& solve = report.operations[1];
  solve.succeeded = 10;
  for (int k = 1; k <= 10; ++k) {
    solve.latency.Add(k);
    solve.queue.Add(20);
    solve.upload.Add(30);
    solve.compute.Add(40);
    solve.download.Add(50);
  }
  solve.batch_requests = 2.5;
  return report;
}

TEST(BenchTextTest, TheTableHasRatesFailuresAndPhases) {
  const LoadOptions closed{.callers = 4};
  const std::string table = BenchTable(kTitle, closed, SomeReport());
  EXPECT_THAT(table, HasSubstr("closed loop, 4 callers on 3 connections, 1 handle of mpc N=32 n=8 "
                               "d=2, 2.00 s\n"));
  EXPECT_THAT(table, HasSubstr("\nfactor: 0.0/s (0 in all, 4 failed)\n"));
  EXPECT_THAT(table, HasSubstr("  failed with UNAVAILABLE: 3\n"));
  EXPECT_THAT(table, HasSubstr("  failed with ABORTED: 1\n"));
  EXPECT_THAT(table, HasSubstr("  the first: full\n"));
  EXPECT_THAT(table, HasSubstr("\nsolve: 5.0/s (10 in all, 0 failed)\n"));
  EXPECT_THAT(table, HasSubstr("  server: 2.5 requests a batch on average\n"));
  EXPECT_THAT(table, Not(HasSubstr("refactor")));
  EXPECT_THAT(table, Not(HasSubstr("arrivals")));
  // Every row has its own histogram, its percentiles in order.
  EXPECT_THAT(table, ::testing::ContainsRegex("latency +[45]\\.[0-9]+ s +(8\\.9|9\\.0)[0-9] s "
                                              "+10\\.00 s +10\\.00 s +10\\.00 s"));
  EXPECT_THAT(table, ::testing::ContainsRegex("server: queue +[12][09]\\.[0-9]+ s"));
  EXPECT_THAT(table, ::testing::ContainsRegex("server: upload +[23][09]\\.[0-9]+ s"));
  EXPECT_THAT(table, ::testing::ContainsRegex("server: compute +[34][09]\\.[0-9]+ s"));
  EXPECT_THAT(table, ::testing::ContainsRegex("server: download +[45][09]\\.[0-9]+ s"));
}

TEST(BenchTextTest, AnOpenLoopSaysWhatItCouldNotStart) {
  LoadReport report = SomeReport();
  report.not_started = 12;
  const LoadOptions open{.callers = 1, .rate = 200};
  const std::string table = BenchTable(kTitle, open, report);
  EXPECT_THAT(table, HasSubstr("open (200/s) loop, 1 caller on"));
  EXPECT_THAT(table, HasSubstr("\n12 arrivals were due and not started"));
}

TEST(BenchTextTest, JsonHasEveryField) {
  LoadReport report = SomeReport();
  report.not_started = 12;
  const std::string json = BenchJson(kTitle, {.callers = 4, .rate = 7}, report);
  for (const char* field :
       {"\"problem\": \"mpc\"",
        "\"num_blocks\": 32",
        "\"block_size\": 8",
        "\"num_rhs\": 2",
        "\"callers\": 4",
        "\"connections\": 3",
        "\"handles\": 1",
        "\"rate\": 7",
        "\"seconds\": 2",
        "\"not_started\": 12",
        "\"factor\": {\"succeeded\": 0, \"failed\": 4, \"per_second\": 0",
        "\"errors\": {\"ABORTED\": 1, \"UNAVAILABLE\": 3}",
        "\"solve\": {\"succeeded\": 10, \"failed\": 0, \"per_second\": 5, \"errors\": {}",
        "\"latency_seconds\": {\"mean\": 5.5, \"p50\": ",
        "\"max\": 10}",
        "\"queue_seconds\": {\"mean\": 20, ",
        "\"upload_seconds\": {\"mean\": 30, ",
        "\"compute_seconds\": {\"mean\": 40, ",
        "\"download_seconds\": {\"mean\": 50, ",
        "\"batch_requests\": 2.5}"}) {
    EXPECT_THAT(json, HasSubstr(field));
  }
  EXPECT_THAT(json, Not(HasSubstr("refactor")));
  // p50 to p99.9, each above the one before or equal.
  double last = 0;
  for (const char* name : {"\"p50\": ", "\"p90\": ", "\"p99\": ", "\"p99.9\": "}) {
    const size_t at = json.find(name, json.find("\"solve\""));
    ASSERT_NE(at, std::string::npos);
    const double value = std::stod(json.substr(at + std::string(name).size()));
    EXPECT_GE(value, last) << name;
    last = value;
  }
  EXPECT_EQ(last, 10);
}

}  // namespace
}  // namespace blockd::blockctl
