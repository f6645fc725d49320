// Doubles on the host that are not initialised: whoever makes each of them writes it first, and so
// its memory is taken by several threads.
#ifndef BLOCKD_ENGINE_DOUBLES_H_
#define BLOCKD_ENGINE_DOUBLES_H_

#include <cstdint>
#include <memory>

namespace blockd {

class Doubles {
 public:
  Doubles() = default;
  explicit Doubles(int64_t size)
      : values_(std::make_unique_for_overwrite<double[]>(static_cast<size_t>(size))), size_(size) {}

  double* data() { return values_.get(); }
  const double* data() const { return values_.get(); }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::unique_ptr<double[]> values_;
  int64_t size_ = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_DOUBLES_H_
