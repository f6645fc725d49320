// The form that a Smooth's numbers come from, and what is refused in each.
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "blockd/engine/model_errors.h"
#include "tests/server/core/smooth/smooth_fixture.h"

namespace blockd::test {
namespace {

using server::SmoothedSystem;
using Reason = server::SmoothedSystem::Reason;

auto HasForm(SmoothForm form) { return ::testing::Field(&SmoothedSystem::form, form); }

// Its states' precision has no entries that a double could hold.
SmoothModel TinyNoise() {
  return SmoothModel({.steps = 15, .states = 3, .per_step = false, .scale = 1e-16});
}
// One noise moves all three states.
void SetOneNoise(SmoothModel& model) {
  model.q = {1, 2, 3, 2, 4, 6, 3, 6, 9};
  model.params.transition_covariance.values = model.q;
}

// Models whose precision no factorization in double holds, or which have none.
TEST_F(SolverCoreSmoothTest, ModelsWithoutAGoodFactorizationAreSmoothedInOrthogonalForm) {
  Start();
  const auto expect_form = [&](SmoothModel& model, SmoothForm form, Reason reason) {
    model.params.residuals = true;
    model.params.num_samples = 2;
    const Answer answer = Smooth(model.params);
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    for (const SmoothedSystem& system : answer.reply->systems) {
      EXPECT_EQ(system.form, form);
      EXPECT_EQ(system.reason, reason);
      EXPECT_LE(system.errors.means, kPromisedErrors.means);
      EXPECT_LE(system.errors.variances, kPromisedErrors.variances);
    }
    ExpectClassical(model.params, answer, 1e-7);
    EXPECT_EQ(Reserved(), 0);
  };
  SmoothModel benign({.per_step = false, .offsets = false});
  expect_form(benign, SmoothForm::kInformation, Reason::kNone);
  SmoothModel one_noise({.per_step = false, .offsets = false});
  SetOneNoise(one_noise);
  expect_form(one_noise, SmoothForm::kOrthogonal, Reason::kSingularCovariance);
  SmoothModel tiny_noise = TinyNoise();
  expect_form(tiny_noise, SmoothForm::kOrthogonal, Reason::kInaccurate);
  // Some systems of a call and not the others: the end of an unstable one is unseen.
  SmoothModel gap({.steps = 120,
                   .states = 1,
                   .observations = 1,
                   .series = 2,
                   .per_step = false,
                   .offsets = false,
                   .missing = 0});
  gap.f = {1.25};
  gap.params.transition.values = gap.f;
  for (size_t t = 20; t < 120; ++t) gap.y[120 + t] = kMissing;
  const Answer both = Smooth(gap.params);
  ASSERT_TRUE(both.reply.ok()) << both.reply.status();
  EXPECT_THAT(both.reply->systems, ::testing::ElementsAre(HasForm(SmoothForm::kInformation),
                                                          HasForm(SmoothForm::kOrthogonal)));
}

// All forms of a benign model agree; one that has no good numbers is refused.
TEST_F(SolverCoreSmoothTest, AFormThatIsAskedForIsTakenOrRefused) {
  Start();
  SmoothModel benign({.per_step = false, .offsets = false});
  for (const auto form :
       {SmoothForm::kInformation, SmoothForm::kOrthogonal, SmoothForm::kOrthogonalInDoubleDouble}) {
    benign.params.form = form;
    const Answer answer = Smooth(benign.params);
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    EXPECT_THAT(answer.reply->systems, ::testing::Each(HasForm(form)));
    EXPECT_EQ(answer.reply->systems[0].reason,
              form == SmoothForm::kInformation ? Reason::kNone : Reason::kAskedFor);
    ExpectClassical(benign.params, answer, 1e-7);
  }
  SmoothModel tiny_noise = TinyNoise();
  tiny_noise.params.form = SmoothForm::kInformation;
  const auto why = NotSmoothableOf(Smooth(tiny_noise.params).reply.status());
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->reason, NotSmoothable::Reason::kInaccurate);
  EXPECT_EQ(why->form, SmoothForm::kInformation);
  EXPECT_GT(why->errors.means, kPromisedErrors.means);
  SmoothModel one_noise({.per_step = false});
  SetOneNoise(one_noise);
  one_noise.params.form = SmoothForm::kInformation;
  EXPECT_TRUE(server::SingularCovarianceOf(Smooth(one_noise.params).reply.status()).has_value());
  SmoothModel unseen = UnseenState(8, 2);
  unseen.params.form = SmoothForm::kInformation;
  EXPECT_TRUE(server::NotSpdOf(Smooth(unseen.params).reply.status()).has_value());
  EXPECT_EQ(Reserved(), 0);
}

// Estimates of kept factorizations are made of the variances kept with them.
TEST_F(SolverCoreSmoothTest, AKeptModelIsNoGoodFactorizationLater) {
  Start();
  kept_.keep = true;
  SmoothModel model = TinyNoise();
  model.params.covariances = SmoothedCovariances::kNone;
  model.params.lag_one = false;
  for (const bool found : {false, true, true}) {
    const Answer answer = Smooth(model.params);
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    EXPECT_EQ(answer.reply->found, found);
    EXPECT_THAT(answer.reply->systems, ::testing::Each(HasForm(SmoothForm::kOrthogonal)));
  }
}

// Where a factorization is asked for; without, the orthogonal form has the numbers.
TEST_F(SolverCoreSmoothTest, SingularCovariancesAreNamedWithTheirStepAndRow) {
  Start();
  kept_.keep = true;
  const auto singular = [&](SmoothModel& model) {
    return server::SingularCovarianceOf(Smooth(model.params).reply.status())
        .value_or(server::SingularCovariance{"none", -1, -1});
  };
  const auto expect = [&](SmoothModel& model, const std::string& matrix, int64_t step,
                          int64_t row) {
    const server::SingularCovariance found = singular(model);
    EXPECT_EQ(found.matrix, matrix);
    EXPECT_EQ(found.step, step);
    EXPECT_EQ(found.row, row);
  };
  {
    SmoothModel model({});
    for (int i = 0; i < 3; ++i) model.q[7 * 9 + i * 3 + 1] = model.q[7 * 9 + 3 + i] = 0;
    expect(model, "Q", 7, 1);
  }
  {
    // Two columns alike: singular but for rounding.
    SmoothModel model({.per_step = false});
    model.q = {1. / 3, 1. / 3, 0, 1. / 3, 1. / 3, 0, 0, 0, 1};
    model.params.transition_covariance.values = model.q;
    expect(model, "Q", 0, 1);
  }
  {
    SmoothModel model({});
    model.r[19 * 4] = -1;
    expect(model, "R", 19, 0);
  }
  {
    SmoothModel model({});
    model.p[8] = 0;
    expect(model, "P", 0, 2);
  }
  EXPECT_EQ(core_->memory().factorizations, 0);
}

// Handles of which the caller does not hear are none.
TEST_F(SolverCoreSmoothTest, NothingIsKeptOfWhatIsNotGoodEnough) {
  Start();
  kept_ = {.keep = true, .lease = absl::Minutes(1)};
  SmoothModel model = TinyNoise();
  model.params.form = SmoothForm::kInformation;
  EXPECT_TRUE(NotSmoothableOf(Smooth(model.params).reply.status()).has_value());
  EXPECT_EQ(core_->memory().factorizations, 0);
  EXPECT_EQ(Reserved(), 0);
}

// Each series and system has its own part.
TEST_F(SolverCoreSmoothTest, OutputsAreThoseOfTheOrthogonalForm) {
  Start();
  SmoothModel model({.steps = 9, .states = 3, .observations = 2, .series = 3});
  model.params.outputs = {SmoothOutput::kFilteredMeans, SmoothOutput::kPredictedCovariances,
                          SmoothOutput::kLogLikelihoodSteps};
  const Answer answer = Smooth(model.params);
  ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
  for (const SmoothedSystem& system : answer.reply->systems) {
    EXPECT_THAT(system, HasForm(SmoothForm::kOrthogonal));
    EXPECT_EQ(system.reason, Reason::kHasOutputs);
  }
  ExpectClassical(model.params, answer, 1e-7);
  for (int64_t k = 0; k < 3; ++k) {
    const ClassicalSmoother truth(model.params, k);
    const auto expect = [&](const std::vector<double>& all, int64_t part,
                            const std::vector<long double>& own) {
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_NEAR(all[part * own.size() + i], static_cast<double>(own[i]), 1e-10);
      }
    };
    expect(answer.outputs[0], k, truth.filtered_means);
    expect(answer.outputs[1], answer.reply->system_of_series[k], truth.predicted_covariances);
    expect(answer.outputs[2], k, truth.log_likelihood_steps);
  }
}

