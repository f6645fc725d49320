#include "tests/soak/systems.h"

#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace blockd::soak {
namespace {

std::string BytesOf(std::span<const double> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

System Make(problems::Problem problem, uint64_t seed) {
  System system;
  system.problem = std::move(problem);
  system.spec.set_num_blocks(system.problem.num_blocks);
  system.spec.set_block_size(system.problem.block_size);
  system.spec.set_scalar(v1::FLOAT64);
  system.spec.set_diagonal_form(v1::FULL);
  system.spec.set_coupling_form(v1::SUBDIAGONAL);
  system.data.set_diagonal(BytesOf(system.problem.diagonal));
  system.data.set_coupling(BytesOf(system.problem.coupling));
  system.rhs = problems::RandomColumns(system.problem.rows(), System::kColumns, seed);
  return system;
}

}  // namespace

std::string System::RhsBytes(int64_t columns) const {
  return BytesOf(std::span(rhs).first(static_cast<size_t>(rows() * columns)));
}

std::string System::CheckSolution(const std::string& bytes, int64_t columns,
                                  double promised) const {
  std::vector<double> x(static_cast<size_t>(rows() * columns));
  if (bytes.size() != x.size() * sizeof(double)) {
    return absl::StrCat(bytes.size(), " bytes of a solution");
  }
  std::memcpy(x.data(), bytes.data(), bytes.size());
  const std::span<const double> b = std::span(rhs).first(x.size());
  const double error = problems::BackwardError(problem, x, b, columns);
  if (!(promised < 1e-12)) return absl::StrCat("promises an error of ", promised);
  return error <= promised ? "" : absl::StrCat("backward error ", error, ", promised ", promised);
}

const std::vector<System>& Systems() {
  static const auto& all = *[] {
    auto* systems = new std::vector<System>;
    uint64_t seed = 1;
    for (const auto& [num_blocks, block_size] :
         {std::pair(1, 1), {3, 5}, {16, 4}, {32, 8}, {64, 16}, {20, 32}}) {
      systems->push_back(Make(problems::Mpc(num_blocks, block_size, seed), seed));
      systems->push_back(Make(problems::RandomSpd(num_blocks, block_size, seed, 100), seed));
      ++seed;
    }
    return systems;
  }();
  return all;
}

const System& NotPositiveDefinite() {
  static const auto& system = *[] {
    problems::Problem problem = problems::Mpc(16, 4, 1);
    problem.diagonal[5 * 16] = -1;
    return new System(Make(std::move(problem), 1));
  }();
  return system;
}

const System& LargeSystem() {
  // Cheap to make, since each client that is killed makes it: dominant by its diagonal.
  static const auto& system = *[] {
    problems::Problem problem;
    problem.num_blocks = 256;
    problem.block_size = 32;
    problem.diagonal.resize(256 * 32 * 32, 0.01);
    problem.coupling.resize(255 * 32 * 32, 0.01);
    for (size_t i = 0; i < 256; ++i) {
      for (size_t j = 0; j < 32; ++j) problem.diagonal[(i * 32 + j) * 32 + j] = 4;
    }
    return new System(Make(std::move(problem), 1));
  }();
  return system;
}

}  // namespace blockd::soak
