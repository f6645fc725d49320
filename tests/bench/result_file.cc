#include "tests/bench/result_file.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::bench {
namespace {

// The text behind `key` in the first line of a file that begins with it.
std::string ReadValue(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key))
      return std::string(absl::StripAsciiWhitespace(line.substr(key.size())));
  }
  return "";
}

}  // namespace

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

ResultFile::ResultFile(const Flags& flags, const std::string& hardware)
    : flags_(flags), hardware_(flags.hardware.empty() ? hardware : flags.hardware) {}

ResultFile::~ResultFile() {
  if (flags_.json.empty()) return;
  std::ofstream file(flags_.json);
  const std::string date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  file << "{\n  \"date\": " << Quoted(date) << ",\n  \"hardware\": " << Quoted(hardware_)
       << ",\n  \"command\": " << Quoted(flags_.command)
       << ",\n  \"commit\": " << Quoted(flags_.commit) << ",\n  \"rows\": [\n    "
       << absl::StrJoin(rows_, ",\n    ") << "\n  ]\n}\n";
  if (!file.flush()) {
    std::fprintf(stderr, "cannot write %s\n", flags_.json.c_str());
    std::_Exit(1);
  }
}

std::string DescribeMachine() {
  const std::string model = ReadValue("/proc/cpuinfo", "model name\t:");
  const std::string system =
      absl::StrReplaceAll(ReadValue("/etc/os-release", "PRETTY_NAME="), {{"\"", ""}});
  return absl::StrCat(std::thread::hardware_concurrency(), " x ", model, ", ", system);
}

}  // namespace blockd::bench
