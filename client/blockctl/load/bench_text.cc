#include "client/blockctl/load/bench_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/text/json.h"
#include "client/blockctl/text/text.h"

namespace blockd::blockctl {
namespace {

int64_t Failed(const OperationReport& operation) {
  int64_t failed = 0;
  for (const auto& [code, count] : operation.failed) failed += count;
  return failed;
}

using Phase = std::pair<const char*, const Histogram*>;
std::vector<Phase> Phases(const OperationReport& operation) {
  return {{"queue", &operation.queue},
          {"upload", &operation.upload},
          {"compute", &operation.compute},
          {"download", &operation.download}};
}

void WriteHistogram(const Histogram& histogram, JsonWriter& json) {
  json.BeginObject().Field("mean", histogram.mean()).Field("p50", histogram.Percentile(0.5));
  json.Field("p90", histogram.Percentile(0.9)).Field("p99", histogram.Percentile(0.99));
  json.Field("p99.9", histogram.Percentile(0.999)).Field("max", histogram.max()).EndObject();
}

std::string HistogramRow(const std::string& name, const Histogram& h) {
  return absl::StrFormat("  %-22s %11s %11s %11s %11s %11s\n", name, SecondsText(h.Percentile(0.5)),
                         SecondsText(h.Percentile(0.9)), SecondsText(h.Percentile(0.99)),
                         SecondsText(h.Percentile(0.999)), SecondsText(h.max()));
}

bool WasRun(const OperationReport& operation) {
  return operation.succeeded > 0 || !operation.failed.empty();
}

}  // namespace

std::string BenchTable(const BenchTitle& title, const LoadOptions& options,
                       const LoadReport& report) {
  std::string text = absl::StrFormat(
      "%s loop, %d caller%s on %d connection%s, %d handle%s of %s N=%d n=%d d=%d%s, %.2f s\n",
      options.rate > 0 ? absl::StrFormat("open (%g/s)", options.rate) : "closed", options.callers,
      options.callers == 1 ? "" : "s", title.connections, title.connections == 1 ? "" : "s",
      title.handles, title.handles == 1 ? "" : "s", title.problem, title.num_blocks,
      title.block_size, title.num_rhs,
      title.frames > 0 ? absl::StrCat(", ", title.frames, " solves a message") : "",
      report.seconds);
  for (size_t k = 0; k < report.operations.size(); ++k) {
    const OperationReport& operation = report.operations[k];
    if (!WasRun(operation)) continue;
    absl::StrAppendFormat(&text, "\n%s: %.1f/s (%d in all, %d failed)\n", title.operations[k],
                          static_cast<double>(operation.succeeded) / report.seconds,
                          operation.succeeded, Failed(operation));
    for (const auto& [code, count] : operation.failed) {
      absl::StrAppend(&text, "  failed with ", absl::StatusCodeToString(code), ": ", count, "\n");
    }
    if (!operation.first_error.ok()) {
      absl::StrAppend(&text, "  the first: ", std::string(operation.first_error.message()), "\n");
    }
    absl::StrAppendFormat(&text, "  %-22s %11s %11s %11s %11s %11s\n", "", "p50", "p90", "p99",
                          "p99.9", "max");
    text += HistogramRow("latency", operation.latency);
    if (operation.batch_requests == 0) continue;  // an empty call has no phases
    for (const auto& [name, histogram] : Phases(operation)) {
      text += HistogramRow(absl::StrCat("server: ", name), *histogram);
    }
    absl::StrAppendFormat(&text, "  server: %.1f requests a batch on average\n",
                          operation.batch_requests);
  }
  if (report.not_started > 0) {
    absl::StrAppendFormat(
        &text,
        "\n%d arrivals were due and not started: the server, or --callers, is too "
        "few for this --rate\n",
        report.not_started);
  }
  return text;
}

std::string BenchJson(const BenchTitle& title, const LoadOptions& options,
                      const LoadReport& report) {
  JsonWriter json;
  json.BeginObject().Field("problem", title.problem).Field("num_blocks", title.num_blocks);
  json.Field("block_size", title.block_size).Field("num_rhs", title.num_rhs);
  json.Field("callers", options.callers).Field("connections", title.connections);
  json.Field("handles", title.handles).Field("frames", title.frames).Field("rate", options.rate);
  json.Field("seconds", report.seconds).Field("not_started", report.not_started);
  json.Key("operations").BeginObject();
  for (size_t k = 0; k < report.operations.size(); ++k) {
    const OperationReport& operation = report.operations[k];
    if (!WasRun(operation)) continue;
    json.Key(title.operations[k]).BeginObject();
    json.Field("succeeded", operation.succeeded).Field("failed", Failed(operation));
    json.Field("per_second", static_cast<double>(operation.succeeded) / report.seconds);
    json.Key("errors").BeginObject();
    for (const auto& [code, count] : operation.failed) {
      json.Field(absl::StatusCodeToString(code), count);
    }
    json.EndObject().Key("latency_seconds");
    WriteHistogram(operation.latency, json);
    for (const auto& [name, histogram] : Phases(operation)) {
      json.Key(absl::StrCat(name, "_seconds"));
      WriteHistogram(*histogram, json);
    }
    json.Field("batch_requests", operation.batch_requests).EndObject();
  }
  return json.EndObject().EndObject().text() + "\n";
}

}  // namespace blockd::blockctl
