#include "client/blockctl/formats/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/npy.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace blockd::blockctl {
namespace {

constexpr std::array<const char*, 10> kNames = {"F", "Q", "H",  "R",  "y",
                                                "c", "d", "m0", "P0", "diffuse"};

absl::Status Wrong(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

// The extents that are not 1.
std::vector<int64_t> LongAxes(const std::vector<int64_t>& shape) {
  std::vector<int64_t> axes;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(axes),
               [](int64_t extent) { return extent != 1; });
  return axes;
}

// The numbers, last index fastest.
std::vector<double> Numbers(const Array& array) {
  std::vector<double> numbers(static_cast<size_t>(array.size()));
  std::vector<int64_t> index(array.shape.size(), 0);
  for (double& number : numbers) {
    int64_t at = 0;
    for (size_t k = 0; k < index.size(); ++k) {
      const size_t axis = array.fortran_order ? index.size() - 1 - k : k;
      at = at * array.shape[axis] + index[axis];
    }
    number = array.scalar == client::Scalar::kFloat64 ? array.as<double>()[at]
                                                      : static_cast<double>(array.as<float>()[at]);
    for (size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < array.shape[axis]) break;
      index[axis] = 0;
    }
  }
  return numbers;
}

// Adds the numbers of nested lists, and finds their shape.
absl::Status AddJson(const google::protobuf::Value& value, size_t depth, Array* array,
                     std::vector<double>* numbers) {
  using Value = google::protobuf::Value;
  if (value.kind_case() == Value::kListValue) {
    const int64_t extent = value.list_value().values_size();
    const bool is_first = depth == array->shape.size() && numbers->empty();
    if (is_first) array->shape.push_back(extent);
    if (depth >= 3 || depth >= array->shape.size() || array->shape[depth] != extent) {
      return absl::InvalidArgumentError("lists of different lengths, or too deep");
    }
    for (const Value& one : value.list_value().values()) {
      if (absl::Status status = AddJson(one, depth + 1, array, numbers); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  if (depth != array->shape.size()) {
    return absl::InvalidArgumentError("a number beside a list");
  }
  switch (value.kind_case()) {
    case Value::kNumberValue:
      numbers->push_back(value.number_value());
      return absl::OkStatus();
    case Value::kBoolValue:
      numbers->push_back(value.bool_value() ? 1 : 0);
      return absl::OkStatus();
    case Value::kNullValue:
      numbers->push_back(std::nan(""));
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("neither a number nor a list of numbers");
  }
}

}  // namespace

absl::StatusOr<ModelFile::Arrays> ModelFile::ReadFolder(const std::string& path) {
  Arrays arrays;
  for (const char* const name : kNames) {
    const std::string file = absl::StrCat(path, "/", name, ".npy");
    std::error_code error;
    if (!std::filesystem::exists(file, error) && !error) continue;
    absl::StatusOr<Array> array = ReadNpy(file);
    if (!array.ok()) return array.status();
    arrays.emplace_back(name, *std::move(array));
  }
  return arrays;
}

absl::StatusOr<ModelFile::Arrays> ModelFile::ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  google::protobuf::Struct object;
  if (const auto status = google::protobuf::util::JsonStringToMessage(*text, &object);
      !status.ok()) {
    return Wrong(path, absl::StrCat("no JSON object: ", status.ToString()));
  }
  Arrays arrays;
  for (const auto& [name, value] : object.fields()) {
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
      return Wrong(path, absl::StrCat("has \"", name,
                                      "\"; a model has F, Q, H, R, y, c, d, m0, P0 "
                                      "and diffuse"));
    }
    Array array;
    std::vector<double> numbers;
    absl::Status status = AddJson(value, 0, &array, &numbers);
    if (status.ok() && std::ssize(numbers) != array.size()) {
      status = absl::InvalidArgumentError("lists of different lengths");
    }
    if (!status.ok()) return Wrong(absl::StrCat(path, ": ", name), std::string(status.message()));
    array.data.resize(numbers.size() * sizeof(double));
    std::copy(numbers.begin(), numbers.end(), array.as<double>());
    arrays.emplace_back(name, std::move(array));
  }
  return arrays;
}

