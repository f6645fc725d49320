// Uploads over several connections: the same bits as over one, and what may join.
#include "tests/integration/upload/joined_upload.h"

namespace blockd::test {
namespace {

TEST_F(JoinedUploadTest, SeveralConnectionsGiveTheBitsOfOne) { ExpectTheBitsOfOne(); }

TEST_F(JoinedUploadTest, AnIdIsOfOneCallerAndOfOneUpload) {
  const auto began = Begin();
  const size_t rest = bytes_.size() - kFirstPart;
  const grpc::Status unknown = JoinStatus("another 16 bytes", kFirstPart, rest);
  const grpc::Status foreign = JoinStatus(kId, kFirstPart, rest, "mallory");
  EXPECT_TRUE(IsCode(unknown, grpc::StatusCode::NOT_FOUND));
  EXPECT_TRUE(IsCode(foreign, grpc::StatusCode::NOT_FOUND));
  EXPECT_EQ(unknown.error_message(), foreign.error_message());
  EXPECT_TRUE(IsCode(JoinStatus("", kFirstPart, rest), grpc::StatusCode::NOT_FOUND));
  Stream twin(stub());
  twin.writer->Write(Header());
  EXPECT_TRUE(IsInvalid(twin.Finish(), "upload_id"));
  // Another caller's upload may have the same id.
  Stream other(stub(), "mallory");
  other.writer->Write(Header());
  other.SendChunks(bytes_, 50000);
  EXPECT_TRUE(IsOk(other.Finish()));
  FinishWell(*began);
}

TEST_F(JoinedUploadTest, AnIdHasSixteenBytes) {
  for (const size_t bytes : {1, 15, 17, 1000}) {
    Stream stream(stub());
    v1::FactorStreamRequest header = Header();
    header.mutable_header()->set_upload_id(std::string(bytes, 'x'));
    stream.writer->Write(header);
    EXPECT_TRUE(IsInvalid(stream.Finish(), "upload_id"));
  }
}

TEST_F(JoinedUploadTest, RangesThatLieAreRefusedAndHarmNobody) {
  const auto began = Begin();
  const size_t end = bytes_.size();
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart + 1, 8), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, end, 8), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, size_t{} - 8, 16), "join.first_byte"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, 0), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, end), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart, size_t{} - 8), "join.num_bytes"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, 0, end), "join"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, kFirstPart - 8, 16), "join"));
  FinishWell(*began);
}

TEST_F(JoinedUploadTest, AStreamMayBringSeveralRanges) {
  const std::vector<double> expected = Solve(Factor(matrix_), problem_.rhs);
  const auto began = Begin();
  const std::string_view bytes = bytes_;
  const size_t third = (bytes.size() - kFirstPart) / 3 / 8 * 8;
  const size_t cuts[] = {kFirstPart, kFirstPart + third, kFirstPart + 2 * third, bytes.size()};
  Stream joined(stub());
  for (const size_t k : {2, 0, 1}) {  // from anywhere, in any order
    const size_t size = cuts[k + 1] - cuts[k];
    EXPECT_TRUE(joined.Join(kId, cuts[k], size));
    EXPECT_TRUE(joined.SendChunks(bytes.substr(cuts[k], size), 9973));
  }
  EXPECT_TRUE(IsOk(joined.Finish()));
  ASSERT_TRUE(IsOk(began->Finish()));
  EXPECT_EQ(Solve(began->reply.system(0).handle(), problem_.rhs), expected);
}

// A wrong further range on one stream ends all streams of the upload.
TEST_F(JoinedUploadTest, AFurtherRangeIsOneOfTheSameUploadAndComesBehindTheBytesOfTheLast) {
  struct Further {
    size_t sent;  // of the 800 bytes before it
    std::string id;
    size_t first, bytes;
    grpc::StatusCode code;
  };
  const size_t next = kFirstPart + 800;
  for (const auto& [sent, id, first, bytes, code] :
       {Further{792, kId, next, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{0, kId, next, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, kFirstPart + 792, 16, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, next + 1, 8, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, kId, next, 0, grpc::StatusCode::INVALID_ARGUMENT},
        Further{800, "another 16 bytes", next, 8, grpc::StatusCode::NOT_FOUND}}) {
    const auto began = Begin();
    Stream joined(stub());
    EXPECT_TRUE(joined.Join(kId, kFirstPart, 800));
    EXPECT_TRUE(joined.SendChunks(std::string(sent, 'x'), 100));
    joined.Join(id, first, bytes);
    EXPECT_TRUE(IsCode(joined.Finish(), code)) << sent << " " << id << " " << first;
    EXPECT_FALSE(began->writer->Finish().ok());
    EXPECT_TRUE(AllReturns());
  }
  // Nor is one cut short.
  const auto began = Begin();
  Stream joined(stub());
  for (const size_t first : {kFirstPart, next}) {
    EXPECT_TRUE(joined.Join(kId, first, 800));
    EXPECT_TRUE(joined.SendChunks(std::string(first == next ? 799 : 800, 'x'), 100));
  }
  EXPECT_TRUE(IsInvalid(joined.Finish(), "chunk"));
  EXPECT_FALSE(began->writer->Finish().ok());
  EXPECT_TRUE(AllReturns());
  ExpectServes();
}

TEST_F(JoinedUploadTest, AJoinThatComesTwiceIsRefusedOnce) {
  const auto began = Begin();
  const size_t half = kFirstPart + 8000;
  Stream first(stub());
  EXPECT_TRUE(first.Join(kId, half, bytes_.size() - half));
  EXPECT_TRUE(first.SendChunks(std::string_view(bytes_).substr(half), 5000));
  EXPECT_TRUE(IsOk(first.Finish()));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, half, bytes_.size() - half), "join"));
  EXPECT_TRUE(IsInvalid(JoinStatus(kId, bytes_.size() - 8, 8), "join"));
  EXPECT_TRUE(began->SendChunks(std::string_view(bytes_).substr(kFirstPart, 8000), 3000));
  EXPECT_TRUE(IsOk(began->Finish()));
}

TEST_F(JoinedUploadTest, NobodyJoinsBeforeTheFirstPartIsThere) {
  Stream stream(stub());
  EXPECT_TRUE(stream.writer->Write(Header()));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(0, 100), 100));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 100; }));
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_TRUE(stream.SendChunks(std::string_view(bytes_).substr(100), 50000));
  EXPECT_TRUE(IsOk(stream.Finish()));
  EXPECT_TRUE(IsCode(JoinStatus(kId, kFirstPart, 8), grpc::StatusCode::NOT_FOUND));
}

TEST_F(JoinedUploadTest, AStreamBeginsWithOneFirstMessage) {
  const auto began = Begin();
  EXPECT_TRUE(began->Join(kId, kFirstPart, 8));
  EXPECT_TRUE(IsInvalid(began->writer->Finish(), "join"));
  EXPECT_TRUE(AllReturns());
  const auto again = Begin();
  Stream joined(stub());
  EXPECT_TRUE(joined.Join(kId, kFirstPart, 8));
  joined.writer->Write(Header());
  EXPECT_TRUE(IsInvalid(joined.writer->Finish(), "header"));
  EXPECT_FALSE(again->writer->Finish().ok());  // they fail together
  EXPECT_TRUE(AllReturns());
}

}  // namespace
}  // namespace blockd::test
