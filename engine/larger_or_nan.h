// The largest of numbers of which one that is not a number must not be lost.
#ifndef BLOCKD_ENGINE_LARGER_OR_NAN_H_
#define BLOCKD_ENGINE_LARGER_OR_NAN_H_

namespace blockd {

// NaN is larger than all.
template <typename T>
constexpr T LargerOrNaN(T a, T b) {
  return a > b || a != a ? a : b;
}

}  // namespace blockd

#endif  // BLOCKD_ENGINE_LARGER_OR_NAN_H_
