#include "client/blockctl/json.h"

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

}  // namespace
}  // namespace blockd::blockctl
