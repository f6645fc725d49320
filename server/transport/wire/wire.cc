#include "server/transport/wire/wire.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

absl::Status Invalid(std::string_view field, std::string came, std::string expected) {
  return InvalidFieldError(field, came, expected);
}

std::string Came(int64_t value) { return absl::StrCat(value); }

std::string CameBytes(size_t bytes) { return absl::StrCat(bytes, " bytes"); }

std::string Join(std::string_view path, absl::string_view field) {
  return absl::StrCat(absl::string_view(path.data(), path.size()), field);
}

// An enum that must be set: `names` are those allowed.
absl::Status InvalidEnum(std::string_view field, int came, absl::string_view names) {
  return Invalid(field, came == 0 ? "nothing" : absl::StrCat("unknown value ", came),
                 absl::StrCat("one of ", names));
}

absl::Status ReadEnums(const v1::SystemSpec& spec, MatrixForm* form) {
  switch (spec.scalar()) {
    case v1::FLOAT64:
      form->shape.scalar = Scalar::kFloat64;
      break;
    case v1::FLOAT32:
      form->shape.scalar = Scalar::kFloat32;
      break;
    default:
      return InvalidEnum("spec.scalar", spec.scalar(), "FLOAT64, FLOAT32");
  }
  switch (spec.diagonal_form()) {
    case v1::FULL:
      form->diagonal = DiagonalForm::kFull;
      break;
    case v1::PACKED_LOWER:
      form->diagonal = DiagonalForm::kPackedLower;
      break;
    default:
      return InvalidEnum("spec.diagonal_form", spec.diagonal_form(), "FULL, PACKED_LOWER");
  }
  switch (spec.coupling_form()) {
    case v1::SUBDIAGONAL:
      form->coupling = CouplingForm::kSubdiagonal;
      break;
    case v1::SUPERDIAGONAL:
      form->coupling = CouplingForm::kSuperdiagonal;
      break;
    default:
      return InvalidEnum("spec.coupling_form", spec.coupling_form(), "SUBDIAGONAL, SUPERDIAGONAL");
  }
  return absl::OkStatus();
}

absl::Status ReadShape(const v1::SystemSpec& spec, Shape* shape) {
  shape->num_blocks = spec.num_blocks();
  shape->block_size = spec.block_size();
  if (shape->num_blocks < 1) {
    return Invalid("spec.num_blocks", Came(shape->num_blocks), "at least 1");
  }
  if (shape->block_size < 1 || shape->block_size > kMaxBlockSize) {
    return Invalid("spec.block_size", Came(shape->block_size),
                   absl::StrCat("1 to ", kMaxBlockSize));
  }
  if (shape->num_blocks > kMaxRows / shape->block_size) {
    return Invalid("spec.num_blocks", Came(shape->num_blocks),
                   absl::StrCat("at most ", kMaxRows / shape->block_size, " for blocks of ",
                                shape->block_size));
  }
  return absl::OkStatus();
}

absl::Status CheckIndices(std::string_view field, std::span<const uint32_t> index, int64_t entries,
                          int64_t palette) {
  if (static_cast<int64_t>(index.size()) != entries) {
    return Invalid(field, absl::StrCat(index.size(), " entries"),
                   absl::StrCat(entries, " entries"));
  }
  for (int64_t i = 0; i < entries; ++i) {
    if (index[i] < palette) continue;
    return Invalid(absl::StrCat(absl::string_view(field.data(), field.size()), "[", i, "]"),
                   Came(index[i]), absl::StrCat("less than ", palette));
  }
  return absl::OkStatus();
}

// No more blocks than block rows: then a palette never holds more bytes than the dense form, whose
// bytes are known not to overflow.
absl::Status ReadPalette(const v1::SystemSpec& spec, MatrixForm* form) {
  const v1::Palette& palette = spec.palette();
  const int64_t rows = form->shape.num_blocks;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t most_diagonal = std::min(rows, kMost);
  if (palette.num_diagonal() < 1 || palette.num_diagonal() > most_diagonal) {
    return Invalid("spec.palette.num_diagonal", Came(palette.num_diagonal()),
                   absl::StrCat("1 to ", most_diagonal));
  }
  const int64_t least = rows > 1 ? 1 : 0, most = std::min(rows - 1, kMost);
  if (palette.num_coupling() < least || palette.num_coupling() > most) {
    return Invalid("spec.palette.num_coupling", Came(palette.num_coupling()),
                   absl::StrCat(least, " to ", most));
  }
  form->diagonal_palette = palette.num_diagonal();
  form->coupling_palette = palette.num_coupling();
  if (absl::Status status = CheckIndices("spec.palette.diagonal_index", DiagonalIndex(spec), rows,
                                         palette.num_diagonal());
      !status.ok()) {
    return status;
  }
  return CheckIndices("spec.palette.coupling_index", CouplingIndex(spec), rows - 1,
                      palette.num_coupling());
}

