// The requests of a shared-memory session that have a matrix.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/transport/calls/factor_solve_params.h"
#include "server/transport/shm/shm_call.h"
#include "server/transport/wire/factor_solve_many.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

absl::Status DataInMessage(std::string_view fields) {
  return InvalidFieldError(fields, "given in the message", "data that lies in shared memory");
}

bool ChecksFinite(const v1::FactorStreamHeader& header) { return header.options().check_finite(); }
template <typename Request>
bool ChecksFinite(const Request& request) {
  return request.check_finite() || request.options().check_finite();
}

// Without the words and the details of failures it fits in the room that was checked.
void DropDetailsToFit(size_t room, v1::FactorReply* reply) {
  if (reply->ByteSizeLong() <= room) return;
  for (v1::FactoredSystem& system : *reply->mutable_system()) {
    if (!system.has_status()) continue;
    system.mutable_status()->clear_details();
    system.mutable_status()->clear_message();
  }
}

}  // namespace

absl::Status ShmCall::ReadMessage(google::protobuf::Message* message) {
  ServiceState* const state = session_->state();
  const auto bytes = Data("message_offset", request_.message_offset, request_.message_bytes);
  if (!bytes.ok()) return bytes.status();
  absl::Status status = state->CheckMessageSize(bytes->size());
  if (!status.ok()) return status;
  const TenantPtr& tenant = record_.context()->tenant;
  // The copy, while it is parsed.
  absl::StatusOr<Reservation> copied =
      state->core->host().Reserve(tenant, static_cast<int64_t>(bytes->size()));
  if (!copied.ok()) return copied.status();
  // Not in memory of gRPC's, which ends the process where there is none.
  const std::vector<std::byte> own(bytes->begin(), bytes->end());
  const std::string_view text(reinterpret_cast<const char*>(own.data()), own.size());
  return state->Parse(AsBuffer(text), *record_.context(), message, &host_bytes_);
}

absl::Status ShmCall::ReadMessage() {
  const auto read = [this](auto message) {
    absl::Status status = ReadMessage(message.get());
    if (!status.ok()) return status;
    scans_ = ChecksFinite(*message);
    message_ = std::move(message);
    return status;
  };
  switch (request_.operation) {
    case v1::ShmOperation::kFactor:
      return read(std::make_unique<v1::FactorStreamHeader>());
    case v1::ShmOperation::kFactorSolve:
      return read(std::make_unique<v1::FactorSolveRequest>());
    default:
      return read(std::make_unique<v1::FactorSolveManyRequest>());
  }
}

absl::Status ShmCall::Factor() {
  const auto& header = MessageOf<v1::FactorStreamHeader>();
  const v1::SystemSpec& spec = header.spec();
  absl::StatusOr<MatrixForm> form = ToForm(spec);
  if (!form.ok()) return form.status();
  const int64_t systems = header.num_systems();
  record_.SetShape(form->shape, systems);
  const int64_t most = session_->state()->options.core.max_systems;
  if (systems < 1 || systems > most) {
    return InvalidFieldError("num_systems", absl::StrCat(systems), absl::StrCat("1 to ", most));
  }
  absl::Status status = CheckReplyRoom(static_cast<uint64_t>(systems));
  if (!status.ok()) return status;
  absl::StatusOr<FactorParams> params = ToFactorParams(*form, systems, header.options());
  if (!params.ok()) return params.status();
  const ContextPtr& context = record_.context();
  status = ReadPriority("options.priority", header.options().priority(), context.get());
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> bytes = CheckedProduct(form->bytes(), systems);
  if (!bytes.ok() || static_cast<uint64_t>(*bytes) != request_.bytes) {
    return InvalidFieldError("bytes", absl::StrCat(request_.bytes),
                             absl::StrCat(systems, " times ", form->bytes()));
  }
  const auto matrices = Data("rhs_offset", request_.rhs_offset, request_.bytes);
  if (!matrices.ok()) return matrices.status();
  std::vector<BlockTridiagonalView> views(static_cast<size_t>(systems),
                                          ViewWithoutBlocks(*form, spec));
  const std::byte* next = matrices->data();
  for (BlockTridiagonalView& view : views) {
    view.SetParts(next);
    next += form->bytes();
  }
  session_->state()->core->Factor(
      context, *params, std::move(views),
      [self = shared_from_this()](absl::StatusOr<FactorReply> answer) mutable {
        std::exchange(self, nullptr)->AnswerFactor(answer);
      });
  return absl::OkStatus();
}

void ShmCall::AnswerFactor(const absl::StatusOr<FactorReply>& answer) {
  if (!answer.ok()) return Fail(answer.status());
  record_.SetCost(answer->cost);
  v1::FactorReply wire;
  ToWire(*answer, &wire);
  DropDetailsToFit(room_.size(), &wire);
  Succeed({}, &wire);
}

