#include "client/blockctl/text/handle_table.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/blockctl/text/accuracy.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/text.h"

namespace blockd::blockctl {
namespace {

constexpr size_t kMaxRouteBytes = 1024;

std::string Notes(const v1::FactorizationInfo& info) {
  std::string notes;
  if (info.pinned()) notes += " pinned";
  if (info.matrix_kept()) notes += " matrix-kept";
  if (info.times_refactored() > 0) absl::StrAppend(&notes, " refactored:", info.times_refactored());
  if (info.arrow_size() > 0) absl::StrAppend(&notes, " arrow:", info.arrow_size());
  if (info.device() > 0) absl::StrAppend(&notes, " device:", info.device());
  return notes;
}

client::Conditioning ConditioningOf(const v1::FactorizationInfo& info) {
  client::Conditioning conditioning;
  conditioning.growth = info.growth();
  if (info.has_condition_estimate()) conditioning.condition_estimate = info.condition_estimate();
  conditioning.backward_error_bound = info.backward_error_bound();
  conditioning.matrix_kept = info.matrix_kept();
  return conditioning;
}

}  // namespace

std::string HandleText(const std::string& handle, const std::string& route, int64_t padding) {
  return absl::StrCat(absl::BytesToHexString(handle),
                      padding == 0 ? "" : absl::StrCat("+", padding), route.empty() ? "" : "@",
                      route);
}

absl::StatusOr<RoutedHandle> ParseHandle(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  const auto& [name, route] = parts;
  const std::pair<std::string, std::string> padded = absl::StrSplit(name, absl::MaxSplits('+', 1));
  const auto& [hex, rows] = padded;
  int64_t padding = 0;
  bool valid = !hex.empty() && hex.size() % 2 == 0 && route.size() <= kMaxRouteBytes;
  for (const char c : hex) valid = valid && absl::ascii_isxdigit(c);
  for (const char c : route) valid = valid && absl::ascii_isgraph(c);
  if (text.find('@') != std::string::npos && route.empty()) valid = false;
  if (name.find('+') != std::string::npos) {
    valid = valid && absl::SimpleAtoi(rows, &padding) && padding > 0;
  }
  if (!valid) {
    return UsageError(
        absl::StrCat("\"", text,
                     "\" is no handle: expected hexadecimal digits, with +ROWS or "
                     "@ROUTE or both, as `blockctl factor` and `blockctl list` print them"));
  }
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    uint32_t byte = 0;
    if (absl::SimpleHexAtoi(absl::string_view(hex).substr(i, 2), &byte)) {
      bytes.push_back(static_cast<char>(byte));
    }
  }
  return RoutedHandle{bytes, route, padding};
}

std::string HandleHeading() {
  return absl::StrFormat("%-48s %7s %6s %-7s %10s %9s %9s %9s %8s %8s\n", "HANDLE", "N", "n",
                         "SCALAR", "HELD", "AGE", "IDLE", "LEASE", "SOLVES", "RHS");
}

std::string HandleLine(const v1::FactorizationInfo& info, const std::string& route) {
  return absl::StrFormat("%-48s %7d %6d %-7s %10s %9s %9s %9s %8d %8d%s\n",
                         HandleText(info.handle(), route), info.num_blocks(), info.block_size(),
                         ScalarText(info.scalar()),
                         BytesText(static_cast<double>(info.held_bytes())),
                         SecondsText(info.age_seconds()), SecondsText(info.idle_seconds()),
                         info.lease_seconds() > 0 ? SecondsText(info.lease_seconds()) : "-",
                         info.times_solved(), info.rhs_solved(), Notes(info));
}

std::string HandleTable(const std::vector<v1::FactorizationInfo>& infos, const std::string& route) {
  if (infos.empty()) return "";
  std::string text = HandleHeading();
  for (const v1::FactorizationInfo& info : infos) absl::StrAppend(&text, HandleLine(info, route));
  return text;
}

void WriteHandle(const v1::FactorizationInfo& info, const std::string& route, JsonWriter& json) {
  json.BeginObject();
  WriteHandleFields(info, route, json);
  json.EndObject();
}

void WriteHandleFields(const v1::FactorizationInfo& info, const std::string& route,
                       JsonWriter& json) {
  json.Field("handle", HandleText(info.handle(), route));
  json.Field("num_blocks", info.num_blocks()).Field("block_size", info.block_size());
  json.Field("arrow_size", info.arrow_size());
  json.Field("scalar", ScalarText(info.scalar())).Field("held_bytes", info.held_bytes());
  json.Field("matrix_kept", info.matrix_kept()).Field("pinned", info.pinned());
  WriteConditioning(ConditioningOf(info), json);
  json.Field("age_seconds", info.age_seconds()).Field("idle_seconds", info.idle_seconds());
  json.Field("lease_seconds", info.lease_seconds()).Field("times_solved", info.times_solved());
  json.Field("rhs_solved", info.rhs_solved());
  json.Field("times_refactored", info.times_refactored()).Field("device", info.device());
}

}  // namespace blockd::blockctl
