// Every field between the wire and the core's own types, each with a value of its own, so that no
// two can be exchanged.
#include "server/transport/wire/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

v1::SystemSpec Spec(int64_t num_blocks = 5, int64_t block_size = 3) {
  v1::SystemSpec spec;
  spec.set_num_blocks(num_blocks);
  spec.set_block_size(block_size);
  spec.set_scalar(v1::FLOAT64);
  spec.set_diagonal_form(v1::FULL);
  spec.set_coupling_form(v1::SUBDIAGONAL);
  return spec;
}

v1::SystemSpec PaletteSpec() {
  v1::SystemSpec spec = Spec(4, 2);
  v1::Palette* palette = spec.mutable_palette();
  palette->set_num_diagonal(3);
  palette->set_num_coupling(2);
  for (const uint32_t index : {0, 2, 1, 2}) palette->add_diagonal_index(index);
  for (const uint32_t index : {1, 0, 1}) palette->add_coupling_index(index);
  return spec;
}

// INVALID_ARGUMENT about this field; "" if it is none.
template <typename T>
std::string FieldOf(const absl::StatusOr<T>& result) {
  const auto detail = InvalidFieldOf(result.status());
  if (!absl::IsInvalidArgument(result.status()) || !detail) return "";
  EXPECT_FALSE(detail->came.empty());
  EXPECT_FALSE(detail->expected.empty());
  return detail->field;
}

TEST(WireSpecTest, EveryEnumHasItsOwnValue) {
  v1::SystemSpec spec = Spec();
  absl::StatusOr<MatrixForm> form = ToForm(spec);
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->shape, (Shape{5, 3, Scalar::kFloat64}));
  EXPECT_EQ(form->diagonal, DiagonalForm::kFull);
  EXPECT_EQ(form->coupling, CouplingForm::kSubdiagonal);
  EXPECT_EQ(form->diagonal_palette, 0);
  EXPECT_EQ(form->coupling_palette, 0);
  spec.set_scalar(v1::FLOAT32);
  spec.set_diagonal_form(v1::PACKED_LOWER);
  form = ToForm(spec);
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form->shape.scalar, Scalar::kFloat32);
  EXPECT_EQ(form->diagonal, DiagonalForm::kPackedLower);
  EXPECT_EQ(form->coupling, CouplingForm::kSubdiagonal);
  spec.set_coupling_form(v1::SUPERDIAGONAL);
  form = ToForm(spec);
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form->coupling, CouplingForm::kSuperdiagonal);
}

TEST(WireSpecTest, AnAbsentOrUnknownEnumIsRefusedWithTheNamesAllowed) {
  for (const int value : {0, 3}) {
    v1::SystemSpec spec = Spec();
    spec.set_scalar(static_cast<v1::ScalarType>(value));
    EXPECT_EQ(FieldOf(ToForm(spec)), "spec.scalar");
    const auto detail = InvalidFieldOf(ToForm(spec).status());
    EXPECT_EQ(detail->came, value == 0 ? "nothing" : "unknown value 3");
    EXPECT_EQ(detail->expected, "one of FLOAT64, FLOAT32");
    spec = Spec();
    spec.set_diagonal_form(static_cast<v1::DiagonalForm>(value));
    EXPECT_EQ(FieldOf(ToForm(spec)), "spec.diagonal_form");
    spec = Spec(1, 1);  // for N = 1 too
    spec.set_coupling_form(static_cast<v1::CouplingForm>(value));
    EXPECT_EQ(FieldOf(ToForm(spec)), "spec.coupling_form");
  }
}

TEST(WireSpecTest, SizesAtTheirLimitsAndBeyond) {
  EXPECT_TRUE(ToForm(Spec(1, 1)).ok());
  EXPECT_TRUE(ToForm(Spec(1, kMaxBlockSize)).ok());
  EXPECT_TRUE(ToForm(Spec(kMaxRows, 1)).ok());
  EXPECT_EQ(FieldOf(ToForm(Spec(0, 1))), "spec.num_blocks");
  EXPECT_EQ(FieldOf(ToForm(Spec(-1, 1))), "spec.num_blocks");
  EXPECT_EQ(FieldOf(ToForm(Spec(1, 0))), "spec.block_size");
  EXPECT_EQ(FieldOf(ToForm(Spec(1, kMaxBlockSize + 1))), "spec.block_size");
  EXPECT_EQ(FieldOf(ToForm(Spec(kMaxRows + 1, 1))), "spec.num_blocks");
  EXPECT_EQ(FieldOf(ToForm(Spec(kMaxRows / 2 + 1, 2))), "spec.num_blocks");
}