absl::Status ShmCall::ReadSystems(std::span<BlockTridiagonalView> matrices, bool check_finite,
                                  std::span<SolveManyParams::Columns> solves) const {
  const size_t systems = matrices.size();
  if (request_.num_rhs != static_cast<int64_t>(systems)) {
    return InvalidFieldError("num_rhs", absl::StrCat(request_.num_rhs, " systems"),
                             absl::StrCat("as many as in the message: ", systems));
  }
  absl::Status status = CheckReplyRoom(systems);
  if (!status.ok()) return status;
  const auto described =
      Data("rhs_offset", request_.rhs_offset, systems * sizeof(v1::ShmFactorSolve));
  if (!described.ok()) return described.status();
  const auto* const all = reinterpret_cast<const v1::ShmFactorSolve*>(described->data());
  uint64_t looked_at = 0;
  for (size_t i = 0; i < systems; ++i) {
    const v1::ShmFactorSolve one = CopyOnce(all[i]);
    BlockTridiagonalView& matrix = matrices[i];
    const auto read = [&](std::string_view part, uint64_t offset, uint64_t bytes, int64_t expected,
                          const void** place) -> absl::Status {
      const std::string name(part);
      if (bytes != static_cast<uint64_t>(expected)) {
        return InvalidFieldError(name + "_bytes", absl::StrCat(bytes, " bytes"),
                                 absl::StrCat(expected, " bytes"));
      }
      const auto data = Data(name + "_offset", offset, bytes);
      if (data.ok()) *place = data->data();
      return data.status();
    };
    status = read("diagonal", one.diagonal_offset, one.diagonal_bytes, matrix.form.diagonal_bytes(),
                  &matrix.diagonal);
    const MatrixForm& form = matrix.form;
    if (status.ok()) {
      status = read("coupling", one.coupling_offset, one.coupling_bytes,
                    form.bytes() - form.diagonal_bytes(), &matrix.coupling);
    }
    if (!status.ok()) return status;
    looked_at += check_finite ? static_cast<uint64_t>(form.bytes()) : 0;
    if (looked_at > session_->mapping().bytes()) {
      return InvalidFieldError("diagonal_offset", "matrices that overlap",
                               "matrices in places of their own, with check_finite");
    }
    matrix.border = static_cast<const std::byte*>(matrix.coupling) + form.coupling_bytes();
    matrix.corner = static_cast<const std::byte*>(matrix.border) + form.border_bytes();
    const auto columns =
        ColumnsOf(solves[i].num_rhs, one.rhs_offset, one.solution_offset, one.bytes);
    if (!columns.ok()) return columns.status();
    solves[i] = *columns;
  }
  return CheckTogether(solves);
}

absl::Status ShmCall::FactorSolve() {
  const auto& message = MessageOf<v1::FactorSolveRequest>();
  if (message.has_system() || !message.rhs().empty()) return DataInMessage("system, rhs");
  absl::StatusOr<FactorSolveParams> params = ReadHead(message, &record_);
  if (!params.ok()) return params.status();
  SolveManyParams::Columns columns{.num_rhs = params->num_rhs, .rhs = {}, .solution = {}};
  absl::Status status = ReadSystems({&params->matrix, 1}, params->check_finite, {&columns, 1});
  if (!status.ok()) return status;
  params->rhs = columns.rhs;
  params->solution = columns.solution;
  session_->state()->core->FactorSolve(
      record_.context(), *params,
      [self = shared_from_this()](const absl::StatusOr<SolveReply>& answer) mutable {
        std::exchange(self, nullptr)->AnswerFactorSolve(answer);
      });
  return absl::OkStatus();
}

void ShmCall::AnswerFactorSolve(const absl::StatusOr<SolveReply>& answer) {
  if (!answer.ok()) return Fail(answer.status());
  record_.SetCost(answer->cost);
  v1::FactorSolveReply wire;
  ToWire(*answer, &wire);
  Succeed({}, &wire);
}

absl::Status ShmCall::FactorSolveMany() {
  const auto& message = MessageOf<v1::FactorSolveManyRequest>();
  if (!message.matrix().empty() || !message.rhs().empty()) return DataInMessage("matrix, rhs");
  absl::StatusOr<FactorSolveManyParams> params = ReadHead(message, &record_);
  if (!params.ok()) return params.status();
  absl::Status status = ReadSystems(params->matrices, params->check_finite, params->solves);
  if (status.ok()) {
    status = session_->state()->core->host().Extend(
        record_.context()->tenant, std::ssize(params->handles) * kHostBytesPerSolve, &host_bytes_);
  }
  if (!status.ok()) return status;
  solves_ = params->solves;
  session_->state()->core->FactorSolveMany(
      record_.context(), *std::move(params),
      [self = shared_from_this()](absl::StatusOr<FactorSolveManyReply> answer) mutable {
        self->refactored_ = std::move(answer);
        AnswerSoon(std::move(self));
      });
  return absl::OkStatus();
}

void ShmCall::AnswerFactorSolveMany() {
  if (!refactored_.ok()) return Fail(refactored_.status());
  record_.SetCost(refactored_->cost);
  v1::SolveManyReply wire;
  ClearFailed(*refactored_, solves_);
  ToWire(*refactored_, &wire);
  SucceedMany(&wire);
}

}  // namespace blockd::server
