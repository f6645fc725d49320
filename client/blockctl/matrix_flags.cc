#include "client/blockctl/matrix_flags.h"

#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/matrix_market.h"
#include "client/blockctl/formats/npy.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/text.h"

ABSL_FLAG(std::string, diagonal, "",
          ".npy file of the diagonal blocks A(i,i), shape (N, n, n), float64 or float32. Only the "
          "lower triangles are read.");
ABSL_FLAG(std::string, coupling, "",
          ".npy file of the blocks beside them, shape (N-1, n, n); not needed for N = 1.");
ABSL_FLAG(std::string, coupling_form, "subdiagonal",
          "Which blocks --coupling holds: subdiagonal, A(i+1,i), or superdiagonal, A(i,i+1).");
ABSL_FLAG(
    std::string, matrix, "",
    "Matrix Market file (.mtx, real, symmetric or general) of the whole matrix, in place of "
    "--diagonal and --coupling. A symmetric file has one triangle. The triangles of a general one "
    "may differ by rounding, and the lower one counts.");
ABSL_FLAG(
    int64_t, block_size, 0,
    "n. With --matrix: rows of a block, a divisor of its rows; 0 finds the smallest that makes it "
    "block tridiagonal, and fills up the last block if need be: right-hand sides and solutions "
    "have the rows of the matrix all the same. "
    "With `bench`: rows of a block of the problem, 0 means 8.");

ABSL_FLAG(
    std::string, border, "",
    ".npy file of the border of an arrowhead: p dense rows below the blocks, shape (p, N*n).");
ABSL_FLAG(std::string, corner, "",
          ".npy file of the border's corner, shape (p, p). Only the lower triangle is read.");
ABSL_FLAG(int64_t, arrow_size, 0,
          "p, rows of a border. With --matrix: its last rows. With `plan`: of the system.");

ABSL_FLAG(std::string, accuracy, "standard",
          "standard: solutions as accurate as the growth of the blocks' factors lets them be; "
          "guaranteed: a backward error of at most 4 n eps, for which the server keeps the matrix "
          "where it must.");