std::span<const uint32_t> Span(const google::protobuf::RepeatedField<uint32_t>& field) {
  return {field.data(), static_cast<size_t>(field.size())};
}

}  // namespace

std::span<const uint32_t> DiagonalIndex(const v1::SystemSpec& spec) {
  return Span(spec.palette().diagonal_index());
}

std::span<const uint32_t> CouplingIndex(const v1::SystemSpec& spec) {
  return Span(spec.palette().coupling_index());
}

absl::StatusOr<MatrixForm> ToForm(const v1::SystemSpec& spec) {
  MatrixForm form;
  if (absl::Status status = ReadShape(spec, &form.shape); !status.ok()) return status;
  if (absl::Status status = ReadEnums(spec, &form); !status.ok()) return status;
  if (absl::Status status = CheckShape(form.shape); !status.ok()) {
    return Invalid("spec", ToString(form.shape), std::string(status.message()));
  }
  if (spec.has_palette()) {
    if (absl::Status status = ReadPalette(spec, &form); !status.ok()) return status;
  }
  form.border_rows = spec.arrow_size();
  if (form.border_rows < 0 || form.border_rows > kMaxBorderRows) {
    return Invalid("spec.arrow_size", Came(form.border_rows),
                   absl::StrCat("0 to ", kMaxBorderRows));
  }
  if (absl::Status status = CheckForm(form); !status.ok()) {
    return Invalid("spec", ToString(form.shape), std::string(status.message()));
  }
  return form;
}

absl::Status ReadPriority(std::string_view path, v1::PriorityClass priority,
                          RequestContext* context) {
  switch (priority) {
    case v1::REALTIME:
      context->priority = PriorityClass::kRealtime;
      return absl::OkStatus();
    case v1::PRIORITY_CLASS_UNSPECIFIED:
    case v1::INTERACTIVE:
      context->priority = PriorityClass::kInteractive;
      return absl::OkStatus();
    case v1::BULK:
      context->priority = PriorityClass::kBulk;
      return absl::OkStatus();
    default:
      return Invalid(path, Came(priority), "REALTIME, INTERACTIVE or BULK");
  }
}

absl::StatusOr<Accuracy> ToAccuracy(std::string_view path, v1::Accuracy accuracy) {
  switch (accuracy) {
    case v1::ACCURACY_UNSPECIFIED:
    case v1::ACCURACY_STANDARD:
      return Accuracy::kStandard;
    case v1::ACCURACY_GUARANTEED:
      return Accuracy::kGuaranteed;
    default:
      return Invalid(path, Came(accuracy), "ACCURACY_STANDARD or ACCURACY_GUARANTEED");
  }
}

absl::StatusOr<FactorParams> ToFactorParams(const MatrixForm& form, int64_t num_systems,
                                            const v1::FactorOptions& options) {
  FactorParams params;
  params.form = form;
  params.num_systems = num_systems;
  for (int i = 0; i < options.handle_size(); ++i) {
    absl::StatusOr<Handle> handle =
        ToHandle(absl::StrCat("options.handle[", i, "]"), options.handle(i));
    if (!handle.ok()) return handle.status();
    params.handles.push_back(*handle);
  }
  if (options.has_lease()) {
    absl::StatusOr<absl::Duration> lease = ToDuration("options.lease", options.lease());
    if (!lease.ok()) return lease.status();
    params.lease = *lease;
  }
  params.overwrite = options.overwrite();
  params.idempotency_key = options.idempotency_key();
  params.keep_matrix = options.keep_matrix();
  params.check_finite = options.check_finite();
  params.pin = options.pin();
  params.log_determinant = options.log_determinant();
  absl::StatusOr<Accuracy> accuracy = ToAccuracy("options.accuracy", options.accuracy());
  if (!accuracy.ok()) return accuracy.status();
  params.accuracy = *accuracy;
  params.condition_estimate = options.condition_estimate();
  return params;
}

