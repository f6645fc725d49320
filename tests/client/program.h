// Runs programs as a shell would and keeps what they wrote.
#ifndef BLOCKD_TESTS_CLIENT_PROGRAM_H_
#define BLOCKD_TESTS_CLIENT_PROGRAM_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace blockd::blockctl {

struct Outcome {
  int exit_status = -1;  // 128 + the signal, if one ended it
  std::string out;
  std::string err;
};

// A program under way. Not thread-safe; killed if it is not awaited.
class RunningProgram {
 public:
  RunningProgram(const std::string& program, const std::vector<std::string>& arguments);
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();

  void Signal(int signal) const;
  bool Ended() const;
  // True if it handles the signal itself, as the kernel says; false once it has ended.
  bool Catches(int signal) const;
  Outcome Await();

 private:
  pid_t pid_ = -1;
  std::string out_, err_;  // files
};

Outcome RunProgram(const std::string& program, const std::vector<std::string>& arguments);

// Looks every few milliseconds until `condition` is met; false if it was not within two minutes.
bool Eventually(const std::function<bool()>& condition);

}  // namespace blockd::blockctl

#endif  // BLOCKD_TESTS_CLIENT_PROGRAM_H_
