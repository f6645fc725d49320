#include "client/blockctl/matrix_market.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/blockctl/files.h"

namespace blockd::blockctl {
namespace {

// Relative to the larger of the two; what writing 10 decimal digits may do to equal numbers.
constexpr double kSymmetryTolerance = 1e-9;

// Reads numbers line by line and knows where it is.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  // The next line that is neither empty nor a comment; false at the end.
  bool Next() {
    while (NextRaw()) {
      if (line_.empty() || line_[0] == '%') continue;
      if (line_.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
    return false;
  }
  bool NextRaw() {
    if (rest_.empty()) return false;
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    return true;
  }
  std::string_view line() const { return line_; }

  // The next number of this line.
  template <typename T>
  bool Take(T* value) {
    const size_t begin = std::min(line_.find_first_not_of(" \t\r"), line_.size());
    line_.remove_prefix(begin);
    if (!line_.empty() && line_[0] == '+') line_.remove_prefix(1);
    const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), *value);
    if (error != std::errc() || end == line_.data()) return false;
    line_.remove_prefix(end - line_.data());
    return line_.empty() || absl::ascii_isspace(line_[0]);
  }
  bool AtEnd() const { return line_.find_first_not_of(" \t\r") == std::string_view::npos; }

  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", number_, ": ", what));
  }

 private:
  std::string_view rest_;
  std::string_view line_;
  int64_t number_ = 0;
};

struct Banner {
  bool coordinate = false;
  bool symmetric = false;
};

absl::StatusOr<Banner> ReadBanner(Lines& lines) {
  if (!lines.NextRaw()) return lines.Bad("the file is empty");
  const std::vector<std::string> words = absl::StrSplit(
      absl::AsciiStrToLower(absl::string_view(lines.line().data(), lines.line().size())),
      absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() < 5 || words[0] != "%%matrixmarket" || words[1] != "matrix") {
    return lines.Bad("expected `%%MatrixMarket matrix FORMAT FIELD SYMMETRY`");
  }
  if (words[2] != "coordinate" && words[2] != "array") {
    return lines.Bad(absl::StrCat("format ", words[2], ", expected coordinate or array"));
  }
  if (words[3] != "real" && words[3] != "integer" && words[3] != "double") {
    return lines.Bad(absl::StrCat("field ", words[3], ", expected real or integer"));
  }
  if (words[4] != "general" && words[4] != "symmetric") {
    return lines.Bad(absl::StrCat("symmetry ", words[4], ", expected general or symmetric"));
  }
  return Banner{words[2] == "coordinate", words[4] == "symmetric"};
}

bool Before(const Entry& a, const Entry& b) {
  return a.column != b.column ? a.column < b.column : a.row < b.row;
}

// Sorts by column and row and adds up entries of one place.
void SortAndSum(std::vector<Entry>& entries) {
  std::sort(entries.begin(), entries.end(), Before);
  size_t kept = 0;
  for (const Entry& entry : entries) {
    if (kept > 0 && !Before(entries[kept - 1], entry)) {
      entries[kept - 1].value += entry.value;
    } else {
      entries[kept++] = entry;
    }
  }
  entries.resize(kept);
}

// OK if the entry and the one across the diagonal are equal, as far as written digits go.
absl::Status CheckPair(int64_t row, int64_t column, double value, double across) {
  if (std::abs(value - across) <=
      kSymmetryTolerance * std::max(std::abs(value), std::abs(across))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("not symmetric: entry (", row + 1, ", ",
                                                 column + 1, ") is ", value, ", (", column + 1,
                                                 ", ", row + 1, ") is ", across));
}