absl::StatusOr<BlockTridiagonalView> ToView(const MatrixForm& form, const v1::SystemSpec& spec,
                                            const v1::SystemData& data, std::string_view path) {
  const auto check = [&](absl::string_view field, const std::string& bytes, int64_t expected) {
    if (static_cast<int64_t>(bytes.size()) == expected) return absl::OkStatus();
    return Invalid(Join(path, field), CameBytes(bytes.size()),
                   absl::StrCat(expected, " bytes for ", ToString(form.bordered_shape())));
  };
  absl::Status status = check(".diagonal", data.diagonal(), form.diagonal_bytes());
  status.Update(check(".coupling", data.coupling(), form.coupling_bytes()));
  status.Update(check(".border", data.border(), form.border_bytes()));
  status.Update(check(".corner", data.corner(), form.corner_bytes()));
  if (!status.ok()) return status;
  BlockTridiagonalView view = ViewWithoutBlocks(form, spec);
  view.diagonal = data.diagonal().data();
  view.coupling = data.coupling().data();
  view.border = data.border().data();
  view.corner = data.corner().data();
  return view;
}

BlockTridiagonalView ViewWithoutBlocks(const MatrixForm& form, const v1::SystemSpec& spec) {
  BlockTridiagonalView view;
  view.form = form;
  if (form.diagonal_palette > 0) view.diagonal_index = DiagonalIndex(spec).data();
  if (form.coupling_palette > 0) view.coupling_index = CouplingIndex(spec).data();
  return view;
}

absl::StatusOr<Handle> ToHandle(std::string_view path, std::string_view bytes) {
  std::optional<Handle> handle = Handle::FromBytes(bytes);
  if (handle.has_value()) return *handle;
  return Invalid(path, CameBytes(bytes.size()),
                 absl::StrCat(Handle::kBytes, " bytes, as Factor returned them"));
}

absl::StatusOr<SolveParams> ToSolveParams(const v1::SolveRequest& request) {
  SolveParams params;
  absl::StatusOr<Handle> handle = ToHandle("handle", request.handle());
  if (!handle.ok()) return handle.status();
  params.handle = *handle;
  params.num_rhs = request.num_rhs();
  params.residual = request.options().residual();
  params.max_refinements = request.options().max_refinements();
  params.check_finite = request.options().check_finite();
  return params;
}

absl::StatusOr<int64_t> RhsBytes(const BorderedShape& shape, int64_t num_rhs,
                                 std::string_view path) {
  const int64_t column = shape.rows() * ScalarBytes(shape.chain.scalar);
  if (num_rhs < 1) return Invalid(path, Came(num_rhs), "at least 1");
  absl::StatusOr<int64_t> bytes = CheckedProduct(column, num_rhs);
  if (!bytes.ok()) {
    return Invalid(path, Came(num_rhs), absl::StrCat("fewer columns of ", column, " bytes"));
  }
  return *bytes;
}

absl::StatusOr<absl::Duration> ToDuration(std::string_view path,
                                          const google::protobuf::Duration& wire) {
  constexpr int64_t kMaxSeconds = 315'576'000'000;  // what the message allows: 10,000 years
  if (wire.seconds() < 0 || wire.nanos() < 0 || wire.seconds() > kMaxSeconds ||
      wire.nanos() > 999'999'999) {
    return Invalid(path, absl::StrCat(wire.seconds(), " s and ", wire.nanos(), " ns"),
                   "0 s or more, and 0 to 999999999 ns");
  }
  return absl::Seconds(wire.seconds()) + absl::Nanoseconds(wire.nanos());
}

