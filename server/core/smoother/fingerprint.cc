#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "server/core/smoother/smoother.h"

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

std::string Smoother::ModelFingerprint() const {
  Hash hash;
  ArrayHashes arrays;
  hash.Add(params_.num_steps);
  hash.Add(params_.state_size);
  hash.Add(params_.observation_size);
  arrays.Add(params_.transition, hash);
  arrays.Add(params_.transition_covariance, hash);
  arrays.Add(params_.observation, hash);
  arrays.Add(params_.observation_covariance, hash);
  hash.Add(static_cast<int64_t>(params_.diffuse));
  if (!params_.diffuse) arrays.Add(params_.initial_covariance, hash);
  arrays.Finish(*workers_.pool, hash);
  return hash.Finish();
}

std::string Smoother::Fingerprint(const std::string& model, size_t system) const {
  Hash hash;
  hash.Add(std::span<const char>(model));
  // Masks by what they are, not by their order of appearance in this request.
  for (const uint32_t mask : patterns_->systems[system]) {
    hash.Add(std::span<const int32_t>(MaskAt(mask).rows));
  }
  return hash.Finish();
}

}  // namespace blockd::server
