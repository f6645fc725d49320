#include "tests/soak/tally.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"

namespace blockd::soak {

void Tally::Add(const std::string& what, const grpc::Status& status,
                std::initializer_list<grpc::StatusCode> allowed, const std::string& wrong) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  const std::string kind = KindOf(status);
  const bool as_allowed = status.ok() || std::find(allowed.begin(), allowed.end(),
                                                   status.error_code()) != allowed.end();
  const absl::MutexLock lock(&mutex_);
  ++requests_;
  ++counts_[what][kind.empty() ? code : absl::StrCat(code, " (", kind, ")")];
  if (as_allowed && wrong.empty()) return;
  if (++wrong_ <= 20) {
    std::fprintf(stderr, "wrong: %s: %s %s %s: %s\n", what.c_str(), code.c_str(), kind.c_str(),
                 status.error_message().c_str(), wrong.c_str());
  }
}

int64_t Tally::requests() const {
  const absl::MutexLock lock(&mutex_);
  return requests_;
}

int64_t Tally::wrong() const {
  const absl::MutexLock lock(&mutex_);
  return wrong_;
}

std::string Tally::Table() const {
  const absl::MutexLock lock(&mutex_);
  std::string table = "| request | answers |\n| --- | --- |\n";
  for (const auto& [what, codes] : counts_) {
    std::string answers;
    for (const auto& [code, count] : codes) {
      absl::StrAppend(&answers, answers.empty() ? "" : ", ", count, " ", code);
    }
    absl::StrAppend(&table, "| ", what, " | ", answers, " |\n");
  }
  return table;
}

std::string KindOf(const grpc::Status& status) {
  if (status.ok()) return "";
  const absl::Status ours = client::MakeStatus(static_cast<absl::StatusCode>(status.error_code()),
                                               status.error_message(), status.error_details());
  if (const auto quota = client::GetQuotaExceeded(ours)) return "quota " + quota->quota();
  if (client::GetInsufficientMemory(ours)) return "memory";
  if (client::GetLimitExceeded(ours)) return "limit";
  if (const auto missing = client::GetHandleNotFound(ours)) {
    return v1::HandleNotFound::Reason_Name(missing->reason());
  }
  if (client::GetNotPositiveDefinite(ours)) return "not SPD";
  if (client::GetInvalidField(ours)) return "field";
  if (client::GetDeadlineUnreachable(ours)) return "unreachable";
  if (client::GetRetryAfter(ours)) return "retry";
  return "";
}

}  // namespace blockd::soak
