// blockctl smooth
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"
#include "client/blockctl/formats/model.h"
#include "client/blockctl/formats/npy.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, model, "",
          "A folder with F.npy, Q.npy, H.npy, R.npy and y.npy, if wanted c, d, m0, P0 and diffuse; "
          "or a .json file whose object has these names. Shapes as blockd.Client.smooth of Python "
          "has them; NaN in y, null in JSON, is missing; without m0 and P0 the first state is "
          "diffuse.");
ABSL_FLAG(std::string, covariances, "full", "Of the states: full, diagonal or none.");
ABSL_FLAG(bool, lag_one, false, "Also Cov(x(t+1), x(t)).");
ABSL_FLAG(bool, residuals, false, "Also the residuals of y over their standard deviations.");
ABSL_FLAG(int64_t, num_samples, 0, "Also so many samples of the states given y, of each series.");
ABSL_FLAG(uint64_t, seed, 0, "Of the samples.");
ABSL_FLAG(
    std::string, form, "",
    "Only this arithmetic: information, orthogonal or double-double. Default: the first whose "
    "numbers are good enough.");
ABSL_FLAG(
    std::vector<std::string>, outputs, {},
    "Further results, by their names in the proto, in lower case: filtered_means, innovations, "
    "observation_covariances, ...; all in orthogonal form.");
ABSL_FLAG(int64_t, forecast, 0,
          "So many steps more, without observations, of which all results have rows too.");

namespace blockd::blockctl {
namespace {

struct FormName {
  v1::SmoothForm form;
  const char* name;
};
constexpr FormName kForms[] = {{v1::INFORMATION, "information"},
                               {v1::ORTHOGONAL, "orthogonal"},
                               {v1::ORTHOGONAL_IN_DOUBLE_DOUBLE, "double-double"}};

std::string NameOf(v1::SmoothForm form) {
  for (const FormName& known : kForms) {
    if (known.form == form) return known.name;
  }
  return v1::SmoothForm_Name(form);
}

absl::StatusOr<std::vector<v1::SmoothOutput>> OutputsFromFlag() {
  std::vector<v1::SmoothOutput> outputs;
  for (const std::string& name : absl::GetFlag(FLAGS_outputs)) {
    v1::SmoothOutput output = v1::SMOOTH_OUTPUT_UNSPECIFIED;
    const bool known = v1::SmoothOutput_Parse(absl::AsciiStrToUpper(name), &output);
    if (!known || output == v1::SMOOTH_OUTPUT_UNSPECIFIED) {
      std::vector<std::string> names;
      for (int i = 1; i < v1::SmoothOutput_ARRAYSIZE; ++i) {
        names.push_back(absl::AsciiStrToLower(v1::SmoothOutput_Name(i)));
      }
      return UsageError(
          absl::StrCat("--outputs: there is no ", name, ", but ", absl::StrJoin(names, ", ")));
    }
    outputs.push_back(output);
  }
  return outputs;
}

absl::StatusOr<client::SmoothOptions> OptionsFromFlags() {
  client::SmoothOptions options;
  const std::string covariances = absl::GetFlag(FLAGS_covariances);
  if (covariances == "none") {
    options.covariances = client::SmoothedCovariances::kNone;
  } else if (covariances == "diagonal") {
    options.covariances = client::SmoothedCovariances::kVariances;
  } else if (covariances != "full") {
    return UsageError("--covariances must be full, diagonal or none");
  }
  options.lag_one_covariances = absl::GetFlag(FLAGS_lag_one);
  options.residuals = absl::GetFlag(FLAGS_residuals);
  options.num_samples = absl::GetFlag(FLAGS_num_samples);
  options.seed = absl::GetFlag(FLAGS_seed);
  if (options.num_samples < 0) return UsageError("--num_samples must not be negative");
  if (const std::string form = absl::GetFlag(FLAGS_form); !form.empty()) {
    for (const FormName& known : kForms) {
      if (form == known.name) options.form = known.form;
    }
    if (options.form == v1::SMOOTH_FORM_UNSPECIFIED) {
      return UsageError("--form must be information, orthogonal or double-double");
    }
  }
  absl::StatusOr<std::vector<v1::SmoothOutput>> outputs = OutputsFromFlag();
  if (!outputs.ok()) return outputs.status();
  options.outputs = *std::move(outputs);
  const absl::StatusOr<client::Priority> priority = PriorityFromFlag();
  if (!priority.ok()) return priority.status();
  options.priority = *priority;
  return options;
}

// The results as files of a folder, in NumPy's shapes.
class Folder {
 public:
  Folder(std::string path, const ModelFile& file) : path_(std::move(path)), file_(file) {}

