// Messages of few bytes on the wire that would take many once parsed.
#include "tests/integration/fixture.h"
#include "tests/support/peak_bytes.h"

namespace blockd::test {
namespace {

class HostileBytesTest : public IntegrationTest {
 protected:
  static constexpr int64_t kMiB = int64_t{1} << 20;

  void TearDown() override {
    ExpectServes();
    IntegrationTest::TearDown();
  }
  static std::string Repeat(const std::string& piece, int64_t bytes) {
    std::string all;
    all.reserve(static_cast<size_t>(bytes));
    while (static_cast<int64_t>(all.size() + piece.size()) <= bytes) all += piece;
    return all;
  }
  static std::string Field(int field, const std::string& bytes) {
    std::string all(1, static_cast<char>(field << 3 | 2));
    for (size_t length = bytes.size(); length > 0; length >>= 7) {
      all += static_cast<char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
    }
    return all + bytes;
  }
};

TEST_F(HostileBytesTest, AReleaseOfEmptyHandlesTakesNoMoreThanItsBytes) {
  Start();
  const std::string path = "/blockd.v1.Solver/Release";
  // Bytes that are one field which nobody knows: what 63 MiB take at least.
  const std::string plain = Field(15, std::string(63 * kMiB, 'x'));
  const std::string hostile = Repeat(std::string("\x0a\x00", 2), 63 * kMiB);
  // An allocator may keep what is freed: after a few calls it keeps no more.
  int64_t ordinary = 0;
  for (int i = 0; i < 4; ++i) {
    PeakBytes();
    EXPECT_TRUE(IsInvalid(RawCall(path, plain), "handle"));
    ordinary = std::max(ordinary, PeakBytes());
  }
  // Parsed, the handles of one message would take 1.8 GB.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(IsInvalid(RawCall(path, hostile), "handle"));
    EXPECT_LE(PeakBytes(), ordinary + 256 * kMiB);
  }
}

TEST_F(HostileBytesTest, AReleaseNamesAtMostTenThousandHandles) {
  Start();
  const std::string handle = Factor(HostMatrix(problems::Poisson(6, 5), Scalar::kFloat64));
  std::vector<std::string> handles(10'000, handle);
  handles.push_back(handle);
  EXPECT_TRUE(IsInvalid(ReleaseStatus(handles), "handle"));
  handles.pop_back();
  EXPECT_TRUE(IsOk(ReleaseStatus(handles)));
}

// Each index has a byte on the wire, and at most 12 while it is parsed.
TEST_F(HostileBytesTest, APaletteIsChargedForWhatItTakesOnceParsed) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = 48 * kMiB;
  Start(options);
  for (const int64_t mib : {1, 8}) {
    const std::string palette = Field(3, std::string(mib * kMiB, '\1'));
    const std::string spec = Field(6, palette);
    for (const char* method : {"GetPlan", "FactorStream", "Factor", "FactorSolve"}) {
      SCOPED_TRACE(method);
      const bool stream = std::string(method) == "FactorStream";
      const std::string message = stream ? Field(1, Field(1, spec)) : Field(1, spec);
      EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));  // what was answered is over
      const grpc::Status status = RawCall(std::string("/blockd.v1.Solver/") + method, message);
      if (mib == 1) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
        continue;
      }
      const auto limit = DetailOf<v1::LimitExceeded>(status);
      ASSERT_TRUE(limit.has_value()) << status.error_message();
      EXPECT_EQ(limit->limit(), "max_inflight_request_bytes");
      EXPECT_GT(limit->asked_bytes(), 8 * mib * kMiB);
    }
  }
}

TEST_F(HostileBytesTest, DeepNestingIsNoMessage) {
  Start();
  for (const char* method : {"Factor", "Solve", "Release", "GetPlan", "SolveStream",
                             "SelectedInverse", "Sample", "Smooth"}) {
    EXPECT_EQ(RawCall(std::string("/blockd.v1.Solver/") + method, Repeat("\xa3\x06", 8 * kMiB))
                  .error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(HostileBytesTest, FieldsThatNobodyKnowsAreChargedToo) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = 16 * kMiB;
  Start(options);
  for (const char* piece : {"\xa0\x06\x05", "\xa3\x06\xa4\x06"}) {
    const grpc::Status status = RawCall("/blockd.v1.Solver/GetServerInfo", Repeat(piece, 2 * kMiB));
    EXPECT_TRUE(DetailOf<v1::LimitExceeded>(status).has_value()) << status.error_message();
  }
}

}  // namespace
}  // namespace blockd::test
