#include "server/transport/calls/core_calls.h"

#include <gtest/gtest.h>

#include <string>

#include "blockd/v1/blockd.pb.h"

namespace blockd::server {
namespace {

using Request = v1::SolveStreamRequest;

// Its message is the part's, and its answer has a place in the reply.
TEST(CoreCallsTest, EveryPartOfAStreamButChunksAndCancelsIsACall) {
  EXPECT_EQ(FindStreamPart(CoreCall::kNoField), nullptr);
  const auto& parts = *Request::descriptor()->FindOneofByName("part");
  for (int i = 0; i < parts.field_count(); ++i) {
    const int part = parts.field(i)->number();
    const CoreCallKind* const kind = FindStreamPart(part);
    if (part == Request::kChunkFieldNumber || part == Request::kCancelFieldNumber) {
      EXPECT_EQ(kind, nullptr);
      continue;
    }
    ASSERT_NE(kind, nullptr) << parts.field(i)->name();
    EXPECT_EQ(kind->make()->message().GetDescriptor(), parts.field(i)->message_type());
    EXPECT_NE(v1::SolveStreamReply::descriptor()->FindFieldByNumber(kind->stream_reply_field),
              nullptr);
  }
}

TEST(CoreCallsTest, EachIsFoundByItsName) {
  const auto& service = *v1::SolveRequest::descriptor()->file()->FindServiceByName("Solver");
  int found = 0;
  for (int i = 0; i < service.method_count(); ++i) {
    const auto& method = *service.method(i);
    const CoreCallKind* const kind = FindUnary("/blockd.v1.Solver/" + std::string(method.name()));
    if (kind == nullptr) continue;
    ++found;
    EXPECT_EQ(kind->make()->message().GetDescriptor(), method.input_type());
    EXPECT_EQ(MethodName(kind->method), method.name());
  }
  EXPECT_EQ(found, 6);
  EXPECT_EQ(FindUnary("/blockd.v1.Solver/solve"), nullptr);
}

}  // namespace
}  // namespace blockd::server