TEST(WireSpecTest, APaletteIsReadWithItsPositions) {
  const v1::SystemSpec spec = PaletteSpec();
  const absl::StatusOr<MatrixForm> form = ToForm(spec);
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->diagonal_palette, 3);
  EXPECT_EQ(form->coupling_palette, 2);
  const auto diagonal = DiagonalIndex(spec), coupling = CouplingIndex(spec);
  EXPECT_EQ(std::vector<uint32_t>(diagonal.begin(), diagonal.end()),
            (std::vector<uint32_t>{0, 2, 1, 2}));
  EXPECT_EQ(std::vector<uint32_t>(coupling.begin(), coupling.end()),
            (std::vector<uint32_t>{1, 0, 1}));
  EXPECT_TRUE(DiagonalIndex(Spec()).empty());
  EXPECT_TRUE(CouplingIndex(Spec()).empty());
}

TEST(WireSpecTest, APaletteHasAtMostABlockARow) {
  const auto field = [](auto change) {
    v1::SystemSpec spec = PaletteSpec();
    change(spec.mutable_palette());
    return FieldOf(ToForm(spec));
  };
  using P = v1::Palette*;
  EXPECT_EQ(field([](P p) { p->set_num_diagonal(4); }), "");
  EXPECT_EQ(field([](P p) { p->set_num_diagonal(5); }), "spec.palette.num_diagonal");
  EXPECT_EQ(field([](P p) { p->set_num_diagonal(0); }), "spec.palette.num_diagonal");
  EXPECT_EQ(field([](P p) { p->set_num_coupling(3); }), "");
  EXPECT_EQ(field([](P p) { p->set_num_coupling(4); }), "spec.palette.num_coupling");
  EXPECT_EQ(field([](P p) { p->set_num_coupling(0); }), "spec.palette.num_coupling");
  EXPECT_EQ(field([](P p) { p->set_num_coupling(-1); }), "spec.palette.num_coupling");
  // Positions: one a row, one a coupling, each of a block that was sent.
  EXPECT_EQ(field([](P p) { p->add_diagonal_index(0); }), "spec.palette.diagonal_index");
  EXPECT_EQ(field([](P p) { p->add_coupling_index(0); }), "spec.palette.coupling_index");
  EXPECT_EQ(field([](P p) { p->set_diagonal_index(3, 3); }), "spec.palette.diagonal_index[3]");
  EXPECT_EQ(field([](P p) { p->set_coupling_index(1, 2); }), "spec.palette.coupling_index[1]");
}

TEST(WireSpecTest, APaletteOfOneBlockHasNoCouplings) {
  v1::SystemSpec spec = Spec(1, 2);
  spec.mutable_palette()->set_num_diagonal(1);
  spec.mutable_palette()->add_diagonal_index(0);
  EXPECT_TRUE(ToForm(spec).ok());
  spec.mutable_palette()->set_num_coupling(1);
  EXPECT_EQ(FieldOf(ToForm(spec)), "spec.palette.num_coupling");
}

TEST(WireSystemTest, AViewShowsTheRequestsOwnBytes) {
  const v1::SystemSpec spec = Spec(3, 2);
  const MatrixForm form = *ToForm(spec);
  v1::SystemData data;
  data.set_diagonal(std::string(3 * 4 * 8, 'd'));
  data.set_coupling(std::string(2 * 4 * 8, 'c'));
  absl::StatusOr<BlockTridiagonalView> view = ToView(form, spec, data, "system[2]");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->form, form);
  EXPECT_EQ(view->diagonal, data.diagonal().data());
  EXPECT_EQ(view->coupling, data.coupling().data());
  EXPECT_EQ(view->diagonal_index, nullptr);
  EXPECT_EQ(view->coupling_index, nullptr);
  data.mutable_diagonal()->push_back('d');
  EXPECT_EQ(FieldOf(ToView(form, spec, data, "system[2]")), "system[2].diagonal");
  data.mutable_diagonal()->resize(3 * 4 * 8);
  data.mutable_coupling()->pop_back();
  view = ToView(form, spec, data, "system");
  EXPECT_EQ(FieldOf(view), "system.coupling");
  EXPECT_EQ(InvalidFieldOf(view.status())->came, "63 bytes");
  EXPECT_EQ(InvalidFieldOf(view.status())->expected, "64 bytes for N=3 n=2 float64");
}

