// Numbers in a text, line by line, as Matrix Market files have them.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_NUMBER_LINES_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_NUMBER_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace blockd::blockctl {

// Reads numbers and knows in which line it is. A byte order mark before the text is skipped.
class NumberLines {
 public:
  explicit NumberLines(std::string_view text);

  // The next line that is neither empty nor a comment, which begins with %; false at the end.
  bool Next();
  // The next line of any kind.
  bool NextRaw();
  // The rest of the line.
  std::string_view line() const { return line_; }
  int64_t number() const { return number_; }

  // The next number of this line; false where there is none. An exponent may be that of a Fortran
  // number. A double that is too small is 0, one that is too large is none.
  bool Take(int64_t* value);
  bool Take(double* value);
  // No number is left in this line.
  bool AtEnd();

  // INVALID_ARGUMENT with the number of the line.
  absl::Status Bad(const std::string& what) const;

 private:
  void SkipBlanks();
  void SkipSign();
  bool SkipTo(const char* end);
  bool TakeFortran(size_t exponent, double* value);

  std::string_view rest_;
  std::string_view line_;
  int64_t number_ = 0;
};

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_NUMBER_LINES_H_
