// A folder of a test's own, so that tests may run side by side.
#ifndef BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_
#define BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace blockd::test {

// Made empty, under TMPDIR; removed with all that is in it. One thread at a time.
class TempFolder {
 public:
  TempFolder() : path_((std::filesystem::temp_directory_path() / "blockd-test-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();  // nowhere to write: no test can run
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_
