// Latencies in bounded memory: buckets of equal ratio, so that every percentile is within 1%.
#ifndef BLOCKD_CLIENT_BLOCKCTL_LOAD_HISTOGRAM_H_
#define BLOCKD_CLIENT_BLOCKCTL_LOAD_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace blockd::blockctl {

// A histogram of values in seconds, from 1 ns to an hour; others count as the nearest of these. Not
// thread-safe: one a thread, merged at the end.
class Histogram {
 public:
  Histogram();
  void Add(double seconds);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  double max() const { return max_; }
  // The smallest value that at least this part of all values does not exceed, to within 1%; `part`
  // is in (0, 1]. 0 if there are none.
  double Percentile(double part) const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  double sum_ = 0;
  double max_ = 0;
};

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_LOAD_HISTOGRAM_H_
