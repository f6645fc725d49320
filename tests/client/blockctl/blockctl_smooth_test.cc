// blockctl smooth, with models in files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/npy.h"
#include "engine/problems/series.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using ::testing::HasSubstr;

// A position and its speed, of which the position is seen at four steps, the last one unseen.
constexpr char kTrack[] =
    R"({"F": [[1, 1], [0, 1]], "Q": [[0.5, 0.1], [0.1, 0.25]], "H": [1, 0], "R": 1,
        "y": [1, 2.5, 4, null], "m0": [0, 0], "P0": [[2, 0], [0, 1]]})";

class BlockctlSmoothTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(64 << 20); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string WriteModel(const std::string& json) {
    EXPECT_TRUE(WriteFile(Path("model.json"), {json}).ok());
    return "--model=" + Path("model.json");
  }
  Outcome Smooth(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "smooth");
    return Blockctl(target(), arguments);
  }
  void WriteArray(const std::string& file, std::vector<int64_t> shape,
                  const std::vector<double>& values, bool fortran_order = false) {
    Array array;
    array.shape = std::move(shape);
    array.fortran_order = fortran_order;
    array.data.resize(values.size() * sizeof(double));
    std::copy(values.begin(), values.end(), array.as<double>());
    ASSERT_TRUE(WriteNpy(Path(file), array).ok());
  }
  // A file of the folder "out".
  std::vector<double> Read(const std::string& name, const std::vector<int64_t>& shape) {
    const absl::StatusOr<Array> array = ReadNpy(Path("out/" + name + ".npy"));
    EXPECT_TRUE(array.ok()) << array.status();
    if (!array.ok()) return {};
    EXPECT_EQ(array->shape, shape) << name;
    return {array->as<double>(), array->as<double>() + array->size()};
  }
  std::string Out() const { return "--out=" + Path("out"); }

  const test::TempFolder folder_;
};

TEST_F(BlockctlSmoothTest, WritesWhatTheClientGets) {
  const Outcome smoothed = Smooth({WriteModel(kTrack), Out(), "--lag_one", "--residuals",
                                   "--num_samples=2", "--seed=3", "--json"});
  ASSERT_EQ(smoothed.exit_status, 0) << smoothed.err;
  EXPECT_THAT(smoothed.out, HasSubstr("\"form\": \"information\""));
  EXPECT_THAT(smoothed.out, HasSubstr("\"observed\": 3"));
  const std::vector<double> f = {1, 0, 1, 1}, q = {0.5, 0.1, 0.1, 0.25}, h = {1, 0}, r = {1};
  const std::vector<double> m = {0, 0}, p = {2, 0, 0, 1}, y = {1, 2.5, 4, std::nan("")};
  const client::StateSpaceModel model{.num_steps = 4,
                                      .state_size = 2,
                                      .observation_size = 1,
                                      .transition = {f},
                                      .transition_covariance = {q},
                                      .observation = {h},
                                      .observation_covariance = {r},
                                      .initial_mean = m,
                                      .initial_covariance = p};
  const auto expected = client::SolverClient::Connect(target())->Smooth(
      model, y, {.lag_one_covariances = true, .residuals = true, .num_samples = 2, .seed = 3});
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(Read("means", {4, 2}), expected->means);
  EXPECT_EQ(Read("covariances", {4, 2, 2}), expected->covariances);
  EXPECT_EQ(Read("samples", {2, 4, 2}), expected->samples);
  const std::vector<double> lag_one = Read("lag_one_covariances", {3, 2, 2});
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(lag_one[4 * t + 1], expected->lag_one_covariances[4 * t + 2]);
    EXPECT_EQ(lag_one[4 * t + 2], expected->lag_one_covariances[4 * t + 1]);
  }
  const std::vector<double> residuals = Read("standardized_residuals", {4, 1});
  EXPECT_EQ(residuals[1], expected->standardized_residuals[1]);
  EXPECT_TRUE(std::isnan(residuals[3]));
}