void ToWire(absl::Duration duration, google::protobuf::Duration* wire) {
  wire->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

absl::StatusOr<AskedPage> ToPage(int32_t page_size, const std::string& page_token) {
  if (page_size < 0 || page_size > kMaxPageSize) {
    return Invalid("page_size", Came(page_size), absl::StrCat("0 to ", kMaxPageSize));
  }
  AskedPage page;
  if (page_size > 0) page.size = page_size;
  if (page_token.empty()) return page;
  page.after = Handle::FromBytes(page_token);
  if (!page.after.has_value()) {
    return Invalid("page_token", absl::StrCat(page_token.size(), " bytes"),
                   "a next_page_token of this server");
  }
  return page;
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

v1::ScalarType ToWire(Scalar scalar) {
  return scalar == Scalar::kFloat64 ? v1::FLOAT64 : v1::FLOAT32;
}

void ToWire(const Cost& cost, v1::Cost* wire) {
  wire->set_queue_seconds(absl::ToDoubleSeconds(cost.queue));
  wire->set_batch_requests(cost.batch_requests);
  wire->set_batch_items(cost.batch_items);
  wire->set_upload_seconds(absl::ToDoubleSeconds(cost.upload));
  wire->set_compute_seconds(absl::ToDoubleSeconds(cost.compute));
  wire->set_download_seconds(absl::ToDoubleSeconds(cost.download));
}

void ToWire(const FactorReply& reply, v1::FactorReply* wire) {
  for (const FactoredSystem& system : reply.systems) {
    v1::FactoredSystem* out = wire->add_system();
    if (system.status.ok()) {
      out->set_handle(std::string(system.handle.view()));
      out->set_growth(system.conditioning.growth);
      if (system.conditioning.condition_estimate) {
        out->set_condition_estimate(*system.conditioning.condition_estimate);
      }
      out->set_backward_error_bound(system.backward_error_bound);
      out->set_matrix_kept(system.matrix_kept);
      if (system.log_determinant) out->set_log_determinant(*system.log_determinant);
    } else {
      *out->mutable_status() = ToRpcStatus(system.status);
    }
  }
  wire->set_factor_bytes(reply.factor_bytes);
  wire->set_found(reply.found);
  ToWire(reply.cost, wire->mutable_cost());
}

void ToWire(const SolveReply& reply, v1::SolveReply* wire) {
  if (reply.backward_error) wire->set_backward_error(*reply.backward_error);
  wire->set_backward_error_bound(reply.backward_error_bound);
  wire->set_refinements(reply.refinements);
  ToWire(reply.cost, wire->mutable_cost());
}

void ToWire(const FactorSolveReply& reply, v1::FactorSolveReply* wire) {
  const FactorSolveOutcome& system = reply.systems[0];
  if (system.solve.backward_error) wire->set_backward_error(*system.solve.backward_error);
  wire->set_backward_error_bound(system.solve.backward_error_bound);
  wire->set_growth(system.growth);
  wire->set_matrix_kept(system.matrix_kept);
  wire->set_refinements(system.solve.refinements);
  if (system.log_determinant) wire->set_log_determinant(*system.log_determinant);
  ToWire(reply.cost, wire->mutable_cost());
}

void ToWire(const FactorizationStats& stats, v1::FactorizationInfo* wire) {
  wire->set_handle(std::string(stats.handle.view()));
  wire->set_device(stats.handle.shard());
  wire->set_num_blocks(stats.shape.chain.num_blocks);
  wire->set_block_size(stats.shape.chain.block_size);
  wire->set_arrow_size(stats.shape.border_rows);
  wire->set_scalar(ToWire(stats.shape.chain.scalar));
  wire->set_held_bytes(stats.held_bytes);
  wire->set_matrix_kept(stats.matrix_kept);
  wire->set_growth(stats.conditioning.growth);
  if (stats.conditioning.condition_estimate) {
    wire->set_condition_estimate(*stats.conditioning.condition_estimate);
  }
  wire->set_backward_error_bound(stats.backward_error_bound);
  wire->set_pinned(stats.pinned);
  wire->set_age_seconds(absl::ToDoubleSeconds(stats.age));
  wire->set_idle_seconds(absl::ToDoubleSeconds(stats.idle));
  wire->set_lease_seconds(absl::ToDoubleSeconds(stats.lease_left));
  wire->set_times_solved(stats.times_solved);
  wire->set_rhs_solved(stats.rhs_solved);
  wire->set_times_refactored(stats.times_refactored);
  wire->set_idempotency_key(stats.idempotency_key);
}

void ToWire(const PlanReply& reply, v1::Plan* wire) {
  for (const Level& level : reply.plan->levels()) {
    v1::PlanLevel* const to = wire->add_level();
    to->set_chain_blocks(level.chain_length);
    to->set_segments(static_cast<int64_t>(level.segments.size()));
    int64_t longest = 0;
    for (const Segment& segment : level.segments) longest = std::max(longest, segment.count);
    to->set_longest_segment_blocks(longest);
    to->set_interior_blocks(level.interiors);
    to->set_fill_blocks(level.fills);
    to->set_separator_blocks(static_cast<int64_t>(level.separators.size()));
  }
  wire->set_factor_bytes(reply.factor_bytes);
  wire->set_factor_workspace_bytes(reply.factor_workspace_bytes);
  wire->set_solve_workspace_bytes(reply.solve_workspace_bytes);
  wire->set_factor_flops(reply.factor_flops);
  wire->set_solve_flops(reply.solve_flops);
  wire->set_predicted_factor_seconds(reply.factor_seconds);
  wire->set_predicted_solve_seconds(reply.solve_seconds);
}

}  // namespace blockd::server
