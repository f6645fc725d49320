#include "client/calls/factor.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/client/errors.h"
#include "client/calls/shm_calls.h"
#include "client/upload/upload.h"
#include "client/wire/requests.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

absl::Status CheckOneRoute(std::span<const Factorization> handles) {
  for (const Factorization& handle : handles) {
    if (handle.route != handles[0].route) {
      return InvalidFieldError("options.handle", "handles of several servers",
                               "those of one server in a call");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FactorAnswer> FactorSystems(const Connection& connection,
                                           std::span<const SystemView> systems,
                                           std::span<const Factorization> handles,
                                           const FactorOptions& options) {
  if (absl::Status status = CheckSystems(systems, handles); !status.ok()) return status;
  if (absl::Status status = CheckOneRoute(handles); !status.ok()) return status;
  const absl::Time deadline = connection.Deadline(options.timeout);
  v1::FactorRequest request;  // one key for all attempts
  *request.mutable_spec() = ToProto(systems[0]);
  *request.mutable_options() = ToProto(options, handles);
  const Factorization* on = handles.empty() ? nullptr : &handles[0];
  FactorAnswer answer;
  absl::Status status;
  std::optional<absl::Status> shared;
  if (connection.shared_memory() != nullptr) {
    std::vector<SharedData> data;
    for (const SystemView& system : systems) SharedData::AddMatrix(system, &data);
    shared = CallShared(connection, on, v1::ShmOperation::kFactor, request, std::move(data),
                        deadline, &answer.reply);
  }
  if (shared) {
    status = *shared;
  } else if (TotalBytes(systems) > connection.options().stream_threshold_bytes) {
    v1::FactorStreamHeader header;
    header.set_num_systems(static_cast<int64_t>(systems.size()));
    *header.mutable_spec() = std::move(*request.mutable_spec());
    *header.mutable_options() = std::move(*request.mutable_options());
    const std::string sent_route = on != nullptr ? on->route : "";
    int connections = UploadConnections(connection.options(), TotalBytes(systems));
    status = connection.Retry(
        deadline,
        [&](grpc::ClientContext&) {
          // An upload that failed over several is tried again over one, which needs the least.
          return UploadAndFactor(connection, std::exchange(connections, 1), deadline, sent_route,
                                 header, systems, options.progress, &answer.reply, &answer.route);
        },
        on);
  } else {
    for (const SystemView& system : systems) SetData(system, request.add_system());
    status = connection.Retry(
        deadline,
        [&](grpc::ClientContext& context) {
          const absl::Status once =
              ToStatus(connection.Ask(context, "Factor", request, &answer.reply));
          if (once.ok()) answer.route = RouteOf(context);
          return once;
        },
        on);
  }
  if (!status.ok()) return status;
  if (answer.reply.system_size() != static_cast<int>(systems.size())) {
    return absl::InternalError(absl::StrCat("the server answered for ", answer.reply.system_size(),
                                            " systems, expected ", systems.size()));
  }
  return answer;
}

}  // namespace blockd::client
