// A folder of its own for a test's files, so that tests may run side by side.
#ifndef BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_
#define BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace blockd::test {

// Made empty, under TMPDIR; removed with all that is in it. One thread at a time.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "blockd-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();  // nowhere to write: no test can run
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string File(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_TEMP_FOLDER_H_