TEST_F(SolverCoreSmoothTest, OutputsAreInOrderAndOfOrthogonalForms) {
  Start();
  SmoothModel model({});
  const auto refused = [&](std::vector<SmoothOutput> outputs) {
    model.params.outputs = std::move(outputs);
    const absl::Status status =
        server::CheckSmoothHeader(model.params, kept_, server::RequestContext(), core_->limits());
    return server::InvalidFieldOf(status).value_or(server::InvalidField{}).field;
  };
  EXPECT_EQ(refused({SmoothOutput::kFilteredMeans, SmoothOutput::kInnovations}), "");
  EXPECT_EQ(refused({SmoothOutput::kInnovations, SmoothOutput::kFilteredMeans}),
            "header.options.output");
  EXPECT_EQ(refused({SmoothOutput::kInnovations, SmoothOutput::kInnovations}),
            "header.options.output");
  EXPECT_EQ(refused({static_cast<SmoothOutput>(0)}), "header.options.output");
  EXPECT_EQ(refused({static_cast<SmoothOutput>(-5)}), "header.options.output");
  EXPECT_EQ(refused({static_cast<SmoothOutput>(kNumSmoothOutputs + 1)}), "header.options.output");
  kept_.keep = true;
  EXPECT_EQ(refused({SmoothOutput::kInnovations}), "header.options.output");
  kept_.keep = false;
  model.params.form = SmoothForm::kInformation;
  EXPECT_EQ(refused({SmoothOutput::kInnovations}), "header.options.output");
}

TEST_F(SolverCoreSmoothTest, AStateThatNothingTellsOfIsNotIdentified) {
  Start();
  const SmoothModel model = UnseenState(8, 2);
  const Answer answer = Smooth(model.params);
  const auto why = NotSmoothableOf(answer.reply.status());
  ASSERT_TRUE(why.has_value()) << answer.reply.status();
  EXPECT_EQ(why->reason, NotSmoothable::Reason::kNotIdentified);
  EXPECT_EQ(why->directions, 1);
  EXPECT_TRUE(absl::StrContains(answer.reply.status().message(), "observe more"))
      << answer.reply.status();
  kept_.keep = true;  // there is no factorization to keep
  EXPECT_TRUE(server::NotSpdOf(Smooth(model.params).reply.status()).has_value());
  EXPECT_EQ(core_->memory().factorizations, 0);
}

}  // namespace
}  // namespace blockd::test
