// blockctl: blockd from the command line. `blockctl help` says what it can do.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "client/blockctl/command.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

namespace blockd::blockctl {
namespace {

const std::vector<Command>& Commands() {
  static const auto& commands = *new std::vector<Command>{
      FactorCommand(), SolveCommand(), RefactorCommand(), ReleaseCommand(),
      ListCommand(),   InfoCommand(),  PlanCommand(),     SmoothCommand(),
      DemoCommand(),   BenchCommand(), AdminCommand()};
  return commands;
}

const Command* Find(std::string_view name) {
  for (const Command& command : Commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

// The text in lines of at most 88 characters, each after `indent`.
std::string Wrap(absl::string_view text, const std::string& indent) {
  std::string wrapped;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column + word.size() > 88 || column == 0) {
      absl::StrAppend(&wrapped, column == 0 ? "" : "\n", indent, word);
      column = indent.size() + word.size();
    } else {
      absl::StrAppend(&wrapped, " ", word);
      column += 1 + word.size();
    }
  }
  return wrapped;
}

std::string FlagsHelp(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) {
    const absl::CommandLineFlag* flag =
        absl::FindCommandLineFlag(absl::string_view(name.data(), name.size()));
    if (flag == nullptr) continue;
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&text, "  --", flag->Name(),
                    value.empty() ? "" : absl::StrCat(" [", value, "]"), "\n",
                    Wrap(flag->Help(), "      "), "\n");
  }
  return text;
}

std::string Overview() {
  std::string text =
      "blockctl talks to blockd, a solver server for symmetric positive definite\n"
      "block-tridiagonal systems.\n\nUsage: blockctl COMMAND [FLAGS]\n\nCommands:\n";
  for (const Command& command : Commands()) {
    absl::StrAppendFormat(&text, "  %-9s %s\n", std::string(command.name),
                          std::string(command.summary));
  }
  absl::StrAppend(&text, "  help      Say what a command does: blockctl help COMMAND\n",
                  "  --version\n\n", "Flags of every command:\n", FlagsHelp(CommonFlags()),
                  "\nExit status:\n", std::string(kExitCodes), "\n");
  return text;
}

std::string Help(const Command& command) {
  std::string common;
  for (const std::string_view name : CommonFlags()) {
    absl::StrAppend(&common, common.empty() ? "--" : " --", std::string(name));
  }
  return absl::StrCat("Usage: blockctl ", std::string(command.name), " [FLAGS]",
                      command.arguments.empty() ? "" : " ", std::string(command.arguments), "\n\n",
                      std::string(command.summary), "\n", std::string(command.description),
                      command.flags.empty() ? "" : "\nFlags:\n", FlagsHelp(command.flags),
                      "\nFlags of every command (see blockctl help):\n", Wrap(common, "  "), "\n");
}

bool IsHelp(std::string_view word) {
  return word == "--help" || word == "-help" || word == "-h" || word == "-?";
}

// The flags that stand on the command line, without their values.
std::vector<std::string> FlagsGiven(int argc, char** argv) {
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (!word.starts_with('-') || word.size() < 2) continue;
    std::string name(word.substr(word.find_first_not_of('-')));
    name.resize(std::min(name.find('='), name.size()));
    if (name.starts_with("no") && absl::FindCommandLineFlag(name) == nullptr &&
        absl::FindCommandLineFlag(name.substr(2)) != nullptr) {
      name.erase(0, 2);  // --noquiet
    }
    names.push_back(name);
  }
  return names;
}

