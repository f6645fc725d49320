// An upload from its first message until its bytes are here, as its streams share it: the one that
// begins it and those that join, each over a connection of its own.
#ifndef BLOCKD_SERVER_TRANSPORT_UPLOAD_OPEN_UPLOAD_H_
#define BLOCKD_SERVER_TRANSPORT_UPLOAD_OPEN_UPLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/solver_core.h"
#include "server/transport/upload/upload_pace.h"

namespace blockd::server {

// The error for an upload that the caller does not have: NOT_FOUND.
absl::Status NoSuchUpload();

// Thread-safe. It begins without the core's upload, which its header brings. Threads of all streams
// copy into that, each within a Use. The upload ends once, after the last Use: with a status, which
// gives back all that it had before anybody is told; or whole, when the stream that began it takes
// it to the core. Streams are told without a lock held, and so must not hold one of their own that
// they take then.
class OpenUpload {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    // Nothing of the upload is left.
    virtual void OnUploadEnded(const absl::Status& status) noexcept = 0;
    // Called for the stream that began the upload, once nobody uses the upload any more.
    virtual void OnUploadWhole(std::unique_ptr<FactorUpload> upload) noexcept = 0;
  };

  // The core's upload, for as long as this is there; null before there is one, and once it is
  // ending.
  class Use {
   public:
    explicit Use(OpenUpload* open) : open_(open), upload_(open->StartUse()) {}
    ~Use() {
      if (upload_ != nullptr) open_->EndUse();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const { return upload_ != nullptr; }
    FactorUpload* operator->() const { return upload_; }

   private:
    OpenUpload* const open_;
    FactorUpload* const upload_;
  };

  // `began` is the stream that the upload is of. `limits` are those of its header.
  OpenUpload(const UploadLimits& limits, absl::Time now, std::weak_ptr<Stream> began)
      : pace_(limits, now), began_(std::move(began)) {}

  // The header has come. False if the upload has ended meanwhile.
  bool Start(std::unique_ptr<FactorUpload> upload, const UploadLimits& limits, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The stream that should have begun it joins another upload, and is told nothing of this one.
  // False if it has ended.
  bool Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // A range of the matrix for one more stream, as FactorUpload::Join. NOT_FOUND once it is ending.
  absl::StatusOr<int> Join(int64_t first, int64_t bytes, std::weak_ptr<Stream> stream)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // No more comes: the first stream has ended as it should.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);
  // It is over; the first status that says so is what all are told.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // How fast it comes, over all streams; what the first one waits for, and what came on any.
  void Wait(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Came(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void Count(int64_t bytes, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckPace(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  FactorUpload* StartUse() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndUse() ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the upload to whom it belongs, and tells the streams, unless it is in use still.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  UploadPace pace_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FactorUpload> upload_ ABSL_GUARDED_BY(mutex_);  // null: none yet, or no more
  int uses_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // OK: it is whole
  const std::weak_ptr<Stream> began_;
  std::vector<std::weak_ptr<Stream>> joined_ ABSL_GUARDED_BY(mutex_);
};

// Uploads that may be joined, by their caller and the id that it chose. Thread-safe.
class OpenUploads {
 public:
  // False if the caller has an upload of this id already.
  bool Add(const std::string& caller, const std::string& id, std::shared_ptr<OpenUpload> upload)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Null if there is none, whoever else may have one.
  std::shared_ptr<OpenUpload> Find(const std::string& caller, const std::string& id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const std::string& caller, const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  bool empty() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::pair<std::string, std::string>, std::shared_ptr<OpenUpload>> uploads_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_UPLOAD_OPEN_UPLOAD_H_
