#include "server/transport/shm/shm_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

uint64_t RoundedUp(uint64_t bytes) {
  return (bytes + ShmMapping::kPage - 1) / ShmMapping::kPage * ShmMapping::kPage;
}

// A page that the system lacked only when it is touched would end the process.
bool PopulatePart(std::byte* base, uint64_t begin, uint64_t bytes, int fd) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(base + begin, bytes, MADV_POPULATE_WRITE) == 0) return true;
#endif
  do {  // older kernels, where each page is mapped when it is touched
    errno = posix_fallocate(fd, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (errno == EINTR);
  return errno == 0;
}

absl::Status NoMemory(const char* what, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot share ", bytes, " bytes of memory: ", what, ": ", std::strerror(errno)));
}

}  // namespace

uint64_t ShmMapping::DataOffset(uint32_t slots) {
  return RoundedUp(v1::kShmHeaderBytes + slots * (sizeof(v1::ShmRequest) + sizeof(v1::ShmReply)));
}

uint64_t ShmMapping::BytesFor(uint32_t slots, uint64_t data_bytes) {
  return DataOffset(slots) + RoundedUp(data_bytes);
}

absl::StatusOr<ShmMapping> ShmMapping::Create(uint32_t slots, uint64_t data_bytes) {
  ShmMapping mapping;
  mapping.slots_ = slots;
  mapping.bytes_ = BytesFor(slots, data_bytes);
  const auto size = static_cast<off_t>(mapping.bytes_);
  mapping.memory_.Reset(memfd_create("blockd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = mapping.fd();
  if (fd < 0 || ftruncate(fd, size) != 0) return NoMemory("memfd", mapping.bytes_);
  // A file that could shrink would end whoever reads behind its end.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory("seals", mapping.bytes_);
  }
  void* const base = mmap(nullptr, mapping.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return NoMemory("mmap", mapping.bytes_);
  mapping.base_ = static_cast<std::byte*>(base);
  madvise(base, mapping.bytes_, MADV_HUGEPAGE);  // where refused, small pages serve
  return mapping;
}

absl::StatusOr<bool> ShmMapping::Populate(uint64_t most) {
  const uint64_t bytes = std::min(most, bytes_ - populated_);
  if (!PopulatePart(base_, populated_, bytes, fd())) return NoMemory("pages", bytes_);
  if (populated_ == 0) new (base_) v1::ShmHeader();
  populated_ += bytes;
  return populated_ == bytes_;
}

ShmMapping::~ShmMapping() {
  registered_ = RegisteredMemory();
  if (base_ != nullptr) munmap(base_, bytes_);
}

absl::Status ShmMapping::RegisterWithDevices() {
  absl::StatusOr<RegisteredMemory> registered =
      RegisteredMemory::Register(base_, static_cast<int64_t>(bytes_));
  if (!registered.ok()) return registered.status();
  registered_ = *std::move(registered);
  return absl::OkStatus();
}

}  // namespace blockd::server
