#include "tests/engine/smoother/smoother_models.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/engine/smoother/model_numbers.h"

namespace blockd::test {
namespace {

class Families {
 public:
  std::vector<NamedModel> Make() {
    Trends();
    Kinematic();
    Regressions();
    Arma();
    Seasonal();
    Factors();
    RankOne();
    SingularR();
    Unstable();
    Diffuse();
    Units();
    Sensors();
    return std::move(models_);
  }

 private:
  void Add(NamedModel model) {
    const int64_t n = model.states;
    if (model.m.empty()) model.m.assign(static_cast<size_t>(n), 0);
    models_.push_back(std::move(model));
  }

  void Trends() {
    Numbers y = random_.Walk(60);
    Gap(y, 20, 30);
    for (const double p : {1e2, 1e6, 1e12, 1e16, 1e24}) {
      for (const Numbers& q : {Diagonal({1, 1e-3}), Diagonal({0, 1e-3}), Diagonal({1, 0})}) {
        Add({.name = absl::StrCat("trend, P ", p, ", Q ", q[0], " ", q[3]),
             .states = 2,
             .f = {1, 0, 1, 1},
             .q = q,
             .h = {1, 0},
             .r = {1},
             .p = Scaled(2, p),
             .y = y});
      }
    }
  }

  void Kinematic() {
    for (const double dt : {0.2, 0.1, 0.05, 0.02, 0.002, 0.001, 0.0001}) {
      for (const double level : {0.0, 5e6}) {
        for (const double r : {4.0, 0.01}) {
          NamedModel model{.name = absl::StrCat(1 / dt, " Hz, level ", level, ", R ", r),
                           .states = 3,
                           .f = Rows(3, {1, dt, dt * dt / 2, 0, 1, dt, 0, 0, 1}),
                           .h = {1, 0, 0},
                           .r = {r},
                           .m = {level, 10, 0},
                           .p = Diagonal({25, 25, 1})};
          model.q = Rows(3, {std::pow(dt, 5) / 20, std::pow(dt, 4) / 8, std::pow(dt, 3) / 6,
                             std::pow(dt, 4) / 8, std::pow(dt, 3) / 3, dt * dt / 2,
                             std::pow(dt, 3) / 6, dt * dt / 2, dt});
          for (int64_t t = 0; t < 60; ++t) {
            model.y.push_back(level + 10 * dt * static_cast<double>(t) +
                              std::sqrt(r) * random_.Normal());
          }
          Add(std::move(model));
        }
      }
    }
  }

  void Regressions() {
    NamedModel model{.states = 3, .f = Scaled(3, 1), .r = {0.25}, .h_per_step = true};
    for (int64_t t = 0; t < 60; ++t) {
      const double x = random_.Normal(), ramp = static_cast<double>(t) / 60;
      model.h.insert(model.h.end(), {1, x, ramp});
      model.y.push_back(1 + 2 * x - 3 * ramp + 0.5 * random_.Normal());
    }
    for (const double q : {0.0, 1e-12, 1e-14, 1e-15, 1e-16}) {
      for (const double p : {1e2, 1e6, 1e10}) {
        model.name = absl::StrCat("regression, q ", q, ", P ", p);
        model.q = Scaled(3, q);
        model.p = Scaled(3, p);
        Add(model);
      }
    }
  }

  void Arma() {
    Numbers y = random_.Walk(60);
    Gap(y, 11, 14);
    NamedModel model{.states = 6, .f = Numbers(36), .h = {1, 0, 0, 0, 0, 0}, .r = {0}, .y = y};
    const double coefficients[] = {0.5, 0.2, -0.1, 0.1, 0.05, -0.2};
    for (int64_t i = 0; i < 6; ++i) model.f[i] = coefficients[i];
    for (int64_t i = 0; i < 5; ++i) model.f[(i + 1) * 6 + i] = 1;
    model.q = Gram(6, Short({1, -0.4, 0.3, 0.2, 0, 0}));
    for (const double p : {1.0, 1e6, 1e12}) {
      model.name = absl::StrCat("ARMA(6,3), P ", p);
      model.p = Scaled(6, p);
      Add(model);
    }
  }

  void Seasonal() {
    NamedModel model{.states = 12, .f = Numbers(144), .h = Numbers(12), .r = {1}};
    model.f[0] = 1;
    for (int64_t j = 1; j < 12; ++j) model.f[j * 12 + 1] = -1;
    for (int64_t i = 2; i < 12; ++i) model.f[(i - 1) * 12 + i] = 1;
    model.h[0] = model.h[1] = 1;
    model.y = random_.Walk(60);
    Gap(model.y, 30, 34);
    for (const double season : {0.3, 0.0}) {
      Numbers b(24);
      b[0] = 1;
      b[13] = season;
      model.q = Gram(12, Short(b));
      for (const double p : {1e2, 1e6, 1e12}) {
        model.name = absl::StrCat("seasonal ", season, ", P ", p);
        model.p = Scaled(12, p);
        Add(model);
      }
    }
  }

