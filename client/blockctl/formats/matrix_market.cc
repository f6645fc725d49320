#include "client/blockctl/formats/matrix_market.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/number_lines.h"

namespace blockd::blockctl {
namespace {

// Relative to the larger of the two; what writing 10 decimal digits may do to equal numbers.
constexpr double kSymmetryTolerance = 1e-9;
// Relative to the rows' largest elements; what rounding may do to the elements of M' W M.
constexpr double kRoundingTolerance = 16 * std::numeric_limits<double>::epsilon();

struct Banner {
  bool coordinate = false;
  bool symmetric = false;
};

absl::StatusOr<Banner> ReadBanner(NumberLines& lines) {
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

// Sorts by column and row, in linear time where most columns have an entry.
void Sort(int64_t columns, std::vector<Entry>& entries) {
  if (std::is_sorted(entries.begin(), entries.end(), Before)) return;
  if (columns > static_cast<int64_t>(entries.size())) {
    std::sort(entries.begin(), entries.end(), Before);
    return;
  }
  std::vector<int64_t> begin(columns + 1);  // where the next entry of each column goes
  for (const Entry& e : entries) ++begin[e.column + 1];
  for (int64_t c = 0; c < columns; ++c) begin[c + 1] += begin[c];
  std::vector<Entry> sorted(entries.size());
  for (const Entry& e : entries) sorted[begin[e.column]++] = e;
  entries = std::move(sorted);
  int64_t first = 0;
  for (int64_t c = 0; c < columns; ++c) {  // now its end
    const auto from = entries.begin() + first, to = entries.begin() + begin[c];
    if (!std::is_sorted(from, to, Before)) std::sort(from, to, Before);
    first = begin[c];
  }
}

// Sorts by column and row and adds up entries of one place.
void SortAndSum(int64_t columns, std::vector<Entry>& entries) {
  Sort(columns, entries);
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

// The entries of a file, those above the diagonal mirrored to below it.
struct Halves {
  std::vector<Entry> lower, upper;
};

// The largest magnitude of each row that has an entry.
std::unordered_map<int64_t, double> RowScales(const Halves& halves) {
  std::unordered_map<int64_t, double> scales;
  for (const std::vector<Entry>* half : {&halves.lower, &halves.upper}) {
    for (const Entry& e : *half) {
      for (const int64_t row : {e.row, e.column}) {
        double& scale = scales[row];
        scale = std::max(scale, std::abs(e.value));
      }
    }
  }
  return scales;
}

// OK if each entry and the one across the diagonal are equal, as far as rounding and written
// digits go.
absl::Status CheckSymmetric(const Halves& halves) {
  std::unordered_map<int64_t, double> scales;  // needed for few matrices
  auto lower = halves.lower.begin(), upper = halves.upper.begin();
  while (lower != halves.lower.end() || upper != halves.upper.end()) {
    const bool has_lower =
        upper == halves.upper.end() || (lower != halves.lower.end() && !Before(*upper, *lower));
    const bool has_upper =
        lower == halves.lower.end() || (upper != halves.upper.end() && !Before(*lower, *upper));
    const Entry place = has_lower ? *lower : *upper;
    const double below = has_lower ? (lower++)->value : 0;
    const double above = has_upper ? (upper++)->value : 0;
    const double apart = std::abs(below - above);
    if (place.row == place.column ||
        apart <= kSymmetryTolerance * std::max(std::abs(below), std::abs(above))) {
      continue;
    }
    if (scales.empty()) scales = RowScales(halves);
    const double scale = std::sqrt(scales[place.row]) * std::sqrt(scales[place.column]);
    if (apart <= kRoundingTolerance * scale) continue;
    const std::string here =
        absl::StrCat("(", place.row + 1, ", ", place.column + 1, ") is ", below);
    const std::string there =
        absl::StrCat("(", place.column + 1, ", ", place.row + 1, ") is ", above);
    return absl::InvalidArgumentError(absl::StrCat(
        "not symmetric: entry ", has_lower ? here : there, ", ", has_lower ? there : here));
  }
  return absl::OkStatus();
}

absl::Status ReadEntry(NumberLines& lines, int64_t rows, Entry* e) {
  if (!lines.Take(&e->row) || !lines.Take(&e->column) || !lines.Take(&e->value) || !lines.AtEnd()) {
    return lines.Bad("expected `ROW COLUMN VALUE`, of numbers that a double has");
  }
  if (e->row < 1 || e->row > rows || e->column < 1 || e->column > rows) {
    return lines.Bad(absl::StrCat("entry (", e->row, ", ", e->column, ") is outside of 1..", rows));
  }
  --e->row;
  --e->column;
  return absl::OkStatus();
}

// The line of a symmetric file that has the place (row, column) after a line has (column, row).
absl::Status BothTriangles(std::string_view text, int64_t rows, const Entry& place) {
  NumberLines lines(text);
  if (!ReadBanner(lines).ok()) return lines.Bad("a banner is expected");
  lines.Next();
  Entry first;
  int64_t first_line = 0;
  for (Entry e; lines.Next() && ReadEntry(lines, rows, &e).ok();) {
    if (std::minmax(e.row, e.column) != std::minmax(place.row, place.column)) continue;
    if (first_line == 0) {
      first = e;
      first_line = lines.number();
    } else if (e.row != first.row) {
      return lines.Bad(absl::StrCat("entry (", e.row + 1, ", ", e.column + 1,
                                    ") of a symmetric matrix, whose line ", first_line, " has (",
                                    first.row + 1, ", ", first.column + 1,
                                    "): expected one triangle, or `general`"));
    }
  }
  return lines.Bad("expected one triangle of a symmetric matrix");
}

// The one triangle that a symmetric file has, wherever its entries stand.
absl::StatusOr<std::vector<Entry>> MergeHalves(std::string_view text, int64_t rows,
                                               Halves& halves) {
  if (halves.upper.empty()) return std::move(halves.lower);
  std::vector<Entry> merged(halves.lower.size() + halves.upper.size());
  std::merge(halves.lower.begin(), halves.lower.end(), halves.upper.begin(), halves.upper.end(),
             merged.begin(), Before);
  const auto twice = std::adjacent_find(
      merged.begin(), merged.end(), [](const Entry& a, const Entry& b) { return !Before(a, b); });
  if (twice != merged.end()) return BothTriangles(text, rows, *twice);
  return merged;
}

// The lower triangle of an array, column by column.
absl::StatusOr<SparseMatrix> ParseDenseTriangle(NumberLines& lines, int64_t text_bytes) {
  int64_t rows = 0, columns = 0;
  if (!lines.Next() || !lines.Take(&rows) || !lines.Take(&columns) || !lines.AtEnd()) {
    return lines.Bad("expected `ROWS COLUMNS`");
  }
  if (rows < 1 || rows != columns) {
    return lines.Bad(absl::StrCat("a matrix of ", rows, " x ", columns, ", expected a square one"));
  }
  if (rows > text_bytes) return lines.Bad("the file ends before its numbers");
  SparseMatrix matrix;
  matrix.rows = rows;
  for (Entry e; e.column < rows; ++e.column) {
    for (e.row = e.column; e.row < rows; ++e.row) {
      if (!lines.Next()) {
        return lines.Bad(absl::StrCat("the file ends after ", matrix.entries.size(),
                                      " numbers, expected a lower triangle of ", rows, " rows"));
      }
      if (!lines.Take(&e.value) || !lines.AtEnd()) return lines.Bad("expected one number");
      matrix.entries.push_back(e);
    }
  }
  if (lines.Next()) return lines.Bad("more than the numbers of a lower triangle");
  return matrix;
}

}  // namespace

absl::StatusOr<SparseMatrix> ParseSparse(std::string_view text) {
  NumberLines lines(text);
  const absl::StatusOr<Banner> banner = ReadBanner(lines);
  if (!banner.ok()) return banner.status();
  if (!banner->coordinate && banner->symmetric) {
    return ParseDenseTriangle(lines, static_cast<int64_t>(text.size()));
  }
  if (!banner->coordinate) {
    return lines.Bad("a general array file; a matrix must be a coordinate file, or symmetric");
  }
  int64_t rows = 0, columns = 0, count = 0;
  if (!lines.Next() || !lines.Take(&rows) || !lines.Take(&columns) || !lines.Take(&count)) {
    return lines.Bad("expected `ROWS COLUMNS ENTRIES`");
  }
  if (rows < 1 || rows != columns) {
    return lines.Bad(absl::StrCat("a matrix of ", rows, " x ", columns, ", expected a square one"));
  }
  if (count < 0) return lines.Bad(absl::StrCat(count, " entries"));
  Halves halves;
  // No more than the text can hold: a line has at least 6 characters.
  halves.lower.reserve(std::min<int64_t>(count, static_cast<int64_t>(text.size()) / 6 + 1));
  for (int64_t k = 0; k < count; ++k) {
    Entry e;
    if (!lines.Next()) {
      return lines.Bad(absl::StrCat("the file ends after ", k, " of ", count, " entries"));
    }
    if (absl::Status status = ReadEntry(lines, rows, &e); !status.ok()) return status;
    const bool below = e.row >= e.column;
    if (!below) std::swap(e.row, e.column);
    (below ? halves.lower : halves.upper).push_back(e);
  }
  if (lines.Next()) return lines.Bad(absl::StrCat("more than the ", count, " entries announced"));
  SortAndSum(rows, halves.lower);
  SortAndSum(rows, halves.upper);
  SparseMatrix matrix;
  matrix.rows = rows;
  if (banner->symmetric) {
    absl::StatusOr<std::vector<Entry>> merged = MergeHalves(text, rows, halves);
    if (!merged.ok()) return merged.status();
    matrix.entries = *std::move(merged);
    return matrix;
  }
  if (absl::Status status = CheckSymmetric(halves); !status.ok()) return status;
  matrix.entries = std::move(halves.lower);
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
  NumberLines lines(text);
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
