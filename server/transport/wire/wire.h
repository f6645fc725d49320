// Between the wire and the core: every field of a request is checked here, or where only the core
// can know what it must be, there.
//
// Errors are INVALID_ARGUMENT with the field's path, what came and what was expected. Pure
// functions, thread-safe. What a view points to is the request's own memory.
#ifndef BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_H_
#define BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"
#include "server/core/solver_core.h"

namespace blockd::server {

// spec, its palette's indices included.
absl::StatusOr<MatrixForm> ToForm(const v1::SystemSpec& spec);
std::span<const uint32_t> DiagonalIndex(const v1::SystemSpec& spec);
std::span<const uint32_t> CouplingIndex(const v1::SystemSpec& spec);

// Nothing is INTERACTIVE.
absl::Status ReadPriority(std::string_view path, v1::PriorityClass priority,
                          RequestContext* context);
absl::StatusOr<Accuracy> ToAccuracy(std::string_view path, v1::Accuracy accuracy);

// Reads the parameters for the handlers of both Factor and FactorStream. The handler checks
// `num_systems`.
absl::StatusOr<FactorParams> ToFactorParams(const MatrixForm& form, int64_t num_systems,
                                            const v1::FactorOptions& options);

// One system's blocks; `path` names it in errors: "system[2]".
absl::StatusOr<BlockTridiagonalView> ToView(const MatrixForm& form, const v1::SystemSpec& spec,
                                            const v1::SystemData& data, std::string_view path);
// The same of a matrix whose blocks lie elsewhere: form and indices, which are the spec's own.
BlockTridiagonalView ViewWithoutBlocks(const MatrixForm& form, const v1::SystemSpec& spec);

// `path` as above: "handle", "options.handle[1]".
absl::StatusOr<Handle> ToHandle(std::string_view path, std::string_view bytes);

// num_rhs and the options of a Solve.
absl::StatusOr<SolveParams> ToSolveParams(const v1::SolveRequest& request);

// Bytes of `num_rhs` right-hand sides; INVALID_ARGUMENT if they overflow or num_rhs < 1.
absl::StatusOr<int64_t> RhsBytes(const BorderedShape& shape, int64_t num_rhs,
                                 std::string_view path);

// INVALID_ARGUMENT if it is negative or no duration.
absl::StatusOr<absl::Duration> ToDuration(std::string_view path,
                                          const google::protobuf::Duration& wire);

void ToWire(absl::Duration duration, google::protobuf::Duration* wire);

// A page of a list of handles: `size` is 1 to kMaxPageSize, and that where nothing was asked;
// without `after` the first.
inline constexpr int32_t kMaxPageSize = 1000;
struct AskedPage {
  int64_t size = kMaxPageSize;
  std::optional<Handle> after;
};
absl::StatusOr<AskedPage> ToPage(int32_t page_size, const std::string& page_token);

std::span<const std::byte> AsBytes(std::string_view text);

v1::ScalarType ToWire(Scalar scalar);
void ToWire(const Cost& cost, v1::Cost* wire);
void ToWire(const FactorReply& reply, v1::FactorReply* wire);
void ToWire(const SolveReply& reply, v1::SolveReply* wire);
// The reply has one system.
void ToWire(const FactorSolveReply& reply, v1::FactorSolveReply* wire);
void ToWire(const FactorizationStats& stats, v1::FactorizationInfo* wire);
void ToWire(const PlanReply& reply, v1::Plan* wire);

// The status with its typed detail.
v1::RpcStatus ToRpcStatus(const absl::Status& status);
// The same as a call's own status: the detail goes to grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_WIRE_WIRE_H_
