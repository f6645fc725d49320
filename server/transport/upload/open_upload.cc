#include "server/transport/upload/open_upload.h"

#include <utility>

namespace blockd::server {

absl::Status NoSuchUpload() { return absl::NotFoundError("no such upload is open"); }

bool OpenUpload::Start(std::unique_ptr<FactorUpload> upload, const UploadLimits& limits,
                       absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (ending_) return false;
  pace_ = UploadPace(limits, now);
  upload_ = std::move(upload);
  return true;
}

bool OpenUpload::Leave() {
  absl::MutexLock lock(&mutex_);
  if (ending_) return false;
  ending_ = closed_ = true;
  return true;
}

absl::StatusOr<int> OpenUpload::Join(int64_t first, int64_t bytes, std::weak_ptr<Stream> stream) {
  absl::MutexLock lock(&mutex_);
  if (ending_) return NoSuchUpload();
  absl::StatusOr<int> range = upload_->Join(first, bytes);
  if (range.ok()) joined_.push_back(std::move(stream));
  return range;
}

void OpenUpload::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  Close();
}

void OpenUpload::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    status_.Update(status);
  }
  Close();
}

void OpenUpload::Wait(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  pace_.Wait(now);
}

void OpenUpload::Came(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  pace_.Came(now);
}

void OpenUpload::Count(int64_t bytes, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  pace_.CountElsewhere(bytes, now);
}

absl::Status OpenUpload::CheckPace(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return ending_ ? absl::OkStatus() : pace_.Check(now);
}

FactorUpload* OpenUpload::StartUse() {
  absl::MutexLock lock(&mutex_);
  if (ending_ || upload_ == nullptr) return nullptr;
  ++uses_;
  return upload_.get();
}

void OpenUpload::EndUse() {
  {
    absl::MutexLock lock(&mutex_);
    --uses_;
    if (!ending_) return;
  }
  Close();
}

void OpenUpload::Close() {
  std::unique_ptr<FactorUpload> upload;
  std::vector<std::weak_ptr<Stream>> joined;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (uses_ > 0 || std::exchange(closed_, true)) return;
    upload = std::move(upload_);
    joined = std::move(joined_);
    status = status_;
  }
  const std::shared_ptr<Stream> began = began_.lock();
  const bool whole = upload != nullptr && status.ok() && began != nullptr;
  if (!whole) {
    upload.reset();  // who is told finds everything back
    if (began != nullptr) began->OnUploadEnded(status);
  }
  // A joined stream that is answered already keeps its own answer.
  if (status.ok()) status = absl::CancelledError("the stream that began the upload has ended");
  for (const std::weak_ptr<Stream>& each : joined) {
    if (const std::shared_ptr<Stream> stream = each.lock()) stream->OnUploadEnded(status);
  }
  if (whole) began->OnUploadWhole(std::move(upload));
}

bool OpenUploads::Add(const std::string& caller, const std::string& id,
                      std::shared_ptr<OpenUpload> upload) {
  absl::MutexLock lock(&mutex_);
  return uploads_.try_emplace({caller, id}, std::move(upload)).second;
}

std::shared_ptr<OpenUpload> OpenUploads::Find(const std::string& caller, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  const auto found = uploads_.find({caller, id});
  return found == uploads_.end() ? nullptr : found->second;
}

void OpenUploads::Remove(const std::string& caller, const std::string& id) {
  absl::MutexLock lock(&mutex_);
  uploads_.erase({caller, id});
}

bool OpenUploads::empty() {
  absl::MutexLock lock(&mutex_);
  return uploads_.empty();
}

}  // namespace blockd::server
