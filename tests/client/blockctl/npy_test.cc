#include "client/blockctl/formats/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/blockctl/formats/files.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using test::TempFolder;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Npy(const std::string& header, const std::string& data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const size_t length = header.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

std::string Doubles(std::vector<double> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::string NpyErrorOf(const std::string& bytes) {
  const absl::StatusOr<Array> array = ParseNpy(bytes);
  EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(array.status().message());
}

TEST(NpyTest, ReadsWhatNumPyWrites) {
  const std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
  for (const int version : {1, 2, 3}) {
    const absl::StatusOr<Array> array = ParseNpy(Npy(header, Doubles({1, 2, 3, 4, 5, 6}), version));
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(array->shape, ElementsAre(2, 3));
    EXPECT_FALSE(array->fortran_order);
    EXPECT_EQ(array->as<double>()[4], 5);
  }
}

TEST(NpyTest, ReadsFortranOrderFloat32AndOneDimension) {
  const float values[] = {1.5F, 2.5F};
  const absl::StatusOr<Array> array =
      ParseNpy(Npy("{'descr':'<f4','fortran_order':True,'shape':(2,)}",
                   {reinterpret_cast<const char*>(values), sizeof(values)}));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->scalar, client::Scalar::kFloat32);
  EXPECT_TRUE(array->fortran_order);
  EXPECT_THAT(array->shape, ElementsAre(2));
  EXPECT_EQ(array->as<float>()[1], 2.5F);
}

TEST(NpyTest, BooleansAreZeroAndOne) {
  const auto mask = ParseNpy(
      Npy("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", std::string("\1\0\1", 3)));
  ASSERT_TRUE(mask.ok()) << mask.status();
  EXPECT_EQ(mask->scalar, client::Scalar::kFloat64);
  EXPECT_THAT(std::vector<double>(mask->as<double>(), mask->as<double>() + 3),
              ElementsAre(1, 0, 1));
}

TEST(NpyTest, WhatIsWrittenReadsBackTheSame) {
  Array array;
  array.shape = {2, 2};
  array.fortran_order = true;
  array.data.resize(4 * sizeof(double));
  for (int i = 0; i < 4; ++i) array.as<double>()[i] = i + 0.25;
  const TempFolder folder;
  const std::string path = folder / "written.npy";
  ASSERT_TRUE(WriteNpy(path, array).ok());
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((bytes->size() - 4 * sizeof(double)) % 64, 0);  // aligned, as NumPy wants it
  const absl::StatusOr<Array> back = ParseNpy(*bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shape, array.shape);
  EXPECT_EQ(back->fortran_order, true);
  EXPECT_EQ(back->data, array.data);
}

TEST(NpyTest, SaysWhatIsWrong) {
  EXPECT_THAT(NpyErrorOf("PK\x03\x04 a zip file"), HasSubstr("NUMPY"));
  EXPECT_THAT(NpyErrorOf(""), HasSubstr("NUMPY"));
  EXPECT_THAT(NpyErrorOf(Npy("", "", 9)), HasSubstr("version 9"));
  EXPECT_THAT(
      NpyErrorOf(Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", "12345678")),
      HasSubstr("astype('<f8')"));
  EXPECT_THAT(
      NpyErrorOf(Npy("{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }", "12345678")),
      HasSubstr("'>f8'"));
  EXPECT_THAT(
      NpyErrorOf(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", "12345678")),
      HasSubstr("needs 24"));
  EXPECT_THAT(NpyErrorOf(Npy("{'descr': '<f8', 'shape': (1,), }", "12345678")), HasSubstr("lacks"));
  EXPECT_THAT(NpyErrorOf(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", "")),
              HasSubstr("shape"));
  EXPECT_THAT(NpyErrorOf(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, "
                             "1099511627776), }",
                             "")),
              HasSubstr("overflows"));
  const std::string cut = Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", "");
  EXPECT_THAT(NpyErrorOf(cut.substr(0, 30)), HasSubstr("ends in the header"));
}

TEST(NpyTest, AMissingFileIsNamed) {
  const absl::StatusOr<Array> array = ReadNpy("/nowhere/a.npy");
  EXPECT_THAT(std::string(array.status().message()),
              HasSubstr("/nowhere/a.npy: cannot read: No such file"));
}

TEST(FilesTest, AFailedWriteLeavesNothingBehind) {
  EXPECT_FALSE(WriteFile("/nowhere/x", {"text"}).ok());
  const TempFolder folder;
  EXPECT_FALSE(WriteFile(folder.path(), {"text"}).ok());  // a folder stands there
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(folder.path(), ".part", getpid())));
}