namespace blockd::blockctl {
namespace {

absl::StatusOr<Blocks> ReadArrays() {
  const std::string diagonal_path = absl::GetFlag(FLAGS_diagonal);
  const std::string coupling_path = absl::GetFlag(FLAGS_coupling);
  const std::string form = absl::GetFlag(FLAGS_coupling_form);
  if (form != "subdiagonal" && form != "superdiagonal") {
    return UsageError(
        absl::StrCat("--coupling_form is \"", form, "\", expected subdiagonal or superdiagonal"));
  }
  const absl::StatusOr<Array> diagonal = ReadNpy(diagonal_path);
  if (!diagonal.ok()) return diagonal.status();
  std::optional<Array> coupling;
  if (!coupling_path.empty()) {
    absl::StatusOr<Array> read = ReadNpy(coupling_path);
    if (!read.ok()) return read.status();
    coupling = *std::move(read);
  }
  absl::StatusOr<Blocks> blocks =
      BlocksFromArrays(*diagonal, coupling ? &*coupling : nullptr, form == "superdiagonal");
  const std::string border_path = absl::GetFlag(FLAGS_border);
  const std::string corner_path = absl::GetFlag(FLAGS_corner);
  if (!blocks.ok() || (border_path.empty() && corner_path.empty())) return blocks;
  if (border_path.empty() || corner_path.empty()) {
    return UsageError("--border and --corner go together: give both");
  }
  const absl::StatusOr<Array> border = ReadNpy(border_path);
  if (!border.ok()) return border.status();
  const absl::StatusOr<Array> corner = ReadNpy(corner_path);
  if (!corner.ok()) return corner.status();
  absl::Status status = AddBorder(*border, *corner, &*blocks);
  if (!status.ok()) return status;
  return blocks;
}

}  // namespace

const std::vector<std::string_view>& MatrixFlags() {
  static const auto& flags =
      *new std::vector<std::string_view>{"diagonal", "coupling", "coupling_form", "border",
                                         "corner",   "matrix",   "block_size",    "arrow_size"};
  return flags;
}

bool MatrixGiven() {
  return !absl::GetFlag(FLAGS_matrix).empty() || !absl::GetFlag(FLAGS_diagonal).empty() ||
         !absl::GetFlag(FLAGS_coupling).empty();
}

absl::StatusOr<Blocks> ReadMatrix() {
  const std::string path = absl::GetFlag(FLAGS_matrix);
  if (path.empty() && absl::GetFlag(FLAGS_diagonal).empty()) {
    return UsageError("no matrix: give --matrix=A.mtx, or --diagonal=D.npy and --coupling=E.npy");
  }
  if (path.empty()) return ReadArrays();
  if (!absl::GetFlag(FLAGS_diagonal).empty() || !absl::GetFlag(FLAGS_coupling).empty()) {
    return UsageError("--matrix and --diagonal or --coupling name the same thing: give one");
  }
  if (absl::GetFlag(FLAGS_block_size) < 0) return UsageError("--block_size must not be negative");
  const absl::StatusOr<SparseMatrix> matrix = ReadSparse(path);
  if (!matrix.ok()) return matrix.status();
  return BlocksFromSparse(*matrix, absl::GetFlag(FLAGS_block_size),
                          absl::GetFlag(FLAGS_arrow_size));
}

absl::StatusOr<client::Accuracy> AccuracyFromFlag() {
  const std::string accuracy = absl::GetFlag(FLAGS_accuracy);
  if (accuracy == "standard") return client::Accuracy::kStandard;
  if (accuracy == "guaranteed") return client::Accuracy::kGuaranteed;
  return UsageError("--accuracy must be standard or guaranteed");
}

absl::Status CheckName(const std::string& path, const std::string& flag) {
  if (absl::EndsWith(path, ".npy") || absl::EndsWith(path, ".mtx")) return absl::OkStatus();
  return UsageError(
      absl::StrCat("--", flag, "=", path, ": expected a name ending in .npy or .mtx"));
}

absl::StatusOr<Array> ReadRhs(const std::string& path) {
  return absl::EndsWith(path, ".mtx") ? ReadColumns(path) : ReadNpy(path);
}

absl::StatusOr<Columns> RhsColumns(const std::string& path, const Array& array,
                                   const MatrixShape& shape) {
  const int64_t rows = shape.padding_row() + shape.arrow_size;
  if (absl::EndsWith(path, ".mtx") && array.shape[0] != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the right-hand sides have ", array.shape[0], " rows, expected ",
                     RowsText(rows, shape.arrow_size, shape.padding)));
  }
  absl::StatusOr<Columns> columns =
      ColumnsFromArray(array, shape.num_blocks, shape.block_size, shape.arrow_size, shape.padding);
  if (!columns.ok()) return InFile(path, columns.status());
  return columns;
}

std::optional<double> WithoutPadding(const Blocks& blocks, std::optional<double> log_determinant) {
  if (!log_determinant.has_value()) return log_determinant;
  return *log_determinant - blocks.padding_log_determinant();
}

absl::Status OfMatrix(const Blocks& blocks, const absl::Status& status) {
  const std::optional<v1::InsufficientMemory> memory = client::GetInsufficientMemory(status);
  if (!memory.has_value()) return status;
  absl::Status named(
      status.code(),
      absl::StrCat("N=", blocks.num_blocks, " blocks of n=", blocks.block_size,
                   BorderText(blocks.arrow_size), " need ",
                   BytesText(static_cast<double>(memory->asked_bytes())), " of the server's ",
                   BytesText(static_cast<double>(memory->total_bytes())), ", of which ",
                   BytesText(static_cast<double>(memory->free_bytes())), " are free and ",
                   BytesText(static_cast<double>(memory->evictable_bytes())), " evictable"));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

absl::Status WriteSolution(const std::string& path, const Columns& solution) {
  if (absl::EndsWith(path, ".mtx")) return WriteColumns(path, solution.ToMatrix());
  return WriteNpy(path, solution.ToArray());
}

}  // namespace blockd::blockctl