  void Factors() {
    NamedModel model{.states = 4, .outputs = 6, .p = Scaled(4, 1)};
    model.f = Rows(4, {0.5, 0.1, 0.2, 0, 0, 0.8, 0.1, 0.1, 1, 0, 0, 0, 0, 1, 0, 0});
    model.q = Diagonal({1, 1, 0, 0});
    model.h = Numbers(24);
    for (int64_t i = 0; i < 12; ++i) model.h[i] = random_.Normal();
    model.y = random_.Normals(300);
    for (double& y : model.y) {
      if (random_.Chance(0.2)) y = kGone;
    }
    for (const double r : {1.0, 1e-4, 1e-10}) {
      model.name = absl::StrCat("factors, R ", r);
      model.r = Scaled(6, r);
      Add(model);
    }
    model.outputs = 2;
    model.h = {model.h[0], model.h[1], model.h[6], model.h[7], 0, 0, 0, 0};
    model.r = Scaled(2, 0);
    model.y.resize(100);
    model.name = "factors, R 0";
    Add(model);
  }

  void RankOne() {
    for (const double dt : {1.0, 0.1, 0.001}) {
      for (const double p : {0.0, 10.0, 1e6}) {
        Add({.name = absl::StrCat("discrete white noise, ", dt, ", P ", p),
             .states = 2,
             .f = {1, 0, dt, 1},
             .q = Gram(2, Short({dt * dt / 2, dt})),
             .h = {1, 0},
             .r = {1},
             .p = Scaled(2, p),
             .y = random_.Walk(60)});
      }
    }
    for (int i = 0; i < 3; ++i) {
      Add({.name = absl::StrCat("rank one ", i),
           .states = 5,
           .outputs = 2,
           .f = random_.Transition(5, 0.95),
           .q = Gram(5, Short(random_.Normals(5))),
           .h = random_.Normals(10),
           .r = Scaled(2, 1),
           .p = Scaled(5, 100),
           .y = random_.Normals(100)});
    }
  }

  void SingularR() {
    for (int i = 0; i < 3; ++i) {
      NamedModel model{.name = absl::StrCat("R singular ", i),
                       .states = 5,
                       .outputs = 3,
                       .f = random_.Transition(5, 0.95),
                       .q = Gram(5, Short(random_.Normals(25))),
                       .h = random_.Normals(15),
                       .r = i == 0 ? Diagonal({1, 0, 0.01}) : Gram(3, Short(random_.Normals(6))),
                       .p = Scaled(5, 1e8),
                       .y = random_.Normals(150)};
      for (double& y : model.y) {
        if (random_.Chance(0.15)) y = kGone;
      }
      Add(std::move(model));
    }
    for (const double e : {1e-6, 1e-10, 1e-13, 1e-15}) {
      NamedModel model{.name = absl::StrCat("R nearly singular ", e),
                       .states = 2,
                       .outputs = 3,
                       .f = {0.9, 0, 0.1, 0.7},
                       .q = Scaled(2, 1),
                       .h = random_.Normals(6),
                       .p = Scaled(2, 1)};
      for (int i = 0; i < 9; ++i) model.r.push_back(i % 4 == 0 ? 1 : 1 - e);
      for (int t = 0; t < 50; ++t) {
        const double common = random_.Normal();
        for (int i = 0; i < 3; ++i) model.y.push_back(common + 1e-6 * random_.Normal());
      }
      Add(model);
    }
  }

  void Unstable() {
    for (const auto& [f, gap] : {std::pair{1.1, 60}, {1.1, 150}, {1.5, 20}, {1.5, 40}}) {
      NamedModel model{.states = 1, .f = {f}, .q = {1}, .h = {1}, .r = {1}, .p = {1}};
      model.y = random_.Normals(20);
      for (int i = 0; i < gap; ++i) model.y.push_back(kGone);
      NamedModel tail = model, surprise = model;
      tail.name = absl::StrCat(f, ", tail ", gap);
      Add(tail);
      for (int i = 0; i < 20; ++i) model.y.push_back(std::pow(f, gap + i));
      model.name = absl::StrCat(f, ", gap ", gap);
      Add(model);
      surprise.name = absl::StrCat(f, ", gap ", gap, ", then 1");
      surprise.states = 2;
      surprise.f = {f, 0, 0.3, 0.9};
      surprise.q = surprise.p = Scaled(2, 1);
      surprise.h = {1, 0.2};
      for (int i = 0; i < 10; ++i) surprise.y.push_back(1);
      Add(surprise);
    }
  }