// The lower triangle of a matrix given in full, which must equal the upper one.
absl::Status KeepLower(std::vector<Entry>& entries) {
  std::vector<Entry> lower, mirrored;
  for (const Entry& e : entries) {
    if (e.row >= e.column) lower.push_back(e);
    if (e.row < e.column) mirrored.push_back({e.column, e.row, e.value});
  }
  SortAndSum(lower);
  SortAndSum(mirrored);
  size_t m = 0;
  for (const Entry& e : lower) {
    if (e.row == e.column) continue;
    for (; m < mirrored.size() && Before(mirrored[m], e); ++m) {
      const Entry& alone = mirrored[m];
      absl::Status status = CheckPair(alone.column, alone.row, alone.value, 0);
      if (!status.ok()) return status;
    }
    const bool both = m < mirrored.size() && !Before(e, mirrored[m]);
    absl::Status status = CheckPair(e.row, e.column, e.value, both ? mirrored[m].value : 0);
    if (!status.ok()) return status;
    m += both;
  }
  for (; m < mirrored.size(); ++m) {
    const Entry& alone = mirrored[m];
    absl::Status status = CheckPair(alone.column, alone.row, alone.value, 0);
    if (!status.ok()) return status;
  }
  entries = std::move(lower);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SparseMatrix> ParseSparse(std::string_view text) {
  Lines lines(text);
  const absl::StatusOr<Banner> banner = ReadBanner(lines);
  if (!banner.ok()) return banner.status();
  if (!banner->coordinate) return lines.Bad("an array file; a matrix must be a coordinate file");
  int64_t rows = 0, columns = 0, count = 0;
  if (!lines.Next() || !lines.Take(&rows) || !lines.Take(&columns) || !lines.Take(&count)) {
    return lines.Bad("expected `ROWS COLUMNS ENTRIES`");
  }
  if (rows < 1 || rows != columns) {
    return lines.Bad(absl::StrCat("a matrix of ", rows, " x ", columns, ", expected a square one"));
  }
  if (count < 0) return lines.Bad(absl::StrCat(count, " entries"));
  SparseMatrix matrix;
  matrix.rows = rows;
  // No more than the text can hold: a line has at least 6 characters.
  matrix.entries.reserve(std::min<int64_t>(count, static_cast<int64_t>(text.size()) / 6 + 1));
  for (int64_t k = 0; k < count; ++k) {
    Entry e;
    if (!lines.Next()) {
      return lines.Bad(absl::StrCat("the file ends after ", k, " of ", count, " entries"));
    }
    if (!lines.Take(&e.row) || !lines.Take(&e.column) || !lines.Take(&e.value) || !lines.AtEnd()) {
      return lines.Bad("expected `ROW COLUMN VALUE`");
    }
    if (e.row < 1 || e.row > rows || e.column < 1 || e.column > rows) {
      return lines.Bad(absl::StrCat("entry (", e.row, ", ", e.column, ") is outside of 1..", rows));
    }
    --e.row;
    --e.column;
    if (banner->symmetric && e.row < e.column) std::swap(e.row, e.column);
    matrix.entries.push_back(e);
  }
  if (lines.Next()) return lines.Bad(absl::StrCat("more than the ", count, " entries announced"));
  if (!banner->symmetric) {
    if (absl::Status status = KeepLower(matrix.entries); !status.ok()) return status;
  } else {
    SortAndSum(matrix.entries);
  }
  return matrix;
}

absl::StatusOr<SparseMatrix> ReadSparse(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<SparseMatrix> matrix = ParseSparse(*text);
  if (!matrix.ok()) return InFile(path, matrix.status());
  return matrix;
}

absl::StatusOr<Array> ParseColumns(std::string_view text) {
  Lines lines(text);
  const absl::StatusOr<Banner> banner = ReadBanner(lines);
  if (!banner.ok()) return banner.status();
  if (banner->coordinate || banner->symmetric) {
    return lines.Bad("expected `%%MatrixMarket matrix array real general`");
  }
  int64_t rows = 0, columns = 0, count = 0;
  if (!lines.Next() || !lines.Take(&rows) || !lines.Take(&columns) || rows < 1 || columns < 1 ||
      __builtin_mul_overflow(rows, columns, &count)) {
    return lines.Bad("expected `ROWS COLUMNS`");
  }
  if (count > static_cast<int64_t>(text.size())) {
    return lines.Bad(
        absl::StrCat(rows, " x ", columns, " numbers are announced, and are not there"));
  }
  Array array;
  array.shape = {rows, columns};
  array.fortran_order = true;
  array.data.resize(count * sizeof(double));
  for (int64_t k = 0; k < count; ++k) {
    if (!lines.Next()) {
      return lines.Bad(absl::StrCat("the file ends after ", k, " of ", count, " numbers"));
    }
    if (!lines.Take(array.as<double>() + k) || !lines.AtEnd()) {
      return lines.Bad("expected one number");
    }
  }
  if (lines.Next()) return lines.Bad(absl::StrCat("more than the ", count, " numbers announced"));
  return array;
}

absl::StatusOr<Array> ReadColumns(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Array> array = ParseColumns(*text);
  if (!array.ok()) return InFile(path, array.status());
  return array;
}

absl::Status WriteColumns(const std::string& path, const Array& array) {
  const int64_t columns = array.shape.size() > 1 ? array.shape[1] : 1;
  std::string text = absl::StrCat("%%MatrixMarket matrix array real general\n", array.shape[0], " ",
                                  columns, "\n");
  char number[32];
  for (int64_t k = 0; k < array.size(); ++k) {
    if (array.scalar == client::Scalar::kFloat64) {
      std::snprintf(number, sizeof(number), "%.17g\n", array.as<double>()[k]);
    } else {
      std::snprintf(number, sizeof(number), "%.9g\n", array.as<float>()[k]);
    }
    text += number;
  }
  return WriteFile(path, {text});
}

}  // namespace blockd::blockctl
