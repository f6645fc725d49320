#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/engine/smoother/model_numbers.h"
#include "tests/engine/smoother/smoother_models.h"

namespace blockd::test {

NamedModel HostileModel(uint64_t seed) {
  Generator random(seed);
  NamedModel model{.name = absl::StrCat("hostile ", seed)};
  const int64_t p = random.Integer(1, 3), kind = random.Integer(0, 3);
  const int64_t n = kind > 1 ? random.Integer(2, 4) : random.Integer(1, 4);
  model.states = n;
  model.outputs = p;
  if (kind == 0) {
    const double radii[] = {0.5, 0.95, 1.0, 1.1, 1.5};
    model.f = random.Transition(n, radii[random.Integer(0, 4)]);
  } else if (kind == 1) {
    model.f = Scaled(n, 1);
  } else {  // integrators at a rate
    const double dt = std::pow(10, random.Uniform(-4, 0));
    model.f = Scaled(n, 1);
    for (int64_t k = 1; k < n; ++k) {
      for (int64_t i = 0; i + k < n; ++i) {
        model.f[(i + k) * n + i] = std::pow(dt, k) / std::tgamma(k + 1);
      }
    }
  }
  Numbers scale(static_cast<size_t>(n), 1);
  if (random.Chance(0.3)) {
    for (double& s : scale) s = std::pow(10, random.Uniform(-3, 3));
  }
  const auto scaled = [&](Numbers b, double factor) {
    for (size_t i = 0; i < b.size(); ++i) b[i] *= scale[i % scale.size()] * factor;
    return Short(b);
  };
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) model.f[j * n + i] *= scale[i] / scale[j];
  }
  const Numbers b =
      scaled(random.Normals(n * random.Integer(0, n)), std::pow(10, random.Uniform(-8, 1)));
  Numbers s = random.Normals(p * random.Integer(0, p));
  const double noise = std::pow(10, random.Uniform(-7, 1));
  for (double& x : s) x *= noise;
  s = Short(s);
  model.q = Gram(n, b);
  model.r = Gram(p, s);
  model.diffuse = random.Chance(0.2);
  const Numbers z = scaled(random.Normals(n * n), std::pow(10, random.Uniform(-2, 8)));
  model.m = scaled(random.Normals(n), 1);
  model.p = Gram(n, z);
  model.h = random.Normals(p * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < p; ++i) model.h[j * p + i] /= scale[j];
  }
  if (n > 1 && random.Chance(0.4)) {  // two states that are seen nearly alike
    const double by = std::pow(10, random.Uniform(-12, -1));
    for (int64_t i = 0; i < p; ++i) {
      model.h[p + i] = model.h[i] * scale[0] / scale[1] * (1 + by * random.Normal());
    }
  }
  if (p > 1 && random.Chance(0.3)) {  // two sensors that are nearly the same
    const double by = std::pow(10, random.Uniform(-12, -1));
    for (int64_t j = 0; j < n; ++j)
      model.h[j * p + 1] = model.h[j * p] * (1 + by * random.Normal());
  }
  Numbers x = scaled(random.Normals(n), std::pow(10, random.Uniform(-2, 6)));
  const bool rough = random.Chance(0.2), gap = random.Chance(0.4);
  for (int64_t t = 0; t < 25; ++t) {
    const Numbers e = random.Normals(std::ssize(s) / p), u = random.Normals(std::ssize(b) / n);
    for (int64_t i = 0; i < p; ++i) {
      double y = 0;
      for (int64_t j = 0; j < n; ++j) y += model.h[j * p + i] * x[j];
      for (int64_t k = 0; k < std::ssize(e); ++k) y += s[k * p + i] * e[k];
      if (rough && std::ssize(e) == p) y += random.Normal();
      model.y.push_back((gap && t >= 8 && t < 20) || random.Chance(0.1) ? kGone : y);
    }
    Numbers next(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) next[i] += model.f[j * n + i] * x[j];
      for (int64_t k = 0; k < std::ssize(u); ++k) next[i] += b[k * n + i] * u[k];
    }
    x = next;
  }
  if (!model.diffuse && random.Chance(0.2)) model.g = random.Normals(n * random.Integer(1, n));
  return model;
}

}  // namespace blockd::test
