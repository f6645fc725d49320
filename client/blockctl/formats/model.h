// A state-space model and its observations from files: .npy, or JSON.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_MODEL_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/client/smooth.h"
#include "client/blockctl/formats/array.h"

namespace blockd::blockctl {

// Arrays in the order of the client's StateSpaceModel, and what a view of them needs.
class ModelFile {
 public:
  // A folder with F.npy, Q.npy, H.npy, R.npy, y.npy and, if wanted, c, d, m0, P0 and diffuse; or a
  // .json file whose object has these names, with numbers in nested arrays and null for what is
  // missing. Shapes are NumPy's: F (nx, nx) or (T-1, nx, nx), H (ny, nx) or (T, ny, nx), y (T, ny)
  // or (K, T, ny); axes of length 1 may be left out. Of T matrices F, Q or c the last is left out.
  // `diffuse`, a mask of the states or directions (nx, q), goes with m0 and P0. Behind y come
  // `forecast` steps without observations, which count as those of T.
  static absl::StatusOr<ModelFile> Read(const std::string& path, int64_t forecast = 0);

  // Points into this.
  client::StateSpaceModel model() const;
  const std::vector<double>& observations() const { return y_; }
  int64_t num_series() const { return num_series_; }
  bool has_series() const { return has_series_; }  // y has K in front

 private:
  struct Part {
    std::vector<double> values;
    bool per_step = false;
  };
  using Arrays = std::vector<std::pair<std::string, Array>>;

  static absl::StatusOr<Arrays> ReadFolder(const std::string& path);
  static absl::StatusOr<Arrays> ReadJson(const std::string& path);
  absl::Status Take(const Arrays& arrays, int64_t forecast);
  absl::Status TakeObservations(const Array& y, int64_t outputs, int64_t forecast);
  absl::Status TakeDiffuse(const Array& diffuse);

  int64_t num_steps_ = 0, state_size_ = 1, observation_size_ = 1, num_series_ = 1;
  bool has_series_ = false;
  Part f_, q_, h_, r_, c_, d_, m_, p_, diffuse_;
  std::vector<double> y_;
};

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_MODEL_H_
