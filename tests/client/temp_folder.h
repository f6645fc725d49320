// A folder of a test's own, so that tests may run side by side.
#ifndef BLOCKD_TESTS_CLIENT_TEMP_FOLDER_H_
#define BLOCKD_TESTS_CLIENT_TEMP_FOLDER_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace blockd::blockctl {

// Goes with all that is in it.
class TempFolder {
 public:
  TempFolder() : path_(::testing::TempDir() + "/blockd-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace blockd::blockctl

#endif  // BLOCKD_TESTS_CLIENT_TEMP_FOLDER_H_
