#include "client/blockctl/formats/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace blockd::blockctl {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

absl::Status FileError(const std::string& path, const char* verb) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot ", verb, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return FileError(path, "read");
  std::string bytes;
  if (std::fseek(file.get(), 0, SEEK_END) == 0) {
    const long size = std::ftell(file.get());
    if (size > 0 && size < (int64_t{1} << 60)) bytes.reserve(size);
    std::rewind(file.get());
  }
  char buffer[1 << 16];
  size_t got;
  while ((got = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) bytes.append(buffer, got);
  if (std::ferror(file.get()) != 0) return FileError(path, "read");
  return bytes;
}

absl::Status WriteFile(const std::string& path, std::initializer_list<std::string_view> parts) {
  const std::string beside = absl::StrCat(path, ".part", getpid());
  File file(std::fopen(beside.c_str(), "wb"), std::fclose);
  if (file == nullptr) return FileError(path, "write");
  bool written = true;
  for (const std::string_view part : parts) {
    written = written && std::fwrite(part.data(), 1, part.size(), file.get()) == part.size();
  }
  written = std::fclose(file.release()) == 0 && written;
  if (written && std::rename(beside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = FileError(path, "write");
  std::remove(beside.c_str());
  return status;
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", std::string(status.message())));
}

}  // namespace blockd::blockctl