TEST(WireSystemTest, AViewOfAPaletteShowsItsPositions) {
  const v1::SystemSpec spec = PaletteSpec();
  const MatrixForm form = *ToForm(spec);
  v1::SystemData data;
  data.set_diagonal(std::string(3 * 4 * 8, 'd'));
  data.set_coupling(std::string(2 * 4 * 8, 'c'));
  const absl::StatusOr<BlockTridiagonalView> view = ToView(form, spec, data, "system");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->diagonal_index, spec.palette().diagonal_index().data());
  EXPECT_EQ(view->coupling_index, spec.palette().coupling_index().data());
}

TEST(WireFactorTest, EveryOptionIsReadAlone) {
  const MatrixForm form = *ToForm(Spec());
  const auto read = [&](auto change) {
    v1::FactorOptions options;
    change(&options);
    absl::StatusOr<FactorParams> params = ToFactorParams(form, 6, options);
    EXPECT_TRUE(params.ok()) << params.status();
    return *std::move(params);
  };
  // Which of the flags are set, as one text.
  const auto flags = [&](auto change) {
    const FactorParams p = read(change);
    return absl::StrCat(p.overwrite, p.keep_matrix, p.check_finite, p.pin, p.log_determinant,
                        p.condition_estimate);
  };
  using O = v1::FactorOptions*;
  EXPECT_EQ(flags([](O) {}), "000000");
  EXPECT_EQ(flags([](O o) { o->set_overwrite(true); }), "100000");
  EXPECT_EQ(flags([](O o) { o->set_keep_matrix(true); }), "010000");
  EXPECT_EQ(flags([](O o) { o->set_check_finite(true); }), "001000");
  EXPECT_EQ(flags([](O o) { o->set_pin(true); }), "000100");
  EXPECT_EQ(flags([](O o) { o->set_log_determinant(true); }), "000010");
  EXPECT_EQ(flags([](O o) { o->set_condition_estimate(true); }), "000001");

  const Handle first = Handle::Random({}), second = Handle::Random({});
  const FactorParams params = read([&](O o) {
    o->add_handle(std::string(first.view()));
    o->add_handle(std::string(second.view()));
    o->set_idempotency_key("a key");
  });
  EXPECT_EQ(params.form, form);
  EXPECT_EQ(params.num_systems, 6);
  EXPECT_EQ(params.handles, (std::vector<Handle>{first, second}));
  EXPECT_EQ(params.idempotency_key, "a key");
  EXPECT_EQ(params.lease, absl::ZeroDuration());
}