  void Diffuse() {
    Numbers y = random_.Walk(60);
    Gap(y, 0, 7);
    Gap(y, 20, 30);
    Add({.name = "diffuse trend",
         .states = 2,
         .f = {1, 0, 1, 1},
         .q = Diagonal({1, 1e-3}),
         .h = {1, 0},
         .r = {1},
         .y = y,
         .diffuse = true});
    Add({.name = "diffuse factors",
         .states = 3,
         .outputs = 2,
         .f = Rows(3, {0.9, 0.2, 0, 0, 1, 0.1, 0, 0, 1}),
         .q = Diagonal({0, 1, 1}),
         .h = random_.Normals(6),
         .r = {1, 0.5, 0.5, 2},
         .y = random_.Normals(100),
         .diffuse = true});
    // An integrated autoregression: the trend is diffuse, the cycle has its own variance.
    for (const double level : {0.0, 5e6}) {
      NamedModel model{.name = absl::StrCat("diffuse in part, level ", level),
                       .states = 3,
                       .f = Rows(3, {1, 0, 0, 0, 0.8, 0.3, 0, -0.3, 0.8}),
                       .q = Diagonal({1e-4, 1, 1}),
                       .h = {1, 1, 0},
                       .r = {0.01},
                       .m = {0, 0, 0},
                       .p = Diagonal({0, 3, 3}),
                       .g = {1, 0, 0}};
      for (const double value : y) model.y.push_back(level + value);
      Add(model);
      model.name += ", a direction";
      model.g = {1, 0.5, -2};
      Add(model);
    }
    for (const double dt : {0.01, 0.0001}) {
      NamedModel model{.name = absl::StrCat("diffuse, ", 1 / dt, " Hz"),
                       .states = 3,
                       .f = Rows(3, {1, dt, dt * dt / 2, 0, 1, dt, 0, 0, 1}),
                       .q = Diagonal({0, 0, dt}),
                       .h = {1, 0, 0},
                       .r = {0.01},
                       .diffuse = true};
      for (int t = 0; t < 60; ++t) model.y.push_back(5e6 + 0.1 * random_.Normal());
      Add(std::move(model));
    }
  }

  void Units() {
    const double scales[] = {1e-6, 1e2, 1e-2, 1e6};
    for (int k = 0; k < 3; ++k) {
      NamedModel model{.name = absl::StrCat("units ", k),
                       .states = 4,
                       .outputs = 2,
                       .f = random_.Transition(4, 0.95),
                       .h = random_.Normals(8),
                       .r = Scaled(2, 1),
                       .y = random_.Normals(100)};
      Numbers b = random_.Normals(k == 1 ? 16 : 8), p;
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < 4; ++j) model.f[j * 4 + i] *= scales[i] / scales[j];
        for (int64_t j = 0; j < std::ssize(b) / 4; ++j) b[j * 4 + i] *= scales[i];
        for (int64_t j = 0; j < 2; ++j) model.h[i * 2 + j] /= scales[i];
        p.push_back(scales[i] * scales[i] * std::pow(10, 4 * k - 4));
      }
      model.q = Gram(4, b = Short(b));
      model.p = Diagonal(p);
      Add(std::move(model));
    }
  }

  void Sensors() {
    for (const double e : {1e-6, 1e-9, 1e-12}) {
      for (const double r : {0.0, 1e-3 * e, 1e-4}) {
        NamedModel model{.name = absl::StrCat("sensors equal to ", e, ", deviation ", r),
                         .states = 2,
                         .outputs = 2,
                         .f = {0.9, -0.2, 0.3, 0.8},
                         .q = Scaled(2, 1),
                         .h = {1, 1, 0.5, 0.5 + e},
                         .r = Scaled(2, r * r),
                         .p = Scaled(2, 100)};
        double x = random_.Normal(), z = random_.Normal();
        for (int t = 0; t < 40; ++t) {
          const bool gap = t >= 20 && t < 30;
          model.y.push_back(gap ? kGone : x + 0.5 * z);
          model.y.push_back(gap || (t >= 10 && t < 14) ? kGone : x + (0.5 + e) * z);
          const double next = 0.9 * x + 0.3 * z + random_.Normal();
          z = -0.2 * x + 0.8 * z + random_.Normal();
          x = next;
        }
        Add(std::move(model));
      }
    }
  }

  Generator random_{3};
  std::vector<NamedModel> models_;
};

}  // namespace

SmoothParams NamedModel::params() const {
  SmoothParams params;
  params.num_steps = steps();
  params.state_size = states;
  params.observation_size = outputs;
  params.transition = {f, false};
  params.transition_covariance = {q, false};
  params.observation = {h, h_per_step};
  params.observation_covariance = {r, false};
  if (!c.empty()) params.transition_offset = {c, false};
  if (!d.empty()) params.observation_offset = {d, false};
  params.diffuse = diffuse;
  if (!diffuse) {
    params.initial_mean = m;
    params.initial_covariance = p;
    params.initial_diffuse = g;
  }
  params.observations = y;
  params.covariances = SmoothedCovariances::kFull;
  params.lag_one = true;
  params.log_likelihood = true;
  return params;
}

std::vector<NamedModel> SmootherFamilies() { return Families().Make(); }

}  // namespace blockd::test