absl::StatusOr<ModelFile> ModelFile::Read(const std::string& path, int64_t forecast) {
  std::error_code error;
  const absl::StatusOr<Arrays> arrays =
      std::filesystem::is_directory(path, error) ? ReadFolder(path) : ReadJson(path);
  if (!arrays.ok()) return arrays.status();
  ModelFile file;
  if (absl::Status status = file.Take(*arrays, forecast); !status.ok()) {
    return InFile(path, status);
  }
  return file;
}

absl::Status ModelFile::Take(const Arrays& arrays, int64_t forecast) {
  const auto find = [&](const std::string& name) -> const Array* {
    const auto found = std::find_if(arrays.begin(), arrays.end(),
                                    [&](const auto& array) { return array.first == name; });
    return found == arrays.end() ? nullptr : &found->second;
  };
  for (const char* const name : {"F", "Q", "H", "R", "y"}) {
    if (find(name) == nullptr) return absl::InvalidArgumentError(absl::StrCat("has no ", name));
  }
  const Array &f = *find("F"), &h = *find("H");
  // Numbers of F are 1 x 1 matrices.
  const bool is_matrix = f.shape.size() > 1;
  state_size_ = is_matrix && h.shape.size() > 1 ? h.shape.back() : is_matrix ? f.shape.back() : 1;
  absl::Status status =
      TakeObservations(*find("y"), h.shape.size() > 1 ? h.shape.end()[-2] : 1, forecast);
  const int64_t n = state_size_, ny = observation_size_, moves = num_steps_ - 1;
  // Matrices `rows` x `columns`, or vectors of no columns; `spare`: a step more may be there.
  const auto take = [&](const char* name, int64_t steps, int64_t rows, int64_t columns, bool spare,
                        Part* part) {
    const Array* const array = find(name);
    if (!status.ok() || array == nullptr) return;
    std::vector<int64_t> shape = {rows};
    if (columns > 0) shape.push_back(columns);
    std::vector<int64_t> each = shape;
    each.insert(each.begin(), steps);
    const std::vector<int64_t> axes = LongAxes(array->shape);
    int64_t count = 1;
    if (axes != LongAxes(shape)) {
      part->per_step = true;
      count = steps;
      const bool fits = axes == LongAxes(each);
      ++each[0];
      if (!fits && !(spare && axes == LongAxes(each))) {
        --each[0];
        status = Wrong(
            name, absl::StrCat("of shape ", ShapeText(array->shape), ", expected ",
                               ShapeText(shape), ", or ", ShapeText(each), ": one for each step"));
        return;
      }
    }
    const std::vector<double> numbers = Numbers(*array);
    const int64_t wide = std::max<int64_t>(columns, 1);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t j = 0; j < wide; ++j) {
        for (int64_t i = 0; i < rows; ++i) {
          part->values.push_back(numbers[static_cast<size_t>((t * rows + i) * wide + j)]);
        }
      }
    }
  };
  take("F", moves, n, n, true, &f_);
  take("Q", moves, n, n, true, &q_);
  take("H", num_steps_, ny, n, false, &h_);
  take("R", num_steps_, ny, ny, false, &r_);
  take("c", moves, n, 0, true, &c_);
  take("d", num_steps_, ny, 0, false, &d_);
  take("m0", 1, n, 0, false, &m_);
  take("P0", 1, n, n, false, &p_);
  m_.per_step = p_.per_step = false;
  if (status.ok() && (find("m0") == nullptr) != (find("P0") == nullptr)) {
    status = Wrong(find("m0") == nullptr ? "m0" : "P0", "missing; give m0 and P0, or neither");
  }
  if (const Array* const diffuse = find("diffuse"); status.ok() && diffuse != nullptr) {
    status = find("m0") == nullptr ? Wrong("m0", "missing, beside diffuse") : TakeDiffuse(*diffuse);
  }
  return status;
}