TEST(WireFactorTest, ALeaseIsReadToTheNanosecond) {
  const MatrixForm form = *ToForm(Spec());
  const auto lease = [&](int64_t seconds, int32_t nanos) -> absl::StatusOr<absl::Duration> {
    v1::FactorOptions options;
    options.mutable_lease()->set_seconds(seconds);
    options.mutable_lease()->set_nanos(nanos);
    absl::StatusOr<FactorParams> params = ToFactorParams(form, 1, options);
    if (!params.ok()) return params.status();
    return params->lease;
  };
  EXPECT_EQ(*lease(3, 250'000'001), absl::Seconds(3) + absl::Nanoseconds(250'000'001));
  EXPECT_EQ(*lease(0, 999'999'999), absl::Nanoseconds(999'999'999));
  EXPECT_EQ(*lease(315'576'000'000, 0), absl::Seconds(315'576'000'000));
  EXPECT_EQ(FieldOf(lease(-1, 0)), "options.lease");
  EXPECT_EQ(FieldOf(lease(0, -1)), "options.lease");
  EXPECT_EQ(FieldOf(lease(1, 1'000'000'000)), "options.lease");
  EXPECT_EQ(FieldOf(lease(315'576'000'001, 0)), "options.lease");
}

TEST(WireFactorTest, AnAccuracyIsStandardUnlessItIsGuaranteed) {
  const MatrixForm form = *ToForm(Spec());
  const auto accuracy = [&](int value) -> absl::StatusOr<Accuracy> {
    v1::FactorOptions options;
    options.set_accuracy(static_cast<v1::Accuracy>(value));
    absl::StatusOr<FactorParams> params = ToFactorParams(form, 1, options);
    if (!params.ok()) return params.status();
    return params->accuracy;
  };
  EXPECT_EQ(*accuracy(v1::ACCURACY_UNSPECIFIED), Accuracy::kStandard);
  EXPECT_EQ(*accuracy(v1::ACCURACY_STANDARD), Accuracy::kStandard);
  EXPECT_EQ(*accuracy(v1::ACCURACY_GUARANTEED), Accuracy::kGuaranteed);
  EXPECT_EQ(FieldOf(accuracy(3)), "options.accuracy");
  EXPECT_EQ(FieldOf(accuracy(-1)), "options.accuracy");
}

TEST(WireFactorTest, AHandleThatIsNoneIsNamedByItsPlace) {
  v1::FactorOptions options;
  options.add_handle(std::string(Handle::Random({}).view()));
  options.add_handle("short");
  const auto params = ToFactorParams(*ToForm(Spec()), 2, options);
  EXPECT_EQ(FieldOf(params), "options.handle[1]");
  EXPECT_EQ(InvalidFieldOf(params.status())->came, "5 bytes");
}

TEST(WireSolveTest, EveryFieldIsReadAlone) {
  const Handle handle = Handle::Random({});
  v1::SolveRequest request;
  request.set_handle(std::string(handle.view()));
  request.set_num_rhs(12);
  absl::StatusOr<SolveParams> params = ToSolveParams(request);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->handle, handle);
  EXPECT_EQ(params->num_rhs, 12);
  EXPECT_FALSE(params->residual);
  EXPECT_FALSE(params->check_finite);
  EXPECT_EQ(params->max_refinements, 0);
  request.mutable_options()->set_residual(true);
  params = ToSolveParams(request);
  EXPECT_TRUE(params->residual);
  EXPECT_FALSE(params->check_finite);
  request.mutable_options()->set_residual(false);
  request.mutable_options()->set_check_finite(true);
  request.mutable_options()->set_max_refinements(4);
  params = ToSolveParams(request);
  EXPECT_FALSE(params->residual);
  EXPECT_TRUE(params->check_finite);
  EXPECT_EQ(params->max_refinements, 4);
  request.clear_handle();
  EXPECT_EQ(FieldOf(ToSolveParams(request)), "handle");
}

TEST(WireSolveTest, BytesOfRightHandSidesDoNotOverflow) {
  const BorderedShape shape = {{5, 3, Scalar::kFloat64}, 2};
  EXPECT_EQ(*RhsBytes(shape, 7, "num_rhs"), (5 * 3 + 2) * 8 * 7);
  EXPECT_EQ(*RhsBytes({{5, 3, Scalar::kFloat32}}, 1, "num_rhs"), 5 * 3 * 4);
  EXPECT_EQ(FieldOf(RhsBytes(shape, 0, "num_rhs")), "num_rhs");
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(FieldOf(RhsBytes(shape, most, "request.num_rhs")), "request.num_rhs");
}

const Cost kCost = {.queue = absl::Milliseconds(1),
                    .batch_requests = 2,
                    .batch_items = 3,
                    .upload = absl::Milliseconds(4),
                    .compute = absl::Milliseconds(5),
                    .download = absl::Milliseconds(6)};

void ExpectCost(const v1::Cost& wire) {
  EXPECT_DOUBLE_EQ(wire.queue_seconds(), 0.001);
  EXPECT_EQ(wire.batch_requests(), 2);
  EXPECT_EQ(wire.batch_items(), 3);
  EXPECT_DOUBLE_EQ(wire.upload_seconds(), 0.004);
  EXPECT_DOUBLE_EQ(wire.compute_seconds(), 0.005);
  EXPECT_DOUBLE_EQ(wire.download_seconds(), 0.006);
}

TEST(WireReplyTest, OfAFactor) {
  FactorReply reply;
  reply.systems.resize(3);
  reply.systems[0].handle = Handle::Random({});
  reply.systems[0].log_determinant = 1.5;
  reply.systems[1].status = NotSpdError(1, {.block = 2, .row = 1, .minor = 6});
  reply.systems[2].handle = Handle::Random({});
  reply.systems[2].log_determinant = 0;  // which is not the same as none
  reply.systems[2].conditioning = {.growth = 21, .condition_estimate = 22};
  reply.systems[2].backward_error_bound = 23;
  reply.systems[2].matrix_kept = true;
  reply.factor_bytes = 4096;
  reply.cost = kCost;
  v1::FactorReply wire;
  ToWire(reply, &wire);
  ASSERT_EQ(wire.system_size(), 3);
  for (const int good : {0, 2}) {
    EXPECT_EQ(wire.system(good).handle(), reply.systems[good].handle.view());
    EXPECT_FALSE(wire.system(good).has_status());
  }
  EXPECT_EQ(wire.system(0).log_determinant(), 1.5);
  EXPECT_EQ(wire.system(0).growth(), 1);
  EXPECT_FALSE(wire.system(0).has_condition_estimate());
  EXPECT_FALSE(wire.system(0).matrix_kept());
  EXPECT_TRUE(wire.system(2).has_log_determinant());
  EXPECT_EQ(wire.system(2).log_determinant(), 0);
  EXPECT_EQ(wire.system(2).growth(), 21);
  EXPECT_EQ(wire.system(2).condition_estimate(), 22);
  EXPECT_EQ(wire.system(2).backward_error_bound(), 23);
  EXPECT_TRUE(wire.system(2).matrix_kept());
  EXPECT_TRUE(wire.system(1).handle().empty());
  EXPECT_EQ(wire.system(1).status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(wire.system(1).status().details_size(), 1);
  EXPECT_FALSE(wire.system(1).has_log_determinant());
  EXPECT_EQ(wire.factor_bytes(), 4096);
  EXPECT_FALSE(wire.found());
  ExpectCost(wire.cost());
  reply.found = true;
  v1::FactorReply again;
  ToWire(reply, &again);
  EXPECT_TRUE(again.found());
}

TEST(WireReplyTest, OfASolve) {
  SolveReply reply;
  reply.backward_error = 1e-17;
  reply.backward_error_bound = 31;
  reply.refinements = 3;
  reply.cost = kCost;
  v1::SolveReply solve;
  ToWire(reply, &solve);
  EXPECT_EQ(solve.backward_error(), 1e-17);
  EXPECT_EQ(solve.backward_error_bound(), 31);
  EXPECT_EQ(solve.refinements(), 3);
  ExpectCost(solve.cost());
}

TEST(WireReplyTest, OfAFactorSolve) {
  FactorSolveReply reply;
  FactorSolveOutcome& system = reply.systems.emplace_back();
  system.solve.backward_error = 1e-17;
  system.solve.backward_error_bound = 31;
  system.solve.refinements = 3;
  system.growth = 32;
  system.matrix_kept = true;
  system.log_determinant = 7.25;
  reply.cost = kCost;
  v1::FactorSolveReply both;
  ToWire(reply, &both);
  EXPECT_EQ(both.backward_error(), 1e-17);
  EXPECT_EQ(both.backward_error_bound(), 31);
  EXPECT_EQ(both.growth(), 32);
  EXPECT_TRUE(both.matrix_kept());
  EXPECT_EQ(both.refinements(), 3);
  EXPECT_EQ(both.log_determinant(), 7.25);
  ExpectCost(both.cost());
}

TEST(WireReplyTest, WhatWasNotAskedForIsAbsentAndNotZero) {
  v1::SolveReply solve;
  ToWire(SolveReply(), &solve);
  EXPECT_FALSE(solve.has_backward_error());
  v1::FactorSolveReply both;
  ToWire(FactorSolveReply{.systems = {{}}, .cost = {}}, &both);
  EXPECT_FALSE(both.has_backward_error());
  EXPECT_FALSE(both.has_log_determinant());
}

TEST(WireReplyTest, OfAFactorization) {
  FactorizationStats stats;
  stats.handle = Handle::Random({});
  stats.shape = {{11, 12, Scalar::kFloat32}, 5};
  stats.held_bytes = 13;
  stats.matrix_kept = true;
  stats.conditioning = {.growth = 21, .condition_estimate = 22};
  stats.backward_error_bound = 23;
  stats.age = absl::Milliseconds(14);
  stats.idle = absl::Milliseconds(15);
  stats.lease_left = absl::Milliseconds(16);
  stats.times_solved = 17;
  stats.rhs_solved = 18;
  stats.times_refactored = 19;
  stats.idempotency_key = "twenty";
  v1::FactorizationInfo wire;
  ToWire(stats, &wire);
  EXPECT_EQ(wire.handle(), stats.handle.view());
  EXPECT_EQ(wire.num_blocks(), 11);
  EXPECT_EQ(wire.block_size(), 12);
  EXPECT_EQ(wire.arrow_size(), 5);
  EXPECT_EQ(wire.scalar(), v1::FLOAT32);
  EXPECT_EQ(wire.held_bytes(), 13);
  EXPECT_TRUE(wire.matrix_kept());
  EXPECT_EQ(wire.growth(), 21);
  EXPECT_EQ(wire.condition_estimate(), 22);
  EXPECT_EQ(wire.backward_error_bound(), 23);
  EXPECT_FALSE(wire.pinned());
  EXPECT_DOUBLE_EQ(wire.age_seconds(), 0.014);
  EXPECT_DOUBLE_EQ(wire.idle_seconds(), 0.015);
  EXPECT_DOUBLE_EQ(wire.lease_seconds(), 0.016);
  EXPECT_EQ(wire.times_solved(), 17);
  EXPECT_EQ(wire.rhs_solved(), 18);
  EXPECT_EQ(wire.times_refactored(), 19);
  EXPECT_EQ(wire.idempotency_key(), "twenty");
  stats.matrix_kept = false;
  stats.pinned = true;
  stats.shape.chain.scalar = Scalar::kFloat64;
  ToWire(stats, &wire);
  EXPECT_FALSE(wire.matrix_kept());
  EXPECT_TRUE(wire.pinned());
  EXPECT_EQ(wire.scalar(), v1::FLOAT64);
}

TEST(WireReplyTest, OfAPlan) {
  absl::StatusOr<EliminationPlan> plan =
      EliminationPlan::MakeWithSeparators({20, 2, Scalar::kFloat64}, {3, 1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  PlanReply reply;
  reply.plan = std::make_shared<const EliminationPlan>(*std::move(plan));
  reply.factor_bytes = 5;
  reply.factor_workspace_bytes = 1;
  reply.solve_workspace_bytes = 2;
  reply.factor_flops = 3;
  reply.solve_flops = 4;
  reply.factor_seconds = 5;
  reply.solve_seconds = 6;
  v1::Plan wire;
  ToWire(reply, &wire);
  ASSERT_EQ(wire.level_size(), 3);
  const int64_t chains[] = {20, 3, 1}, separators[] = {3, 1, 0};
  for (int i = 0; i < 3; ++i) {
    const Level& level = reply.plan->levels()[static_cast<size_t>(i)];
    EXPECT_EQ(wire.level(i).chain_blocks(), chains[i]);
    EXPECT_EQ(wire.level(i).separator_blocks(), separators[i]);
    EXPECT_EQ(wire.level(i).segments(), separators[i] + 1);
    EXPECT_EQ(wire.level(i).interior_blocks(), chains[i] - separators[i]);
    EXPECT_EQ(wire.level(i).fill_blocks(), level.fills);
  }
  // 17 interiors in four segments: the longest has the most of them, not the last.
  int64_t longest = 0;
  for (const Segment& segment : reply.plan->levels()[0].segments) {
    longest = std::max(longest, segment.count);
  }
  EXPECT_EQ(wire.level(0).longest_segment_blocks(), longest);
  EXPECT_GE(longest, 5);
  EXPECT_EQ(wire.factor_bytes(), 5);
  EXPECT_EQ(wire.factor_workspace_bytes(), 1);
  EXPECT_EQ(wire.solve_workspace_bytes(), 2);
  EXPECT_EQ(wire.factor_flops(), 3);
  EXPECT_EQ(wire.solve_flops(), 4);
  EXPECT_EQ(wire.predicted_factor_seconds(), 5);
  EXPECT_EQ(wire.predicted_solve_seconds(), 6);
}

}  // namespace
}  // namespace blockd::server