  // `shape` without K, which is in front where y has it.
  absl::Status Write(const char* name, std::span<const double> values,
                     std::vector<int64_t> shape) const {
    if (values.empty()) return absl::OkStatus();
    Array array;
    if (file_.has_series()) shape.insert(shape.begin(), file_.num_series());
    array.shape = std::move(shape);
    const auto bytes = std::as_bytes(values);
    array.data.assign(bytes.begin(), bytes.end());
    return WriteNpy(absl::StrCat(path_, "/", name, ".npy"), array);
  }
  // The same of what each system has, for its series; of column-major matrices n x n if `shape` has
  // three extents.
  absl::Status WriteShared(const char* name, std::span<const double> values,
                           std::span<const uint32_t> system_of_series, int64_t systems,
                           std::vector<int64_t> shape) const {
    const size_t each = values.size() / static_cast<size_t>(systems);
    std::vector<double> all;
    all.reserve(each * system_of_series.size());
    for (const uint32_t system : system_of_series) {
      const std::span<const double> own = values.subspan(system * each, each);
      all.insert(all.end(), own.begin(), own.end());
    }
    const int64_t n = shape.size() == 3 ? shape.back() : 1;
    for (double* matrix = all.data(); matrix != all.data() + all.size(); matrix += n * n) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < j; ++i) std::swap(matrix[j * n + i], matrix[i * n + j]);
      }
    }
    return Write(name, all, std::move(shape));
  }
  // The score of an array, in the shape of that.
  absl::Status WriteScore(const std::string& name, std::span<const double> values, int64_t n,
                          int64_t ny) const {
    const bool is_vector = absl::EndsWith(name, "offset") || absl::EndsWith(name, "mean");
    const int64_t rows = absl::StartsWith(name, "score_observation") ? ny : n;
    const int64_t columns = name == "score_observation" ? n : is_vector ? 1 : rows;
    std::vector<double> all;
    for (size_t first = 0; first < values.size(); first += static_cast<size_t>(rows * columns)) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          all.push_back(values[first + static_cast<size_t>(j * rows + i)]);
        }
      }
    }
    std::vector<int64_t> shape = {rows};
    if (!is_vector) shape.push_back(columns);
    const int64_t steps = std::ssize(values) / (rows * columns * file_.num_series());
    if (steps > 1) shape.insert(shape.begin(), steps);
    return Write(name.c_str(), all, std::move(shape));
  }

 private:
  const std::string path_;
  const ModelFile& file_;
};

absl::Status WriteResult(const std::string& out, const ModelFile& file,
                         const client::SmoothResult& result) {
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(out, ": ", error.message()));
  const client::StateSpaceModel model = file.model();
  const int64_t steps = model.num_steps, n = model.state_size, ny = model.observation_size;
  const bool full = absl::GetFlag(FLAGS_covariances) == "full";
  const Folder folder(out, file);
  const auto write_shared = [&](const char* name, std::span<const double> values,
                                std::vector<int64_t> shape) {
    return folder.WriteShared(name, values, result.system_of_series, result.num_systems,
                              std::move(shape));
  };
  absl::Status status = folder.Write("means", result.means, {steps, n});
  status.Update(full ? write_shared("covariances", result.covariances, {steps, n, n})
                     : write_shared("variances", result.covariances, {steps, n}));
  status.Update(write_shared("lag_one_covariances", result.lag_one_covariances, {steps - 1, n, n}));
  status.Update(folder.Write("standardized_residuals", result.standardized_residuals, {steps, ny}));
  status.Update(
      folder.Write("samples", result.samples, {absl::GetFlag(FLAGS_num_samples), steps, n}));
  for (const auto& [output, values] : result.outputs) {
    const std::string name = absl::AsciiStrToLower(v1::SmoothOutput_Name(output));
    if (absl::EndsWith(name, "covariances")) {
      // Rows of x or y, with one column for each, or the diagonal alone.
      const int64_t rows = output == v1::OBSERVATION_COVARIANCES ? ny : n;
      const bool only_variances = absl::GetFlag(FLAGS_covariances) == "diagonal";
      status.Update(only_variances ? write_shared(name.c_str(), values, {steps, rows})
                                   : write_shared(name.c_str(), values, {steps, rows, rows}));
    } else if (absl::StartsWith(name, "score_")) {
      status.Update(folder.WriteScore(name, values, n, ny));
    } else if (output == v1::LOG_LIKELIHOOD_STEPS) {
      status.Update(folder.Write(name.c_str(), values, {steps}));
    } else {
      // As many rows as there are numbers, of this many steps.
      const int64_t moves = absl::EndsWith(name, "state_disturbances") ? steps - 1 : steps;
      const int64_t all = std::max<int64_t>(1, moves * result.num_series);
      status.Update(folder.Write(name.c_str(), values, {moves, std::ssize(values) / all}));
    }
  }
  return status;
}

