#include <openssl/evp.h>

#include <memory>
#include <string>

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
  void Add(const ModelArray& array) {
    Add(static_cast<int64_t>(array.per_step));
    Add(array.values);
  }
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

}  // namespace

std::string Smoother::ModelFingerprint() const {
  Hash hash;
  hash.Add(params_.num_steps);
  hash.Add(params_.state_size);
  hash.Add(params_.observation_size);
  hash.Add(params_.transition);
  hash.Add(params_.transition_covariance);
  hash.Add(params_.observation);
  hash.Add(params_.observation_covariance);
  hash.Add(static_cast<int64_t>(params_.diffuse));
  if (!params_.diffuse) hash.Add(params_.initial_covariance);
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
