// An upload over several connections, as tests drive it.
#ifndef BLOCKD_TESTS_INTEGRATION_UPLOAD_JOINED_UPLOAD_H_
#define BLOCKD_TESTS_INTEGRATION_UPLOAD_JOINED_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/integration/fixture.h"

namespace blockd::test {

inline constexpr size_t kFirstPart = 64 << 10;

class JoinedUploadTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }

  // One stream, over a connection of its own or the fixture's.
  struct Stream {
    explicit Stream(v1::Solver::Stub& stub, const std::string& caller = "")
        : context(NewContext(caller)), writer(stub.FactorStream(context.get(), &reply)) {}
    // False if it is answered already.
    bool SendChunks(std::string_view bytes, size_t size) {
      v1::FactorStreamRequest message;
      for (size_t at = 0; at < bytes.size(); at += size) {
        message.set_chunk(std::string(bytes.substr(at, size)));
        if (!writer->Write(message)) return false;
      }
      return true;
    }
    bool Join(const std::string& id, size_t first, size_t bytes) {
      v1::FactorStreamRequest message;
      message.mutable_join()->set_upload_id(id);
      message.mutable_join()->set_first_byte(static_cast<int64_t>(first));
      message.mutable_join()->set_num_bytes(static_cast<int64_t>(bytes));
      return writer->Write(message);
    }
    // Waits for the initial metadata. True if it says that others may join.
    bool AwaitOpen() {
      writer->WaitForInitialMetadata();
      const auto& metadata = context->GetServerInitialMetadata();
      const auto found = metadata.find("blockd-upload");
      return found != metadata.end() && found->second == "open";
    }
    grpc::Status Finish() {
      writer->WritesDone();
      return writer->Finish();
    }

    std::unique_ptr<grpc::ClientContext> context;
    v1::FactorReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::FactorStreamRequest>> writer;
  };

  std::unique_ptr<v1::Solver::Stub> NewStub() { return v1::Solver::NewStub(NewChannel()); }

  v1::FactorStreamRequest Header() const {
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
    message.mutable_header()->set_num_systems(1);
    message.mutable_header()->set_upload_id(kId);
    return message;
  }
  // An upload that may be joined: its first part is there. Null where it was refused, or too slow.
  std::unique_ptr<Stream> TryBegin() {
    auto stream = std::make_unique<Stream>(stub());
    stream->writer->Write(Header());
    stream->SendChunks(std::string_view(bytes_).substr(0, kFirstPart), kFirstPart);
    return stream->AwaitOpen() ? std::move(stream) : nullptr;
  }
  std::unique_ptr<Stream> Begin() {
    auto stream = TryBegin();
    EXPECT_NE(stream, nullptr);
    return stream;
  }
  grpc::Status JoinStatus(const std::string& id, size_t first, size_t bytes,
                          const std::string& caller = "") {
    Stream joined(stub(), caller);
    joined.Join(id, first, bytes);
    return joined.Finish();
  }
  // The rest on one joined stream, and the end of both.
  void FinishWell(Stream& began) {
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart, bytes_.size() - kFirstPart));
    EXPECT_TRUE(joined.SendChunks(std::string_view(bytes_).substr(kFirstPart), 10007));
    EXPECT_TRUE(IsOk(joined.Finish()));
    EXPECT_EQ(joined.reply.system_size(), 0);
    EXPECT_TRUE(IsOk(began.Finish()));
    ASSERT_EQ(began.reply.system_size(), 1);
    ExpectSolves(matrix_, Solve(began.reply.system(0).handle(), problem_.rhs), problem_.rhs);
  }
  void ExpectTheBitsOfOne() {
    const std::vector<double> expected = Solve(Factor(matrix_), problem_.rhs);
    for (const size_t chunk : {size_t{997}, size_t{30000}}) {
      const auto began = Begin();
      constexpr size_t kJoined = 4;
      const size_t share = (bytes_.size() - kFirstPart) / (kJoined + 1) / 8 * 8;
      std::vector<std::thread> threads;
      for (size_t k = 1; k <= kJoined; ++k) {
        threads.emplace_back([&, k] {
          const auto own_stub = NewStub();
          Stream joined(*own_stub);
          const size_t first = kFirstPart + k * share;
          const size_t bytes = k < kJoined ? share : bytes_.size() - first;
          EXPECT_TRUE(joined.Join(kId, first, bytes));
          EXPECT_TRUE(joined.SendChunks(std::string_view(bytes_).substr(first, bytes), chunk));
          EXPECT_TRUE(IsOk(joined.Finish()));
        });
      }
      EXPECT_TRUE(began->SendChunks(std::string_view(bytes_).substr(kFirstPart, share), chunk));
      for (std::thread& thread : threads) thread.join();
      ASSERT_TRUE(IsOk(began->Finish()));
      EXPECT_EQ(Solve(began->reply.system(0).handle(), problem_.rhs), expected);
    }
    EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  }
  bool AllReturns() {
    return Eventually([&] { return ReservedBytes() == 0 && HostBytes() == 0; });
  }
  static bool IsCode(const grpc::Status& status, grpc::StatusCode code) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_code() == code;
  }

  static const inline std::string kId = "sixteen bytes...";
  const problems::Problem problem_ = problems::RandomSpd(50, 16, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  const std::string bytes_ = DataOf(matrix_).diagonal() + DataOf(matrix_).coupling();
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_UPLOAD_JOINED_UPLOAD_H_