// A line a step, and an empty one between two series.
void PrintMeans(const client::StateSpaceModel& model, const client::SmoothResult& result) {
  const double* mean = result.means.data();
  for (int64_t k = 0; k < result.num_series; ++k) {
    if (k > 0) std::printf("\n");
    for (int64_t t = 0; t < model.num_steps; ++t) {
      for (int64_t i = 0; i < model.state_size; ++i) {
        std::printf("%s%.17g", i > 0 ? " " : "", *mean++);
      }
      std::printf("\n");
    }
  }
}

void PrintJson(const client::StateSpaceModel& model, const client::SmoothResult& result,
               double seconds) {
  JsonWriter json;
  json.BeginObject().Field("num_steps", model.num_steps).Field("state_size", model.state_size);
  json.Key("series").BeginArray();
  for (size_t k = 0; k < result.system_of_series.size(); ++k) {
    json.BeginObject().Field("system", result.system_of_series[k]);
    json.Field("observed", result.observed[k]);
    json.Field("log_likelihood", result.log_likelihood[k]).EndObject();
  }
  json.EndArray().Key("systems").BeginArray();
  for (const v1::SmoothedSystem& system : result.systems) {
    json.BeginObject().Field("form", NameOf(system.form()));
    if (system.reason() != v1::SmoothedSystem::REASON_UNSPECIFIED) {
      json.Field("reason", v1::SmoothedSystem::Reason_Name(system.reason()));
    }
    json.Field("means_error", system.means_error());
    json.Field("variances_error", system.variances_error());
    json.Field("log_likelihood_error", system.log_likelihood_error()).EndObject();
  }
  json.EndArray().Field("seconds", seconds).Key("cost");
  WriteCost(result.cost, json);
  if (const std::string out = absl::GetFlag(FLAGS_out); !out.empty()) json.Field("out", out);
  Print(json.EndObject().text() + "\n");
}

void NoteSystem(size_t number, const v1::SmoothedSystem& system) {
  std::string reason;
  if (system.reason() != v1::SmoothedSystem::REASON_UNSPECIFIED) {
    reason = absl::StrCat(
        " (", absl::AsciiStrToLower(v1::SmoothedSystem::Reason_Name(system.reason())), ")");
  }
  Note(
      absl::StrFormat("system %d: %s%s; off by at most %.2g standard deviations, variances %.2g, "
                      "log-likelihood %.2g (estimates)",
                      number, NameOf(system.form()), reason, system.means_error(),
                      system.variances_error(), system.log_likelihood_error()));
}

absl::Status RunSmooth(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const std::string path = absl::GetFlag(FLAGS_model), out = absl::GetFlag(FLAGS_out);
  if (path.empty()) return UsageError("smooth what? Give --model=FOLDER, or a .json file");
  const absl::StatusOr<client::SmoothOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  const int64_t forecast = absl::GetFlag(FLAGS_forecast);
  if (forecast < 0) return UsageError("--forecast must not be negative");
  const absl::StatusOr<ModelFile> file = ModelFile::Read(path, forecast);
  if (!file.ok()) return file.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::Time start = absl::Now();
  const client::StateSpaceModel model = file->model();
  const absl::StatusOr<client::SmoothResult> result =
      client->Smooth(model, file->observations(), *options);
  if (!result.ok()) return result.status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (!out.empty()) {
    if (absl::Status status = WriteResult(out, *file, *result); !status.ok()) return status;
  }
  if (JsonAsked()) {
    PrintJson(model, *result, seconds);
    return absl::OkStatus();
  }
  if (out.empty()) PrintMeans(model, *result);
  Note(absl::StrFormat("smoothed %d step%s of %d states, %d series, in %s (%s)", model.num_steps,
                       model.num_steps == 1 ? "" : "s", model.state_size, result->num_series,
                       SecondsText(seconds), CostText(result->cost)));
  for (size_t s = 0; s < result->systems.size() && s < 10; ++s) NoteSystem(s, result->systems[s]);
  for (size_t k = 0; k < result->log_likelihood.size() && k < 10; ++k) {
    Note(absl::StrFormat("log p(y) = %.17g of %d numbers", result->log_likelihood[k],
                         result->observed[k]));
  }
  return absl::OkStatus();
}

}  // namespace

Command SmoothCommand() {
  return {"smooth",
          "",
          "Smooth series with a linear Gaussian model from files",
          "x(1) ~ N(m0, P0), x(t+1) = F x(t) + c + w, w ~ N(0, Q), y(t) = H x(t) + d + v, v ~ N(0, "
          "R).\n"
          "Results go to files of the folder --out, or the means to standard output: a line a "
          "step.\n"
          "  blockctl smooth --model=nile.json --out=smoothed\n",
          {"model", "out", "covariances", "lag_one", "residuals", "num_samples", "seed", "form",
           "outputs", "forecast", "priority"},
          RunSmooth};
}

}  // namespace blockd::blockctl