// All that can be one a step is, in Fortran order too.
TEST_F(BlockctlSmoothTest, FilesOfNumPyAreTheSameModel) {
  ASSERT_EQ(Smooth({WriteModel(kTrack), Out()}).exit_status, 0);
  const std::vector<double> means = Read("means", {4, 2});
  const std::string folder = Path("model");
  std::filesystem::create_directory(folder);
  std::vector<double> f, q;
  for (int t = 0; t < 4; ++t) {  // the last one is left out
    f.insert(f.end(), {1, t == 3 ? 9.0 : 1, 0, 1});
    q.insert(q.end(), {0.5, 0.1, 0.1, 0.25});
  }
  WriteArray("model/F.npy", {4, 2, 2}, f);
  WriteArray("model/Q.npy", {4, 2, 2}, q);
  WriteArray("model/H.npy", {4, 1, 2}, {1, 0, 1, 0, 1, 0, 1, 0});
  WriteArray("model/R.npy", {4}, {1, 1, 1, 1});
  WriteArray("model/c.npy", {2}, {0, 0});
  WriteArray("model/d.npy", {4, 1}, {0, 0, 0, 0});
  WriteArray("model/m0.npy", {2}, {0, 0});
  WriteArray("model/P0.npy", {2, 2}, {2, 0, 0, 1}, true);
  WriteArray("model/y.npy", {4, 1}, {1, 2.5, 4, std::nan("")});
  const Outcome smoothed = Smooth({"--model=" + folder, Out(), "--covariances=diagonal"});
  ASSERT_EQ(smoothed.exit_status, 0) << smoothed.err;
  EXPECT_THAT(smoothed.err, HasSubstr("log p(y) = "));
  const std::vector<double> same = Read("means", {4, 2});
  for (size_t i = 0; i < means.size(); ++i) EXPECT_NEAR(same[i], means[i], 1e-13);
  Read("variances", {4, 2});
  WriteArray("model/F.npy", {2, 2}, {1, 0, 1, 1}, true);
  const double none = std::nan("");
  WriteArray("model/y.npy", {3, 4, 1}, {1, 2.5, 4, 3, 2, 5, 8, none, 1, 1, 1, none});
  ASSERT_EQ(Smooth({"--model=" + folder, Out()}).exit_status, 0);
  const std::vector<double> three = Read("means", {3, 4, 2});
  EXPECT_NEAR(three[8], 2 * means[0], 1e-12);  // twice the data
  // The last two have the same elements missing, and one covariance.
  const std::vector<double> covariances = Read("covariances", {3, 4, 2, 2});
  for (size_t i = 16; i < 32; ++i) EXPECT_EQ(covariances[i], covariances[16 + i]);
}

TEST_F(BlockctlSmoothTest, OutputsAndForecastsAreFilesToo) {
  const Outcome smoothed =
      Smooth({WriteModel(kTrack), Out(), "--forecast=2", "--covariances=diagonal",
              "--outputs=innovations,Predicted_Means,observation_covariances,"
              "state_disturbances,log_likelihood_steps,score_observation,"
              "score_transition_covariance,score_initial_mean"});
  ASSERT_EQ(smoothed.exit_status, 0) << smoothed.err;
  EXPECT_THAT(smoothed.err, HasSubstr("has_outputs"));
  const std::vector<double> predicted = Read("predicted_means", {6, 2});
  EXPECT_EQ(predicted[0], 0);
  const std::vector<double> innovations = Read("innovations", {6, 1});
  EXPECT_NEAR(innovations[0], 1 / std::sqrt(3), 1e-14);
  EXPECT_TRUE(std::isnan(innovations[5]));
  const std::vector<double> variances = Read("observation_covariances", {6, 1});
  EXPECT_GT(variances[5], variances[4]);
  Read("state_disturbances", {5, 2});
  Read("log_likelihood_steps", {6});
  Read("score_observation", {1, 2});
  Read("score_initial_mean", {2});
  const std::vector<double> of_q = Read("score_transition_covariance", {2, 2});
  EXPECT_EQ(of_q[1], of_q[2]);
  const std::vector<double> means = Read("means", {6, 2});
  EXPECT_NEAR(means[10], means[8] + means[9], 1e-13);
  EXPECT_EQ(Smooth({WriteModel(kTrack), "--outputs=innovation"}).exit_status, 1);
  EXPECT_EQ(Smooth({WriteModel(kTrack), "--forecast=-1"}).exit_status, 1);
  EXPECT_EQ(Smooth({WriteModel(kTrack), "--forecast=9223372036854775807"}).exit_status, 3);
}