TEST(NpyTest, AHeaderIsWrittenAsNumPyWritesIt) {
  const TempFolder folder;
  Array array;
  array.scalar = client::Scalar::kFloat32;
  array.shape = {2, 1, 3};
  array.data.resize(6 * sizeof(float));
  for (int k = 0; k < 6; ++k) array.as<float>()[k] = static_cast<float>(k);
  ASSERT_TRUE(WriteNpy(folder / "a.npy", array).ok());
  const std::string bytes = ReadFile(folder / "a.npy").value_or("");
  ASSERT_EQ(bytes.size(), 128 + 24);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3), }";
  EXPECT_EQ(bytes.substr(10, 118), header + std::string(117 - header.size(), ' ') + "\n");
  const absl::StatusOr<Array> back = ReadNpy(folder / "a.npy");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->scalar, array.scalar);
  EXPECT_EQ(back->shape, array.shape);
  EXPECT_FALSE(back->fortran_order);
  EXPECT_EQ(back->data, array.data);
}

TEST(NpyTest, LongHeadersHaveLongLengths) {
  const std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }";
  for (const auto& [version, length] : std::vector<std::pair<int, size_t>>{
           {1, 300}, {1, 65535}, {2, 300}, {2, 70000}, {3, 20000000}}) {
    const absl::StatusOr<Array> array =
        ParseNpy(Npy(header + std::string(length - header.size(), ' '), Doubles({7}), version));
    ASSERT_TRUE(array.ok()) << array.status() << version << " " << length;
    EXPECT_EQ(array->as<double>()[0], 7);
  }
}

TEST(NpyTest, KeysMayComeInAnyOrderAndShapesHaveAnyLength) {
  const absl::StatusOr<Array> array =
      ParseNpy(Npy("{'shape': (), 'fortran_order':  False, 'descr': '<f8'}", Doubles({3})));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_TRUE(array->shape.empty());
  EXPECT_EQ(array->size(), 1);
  EXPECT_EQ(ShapeText({}), "()");
  EXPECT_EQ(ShapeText({3}), "(3,)");
  EXPECT_EQ(ShapeText({3, 4, 5}), "(3, 4, 5)");
  EXPECT_EQ(ParseNpy(Npy("{'shape': (0, 4), 'fortran_order': False, 'descr': '<f8'}", ""))->size(),
            0);
}

TEST(NpyTest, DataTooLongOrTooShortIsRefused) {
  const std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }";
  EXPECT_THAT(NpyErrorOf(Npy(header, Doubles({1, 2, 3}))), HasSubstr("holds 24 bytes"));
  EXPECT_THAT(NpyErrorOf(Npy(header, Doubles({1}))), HasSubstr("holds 8 bytes"));
  EXPECT_THAT(NpyErrorOf(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': 2, }", "")),
              HasSubstr("shape"));
  EXPECT_THAT(
      NpyErrorOf(Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2199023255552,), }", "")),
      HasSubstr("shape"));
}

TEST(FilesTest, PartsAreWrittenInOrderAndNothingElseIsLeft) {
  const TempFolder folder;
  const std::string path = folder / "file";
  ASSERT_TRUE(WriteFile(path, {"old and longer"}).ok());
  const std::string large(200000, 'x');
  ASSERT_TRUE(WriteFile(path, {"one", "", large, std::string_view("\0two", 4)}).ok());
  EXPECT_EQ(ReadFile(path).value_or(""), "one" + large + std::string("\0two", 4));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(InFile("a.txt", absl::NotFoundError("gone")), absl::NotFoundError("a.txt: gone"));
}

TEST(FilesTest, AFolderIsNoFile) {
  const TempFolder folder;
  const absl::Status status = ReadFile(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path() + ": cannot read"));
}

}  // namespace
}  // namespace blockd::blockctl