// Abseil's own answer ends the program without saying where to look.
absl::Status CheckKnown(const std::vector<std::string>& given) {
  for (const std::string& name : given) {
    if (absl::FindCommandLineFlag(name) == nullptr) {
      return UsageError(absl::StrCat("--", name, ": no command has such a flag"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFlags(const Command& command, const std::vector<std::string>& given) {
  for (const std::string& name : given) {
    if (std::ranges::find(CommonFlags(), name) == CommonFlags().end() &&
        std::ranges::find(command.flags, name) == command.flags.end()) {
      return UsageError(absl::StrCat("--", name, " is no flag of `blockctl ",
                                     std::string(command.name), "`; see `blockctl help ",
                                     std::string(command.name), "`"));
    }
  }
  return absl::OkStatus();
}

void WriteDetails(const absl::Status& status, JsonWriter& json) {
  if (const auto spd = client::GetNotPositiveDefinite(status)) {
    json.Field("system", spd->system()).Field("block", spd->block()).Field("row", spd->row());
    json.Field("minor", spd->minor()).Field("elimination_order", spd->elimination_order());
  }
  if (const auto singular = client::GetSingularCovariance(status)) {
    json.Field("matrix", singular->matrix()).Field("step", singular->step());
    json.Field("row", singular->row());
  }
  if (const auto why = client::GetNotSmoothable(status)) {
    json.Field("reason", v1::NotSmoothable::Reason_Name(why->reason()));
    json.Field("form", v1::SmoothForm_Name(why->form()));
    json.Field("system", why->system()).Field("step", why->step()).Field("row", why->row());
    json.Field("directions", why->directions()).Field("means_error", why->means_error());
    json.Field("variances_error", why->variances_error());
    json.Field("log_likelihood_error", why->log_likelihood_error());
  }
  if (const auto field = client::GetInvalidField(status)) {
    json.Field("field", field->field()).Field("came", field->came());
    json.Field("expected", field->expected());
  }
  if (const auto handle = client::GetHandleNotFound(status)) {
    json.Field("handle", HandleText(handle->handle()));
    json.Field("reason", v1::HandleNotFound::Reason_Name(handle->reason()));
  }
  if (const auto memory = client::GetInsufficientMemory(status)) {
    json.Field("asked_bytes", memory->asked_bytes()).Field("free_bytes", memory->free_bytes());
    json.Field("evictable_bytes", memory->evictable_bytes());
    json.Field("total_bytes", memory->total_bytes());
  }
  if (const auto quota = client::GetQuotaExceeded(status)) {
    json.Field("quota", quota->quota()).Field("limit", quota->limit());
    json.Field("used", quota->used()).Field("asked", quota->asked());
    json.Field("tenant", quota->tenant());
  }
  if (const auto delay = client::GetRetryAfter(status)) {
    json.Field("retry_after_seconds", absl::ToDoubleSeconds(*delay));
  }
}

int Report(const absl::Status& status) {
  const ExitCode code = ExitCodeOf(status);
  if (code == kSuccess) return code;
  const std::string advice = Advice(status, ServerFlag());
  // Some say nothing but their code.
  const std::string message = status.message().empty() ? absl::StatusCodeToString(status.code())
                                                       : std::string(status.message());
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Key("error").BeginObject();
    json.Field("code", absl::StatusCodeToString(status.code()));
    json.Field("exit_status", static_cast<int>(code));
    json.Field("message", message);
    WriteDetails(status, json);
    json.EndObject().EndObject();
    Print(json.text() + "\n");
  }
  std::fprintf(stderr, "blockctl: %s\n", message.c_str());
  if (!advice.empty()) std::fprintf(stderr, "  %s\n", advice.c_str());
  return code;
}

absl::Status Run(int argc, char** argv) {
  std::vector<char*> kept;
  bool help = false;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--version") {
      Print("blockctl " BLOCKD_VERSION "\n");
      return absl::OkStatus();
    }
    if (i > 0 && IsHelp(word)) {
      help = true;
    } else {
      kept.push_back(argv[i]);
    }
  }
  const std::vector<std::string> given = FlagsGiven(static_cast<int>(kept.size()), kept.data());
  if (absl::Status status = CheckKnown(given); !status.ok()) return status;
  const std::vector<char*> words =
      absl::ParseCommandLine(static_cast<int>(kept.size()), kept.data());
  std::vector<std::string> arguments(words.begin() + 1, words.end());
  if (!arguments.empty() && arguments[0] == "help") {
    help = true;
    arguments.erase(arguments.begin());
  }
  if (arguments.empty()) {
    if (!help) return UsageError("no command");
    Print(Overview());
    return absl::OkStatus();
  }
  const Command* command = Find(arguments[0]);
  if (command == nullptr) return UsageError(absl::StrCat("no command \"", arguments[0], "\""));
  if (help) {
    Print(Help(*command));
    return absl::OkStatus();
  }
  if (absl::Status status = CheckFlags(*command, given); !status.ok()) return status;
  arguments.erase(arguments.begin());
  return command->run(arguments);
}

}  // namespace
}  // namespace blockd::blockctl

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // its log is not for this program's users
  std::signal(SIGPIPE, SIG_DFL);        // `blockctl list | head` ends quietly
  absl::SetProgramUsageMessage("see blockctl help");
  const absl::Status status = blockd::blockctl::Run(argc, argv);
  const int code = blockd::blockctl::Report(status);
  if (std::fflush(stdout) != 0) {
    std::perror("blockctl: standard output");
    return blockd::blockctl::kInvalidInput;
  }
  return code;
}