TEST_F(BlockctlSmoothTest, WithoutAFolderTheMeansArePrinted) {
  const Outcome smoothed =
      Smooth({WriteModel(R"({"F": 1, "Q": 0, "H": 1, "R": 1, "y": [1, 2, null, 6]})"), "--quiet"});
  EXPECT_EQ(smoothed.exit_status, 0) << smoothed.err;
  std::istringstream lines(smoothed.out);
  const std::vector<double> means{std::istream_iterator<double>(lines), {}};
  ASSERT_EQ(means.size(), 4);
  for (const double mean : means) EXPECT_NEAR(mean, 3, 1e-14);
}

TEST_F(BlockctlSmoothTest, AStartMayBeKnownInPart) {
  const auto likelihood = [&](const std::string& diffuse) {
    const Outcome smoothed =
        Smooth({WriteModel(R"({"F": [[1, 0], [0, 0.5]], "Q": [[1, 0], [0, 1]], "H": [1, 1], "R": 1,
                               "y": [1, 2, 3], "m0": [0, 0], "P0": [[0, 0], [0, 1]], "diffuse": )" +
                           diffuse + "}"),
                "--json"});
    EXPECT_EQ(smoothed.exit_status, 0) << smoothed.err;
    const size_t at = smoothed.out.find("log_likelihood\": ") + 17;
    return std::stod(smoothed.out.substr(at));
  };
  EXPECT_NEAR(likelihood("[true, false]"), likelihood("[[1], [0]]"), 1e-12);
  EXPECT_NEAR(likelihood("[[2], [0]]"), likelihood("[[1], [0]]") - std::log(2), 1e-12);
  const Outcome direction =
      Smooth({WriteModel(R"({"F": [[1, 0], [0, 1]], "Q": [[1, 0], [0, 1]], "H": [1, 1], "R": 1,
                             "y": [1, 2], "m0": [0, 0], "P0": [[1, 0], [0, 1]], "diffuse": [1, 2]})")});
  EXPECT_EQ(direction.exit_status, 3);
  EXPECT_THAT(direction.err, HasSubstr("diffuse: a mask with 2"));
}

TEST_F(BlockctlSmoothTest, WhatIsWrongIsNamed) {
  const auto refused = [&](const std::string& json, const std::string& what,
                           std::vector<std::string> more = {}) {
    more.insert(more.begin(), WriteModel(json));
    const Outcome smoothed = Smooth(more);
    EXPECT_EQ(smoothed.exit_status, 3) << json;
    EXPECT_THAT(smoothed.err + smoothed.out, HasSubstr(what)) << json;
  };
  refused("{", "no JSON object");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1})", "has no y");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [1], "Z": 1})", "has \"Z\"");
  refused(R"({"F": [[1, 2], [3]], "Q": 1, "H": 1, "R": 1, "y": [1, 2]})", "different lengths");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [1, [2, 3]]})", "different lengths");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [[1], 2]})", "a number beside a list");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [[], []]})", "y: of shape (2, 0)");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": []})", "y: of shape (0,)");
  refused(R"({"F": [1, "2"], "Q": 1, "H": 1, "R": 1, "y": [1, 2]})", "neither a number");
  refused(R"({"F": [[1, 0], [0, 1]], "Q": 1, "H": [1, 0], "R": 1, "y": [1, 2]})",
          "Q: of shape (), expected (2, 2), or (1, 2, 2)");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [1, 2], "P0": 1})", "m0: missing");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [1, 2], "diffuse": [true]})", "m0: missing");
  refused(R"({"F": 1, "Q": 1, "H": 1, "R": 1, "y": [null, null]})", "NOT_IDENTIFIED", {"--json"});
  refused(R"({"F": 1, "Q": -1, "H": 1, "R": 1, "y": [1, 2]})", "\"matrix\": \"Q\"", {"--json"});
  EXPECT_EQ(Smooth({}).exit_status, 1);
  EXPECT_EQ(Smooth({WriteModel(kTrack), "--form=other"}).exit_status, 1);
  EXPECT_EQ(Smooth({WriteModel(kTrack), "--covariances=some"}).exit_status, 1);
  const Outcome missing = Smooth({"--model=" + Path("nothing.json")});
  EXPECT_EQ(missing.exit_status, 3);
  EXPECT_THAT(missing.err, HasSubstr("nothing.json"));
  EXPECT_EQ(Smooth({"--model=" + std::string(5000, 'x')}).exit_status, 3);
}

}  // namespace
}  // namespace blockd::blockctl