absl::Status ModelFile::TakeObservations(const Array& y, int64_t outputs, int64_t forecast) {
  const size_t axes = y.shape.size();
  if (axes < 1 || axes > 3 || y.size() == 0) {
    return Wrong("y", absl::StrCat("of shape ", ShapeText(y.shape),
                                   ", expected (T, ny), (T,) or (K, T, ny), and not empty"));
  }
  has_series_ = axes == 3;
  num_series_ = has_series_ ? y.shape[0] : 1;
  const int64_t observed = y.shape[has_series_ ? 1 : 0];
  constexpr int64_t kMost = int64_t{1} << 28;  // numbers
  if (forecast > kMost / std::max<int64_t>(1, y.size() / observed)) {
    return Wrong("y", absl::StrCat("a forecast of ", forecast, " steps is too long"));
  }
  num_steps_ = observed + forecast;
  observation_size_ = axes == 1 ? 1 : y.shape.back();
  if (outputs != observation_size_ && outputs != 1 && outputs != num_steps_) {
    return Wrong(
        "y", absl::StrCat("has ", observation_size_, " elements a step, and H ", outputs, " rows"));
  }
  const std::vector<double> numbers = Numbers(y);
  const int64_t each = observed * observation_size_;
  for (int64_t k = 0; k < num_series_; ++k) {
    y_.insert(y_.end(), numbers.begin() + k * each, numbers.begin() + (k + 1) * each);
    y_.resize(static_cast<size_t>((k + 1) * num_steps_ * observation_size_), std::nan(""));
  }
  return absl::OkStatus();
}

absl::Status ModelFile::TakeDiffuse(const Array& diffuse) {
  const std::vector<double> numbers = Numbers(diffuse);
  const int64_t n = state_size_;
  if (diffuse.shape == std::vector<int64_t>{n}) {  // a mask
    for (int64_t i = 0; i < n; ++i) {
      const double is_diffuse = numbers[static_cast<size_t>(i)];
      if (is_diffuse != 0 && is_diffuse != 1) {
        return Wrong("diffuse", absl::StrCat("a mask with ", is_diffuse,
                                             ", expected 0 and 1; a "
                                             "direction has the shape (nx, 1)"));
      }
      if (is_diffuse == 0) continue;
      const size_t first = diffuse_.values.size();
      diffuse_.values.resize(first + static_cast<size_t>(n));
      diffuse_.values[first + static_cast<size_t>(i)] = 1;
    }
    return absl::OkStatus();
  }
  if (diffuse.shape.size() != 2 || diffuse.shape[0] != n || diffuse.shape[1] > n) {
    return Wrong("diffuse", absl::StrCat("of shape ", ShapeText(diffuse.shape),
                                         ", expected a mask of ", n, " states, or (", n, ", q)"));
  }
  for (int64_t j = 0; j < diffuse.shape[1]; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      diffuse_.values.push_back(numbers[static_cast<size_t>(i * diffuse.shape[1] + j)]);
    }
  }
  return absl::OkStatus();
}

client::StateSpaceModel ModelFile::model() const {
  const auto view = [](const Part& part) { return client::ModelArray{part.values, part.per_step}; };
  return {.num_steps = num_steps_,
          .state_size = state_size_,
          .observation_size = observation_size_,
          .transition = view(f_),
          .transition_covariance = view(q_),
          .observation = view(h_),
          .observation_covariance = view(r_),
          .transition_offset = view(c_),
          .observation_offset = view(d_),
          .initial_mean = m_.values,
          .initial_covariance = p_.values,
          .initial_diffuse = diffuse_.values};
}

}  // namespace blockd::blockctl
