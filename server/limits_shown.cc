// Limits of the server's options, as GetServerInfo shows them.
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/byte_size.h"
#include "server/options.h"
#include "server/transport/solver_service.h"

namespace blockd::server {

std::vector<OptionValue> Limits(const ServerOptions& o) {
  std::vector<OptionValue> limits;
  const auto add = [&limits](absl::string_view name, std::string value) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    limits.push_back({std::string(name), std::move(value), flag ? flag->Help() : ""});
  };
  const auto number = [&](absl::string_view name, int64_t v) { add(name, absl::StrCat(v)); };
  const auto bytes = [&](absl::string_view name, int64_t v) {
    add(name, AbslUnparseFlag(ByteSize{v}));
  };
  const auto time = [&](absl::string_view name, absl::Duration v) {
    add(name, absl::FormatDuration(v));
  };
  number("max_queued_requests", o.core.max_queued_requests);
  add("tenant_share", absl::StrCat(o.core.tenant_share));
  number("max_tenants", o.core.max_tenants);
  number("max_handles", o.core.max_handles);
  bytes("solve_reserve", o.core.solve_reserve_bytes);
  time("max_shared_batch", o.core.max_shared_batch);
  number("max_batch_requests", o.core.max_batch_requests);
  bytes("max_batch_bytes", o.core.max_batch_bytes);
  number("max_batch_rhs", o.core.max_batch_rhs);
  time("max_batch_delay", o.core.max_batch_delay);
  time("max_inline_solve", o.core.max_inline_solve);
  time("poll", o.core.poll);
  time("default_lease", o.core.default_lease);
  time("max_lease", o.core.max_lease);
  time("idle_expiry", o.core.idle_expiry);
  time("retry_delay", o.core.retry_delay);
  number("tombstones", o.core.tombstones);
  number("max_systems", o.core.max_systems);
  number("max_rhs", o.core.max_rhs);
  number("model_threads", o.core.model_threads);
  bytes("max_message_bytes", o.max_message_bytes);
  limits.push_back({"metadata_bytes", AbslUnparseFlag(ByteSize{kMaxMetadataBytes}),
                    "Bytes of one call's metadata, names and values; not a flag."});
  bytes("pinned_memory", o.device.host_memory_bytes);
  bytes("max_inflight_request_bytes", o.core.max_inflight_request_bytes);
  number("max_connections", o.max_connections);
  number("max_connection_streams", o.max_connection_streams);
  number("max_resets_per_second", o.max_resets_per_second);
  bytes("grpc_memory_bytes", o.grpc_memory_bytes);
  number("serving_threads", o.serving_threads);
  number("serving_queues", o.serving_queues);
  number("copy_threads", o.copy_threads);
  bytes("max_shared_memory_bytes", o.shared_memory.max_bytes);
  number("shared_memory_sessions", o.shared_memory.max_sessions);
  number("shared_memory_threads", o.shared_memory.threads);
  time("stream_idle_timeout", o.stream_idle_timeout);
  bytes("min_upload_bytes_per_second", o.min_upload_bytes_per_second);
  time("max_upload_duration", o.max_upload_duration);
  time("reply_timeout", o.reply_timeout);
  bytes("stream_chunk_bytes", o.stream_chunk_bytes);
  number("max_stream_requests", o.max_stream_requests);
  bytes("max_stream_bytes", o.max_stream_bytes);
  time("keepalive_time", o.keepalive_time);
  time("keepalive_timeout", o.keepalive_timeout);
  time("max_connection_age", o.max_connection_age);
  time("max_connection_idle", o.max_connection_idle);
  time("handshake_timeout", o.handshake_timeout);
  time("min_ping_interval", o.min_ping_interval);
  bytes("http2_frame_bytes", o.http2_frame_bytes);
  bytes("http2_window_bytes", o.http2_window_bytes);
  time("drain_grace", o.drain_grace);
  time("drain_timeout", o.drain_timeout);
  bytes("log_buffer_bytes", o.log_buffer_bytes);
  number("log_requests_per_second", o.log_requests_per_second);
  return limits;
}

}  // namespace blockd::server
