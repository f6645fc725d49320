#include "server/core/smooth/fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace blockd::server {
namespace {

// SHA-256 of what it is told, each with its length, so that no two ways to cut it are the same.
class Hash {
 public:
  Hash() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  template <typename T>
  void Add(std::span<const T> values) {
    Add(static_cast<int64_t>(values.size_bytes()));
    EVP_DigestUpdate(context_.get(), values.data(), values.size_bytes());
  }
  void Add(int64_t value) { EVP_DigestUpdate(context_.get(), &value, sizeof(value)); }
  std::string Finish() {
    std::string hash(EVP_MAX_MD_SIZE, '\0');
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(hash.data()), &size);
    hash.resize(size);
    return hash;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// The hashes of an array's pieces, which several threads make.
class ArrayHashes {
 public:
  void Add(const ModelArray& array, Hash& into) {
    into.Add(static_cast<int64_t>(array.per_step));
    Add(array.values, into);
  }
  void Add(std::span<const double> values, Hash& into) {
    into.Add(std::ssize(values));
    while (!values.empty()) {
      const size_t size = std::min(values.size(), kPiece);
      pieces_.push_back(values.first(size));
      values = values.subspan(size);
    }
  }
  void Finish(StepPool& pool, Hash& into) {
    std::vector<std::string> hashes(pieces_.size());
    pool.Run(std::ssize(pieces_), [&](int64_t i, int) {
      Hash hash;
      hash.Add(pieces_[static_cast<size_t>(i)]);
      hashes[static_cast<size_t>(i)] = hash.Finish();
    });
    for (const std::string& hash : hashes) into.Add(std::span<const char>(hash));
  }

 private:
  static constexpr size_t kPiece = size_t{1} << 17;  // a megabyte
  std::vector<std::span<const double>> pieces_;
};

}  // namespace

std::string ModelFingerprint(const SmoothParams& params, StepPool& pool) {
  Hash hash;
  ArrayHashes arrays;
  hash.Add(params.num_steps);
  hash.Add(params.state_size);
  hash.Add(params.observation_size);
  arrays.Add(params.transition, hash);
  arrays.Add(params.transition_covariance, hash);
  arrays.Add(params.observation, hash);
  arrays.Add(params.observation_covariance, hash);
  hash.Add(static_cast<int64_t>(params.diffuse));
  if (!params.diffuse) arrays.Add(params.initial_covariance, hash);
  arrays.Add(params.initial_diffuse, hash);
  arrays.Finish(pool, hash);
  return hash.Finish();
}

std::string SystemFingerprint(const std::string& model, const MissingPatterns& patterns,
                              size_t system) {
  Hash hash;
  hash.Add(std::span<const char>(model));
  // Masks by what they are, not by their order of appearance in this request.
  for (const uint32_t mask : patterns.systems[system]) {
    hash.Add(std::span<const int32_t>(patterns.masks[mask].rows));
  }
  return hash.Finish();
}

}  // namespace blockd::server
