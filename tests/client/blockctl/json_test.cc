#include "client/blockctl/text/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace blockd::blockctl {
namespace {

TEST(JsonTest, ObjectsAndArraysNest) {
  JsonWriter json;
  json.BeginObject().Field("a", 1).Key("b").BeginArray().Value(1.5).Value("x").BeginObject();
  json.EndObject().EndArray().Field("c", true).Key("d").BeginArray().EndArray().EndObject();
  EXPECT_EQ(json.text(), R"({"a": 1, "b": [1.5, "x", {}], "c": true, "d": []})");
}

TEST(JsonTest, TextIsEscaped) {
  JsonWriter json;
  json.Value("a \"quoted\" \\ path\n");
  EXPECT_EQ(json.text(), R"("a \"quoted\" \\ path\u000a")");
}

TEST(JsonTest, NumbersReadBackAndOthersAreNull) {
  JsonWriter json;
  json.BeginArray().Value(0.1).Value(1.0 / 3).Value(1e-300).Value(INFINITY).Value(NAN).EndArray();
  EXPECT_EQ(json.text(), "[0.1, 0.3333333333333333, 1e-300, null, null]");
}

TEST(JsonTest, NumbersHaveTheFewestDigitsThatReadBack) {
  JsonWriter json;
  json.BeginArray().Value(1.0).Value(-2.5).Value(123456789.0).Value(0.1 + 0.2).Value(1e22);
  json.Value(int64_t{-9007199254740993}).Value(false).Value("").EndArray();
  EXPECT_EQ(json.text(),
            "[1, -2.5, 123456789, 0.30000000000000004, 1e+22, -9007199254740993, false, \"\"]");
}

TEST(JsonTest, KeysAndControlCharactersAreEscaped) {
  JsonWriter json;
  json.BeginObject().Field("a\"b", "\x1f\t").Field("c", std::string("d\x7f")).EndObject();
  EXPECT_EQ(json.text(), "{\"a\\\"b\": \"\\u001f\\u0009\", \"c\": \"d\x7f\"}");
}

}  // namespace
}  // namespace blockd::blockctl
