// Vectors of the width that this translation unit is compiled for (BLOCKD_VECTOR_BYTES). Everything is
// in an inline namespace of that width, so that two widths never share a function.
#ifndef BLOCKD_ENGINE_CPU_VECTORS_H_
#define BLOCKD_ENGINE_CPU_VECTORS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

template <typename T, int kWidth>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kWidth * sizeof(T))));
};
template <typename T>
struct VectorOf<T, 1> {
  using Type = T;
};
template <typename T, int kWidth>
using Vector = typename VectorOf<T, kWidth>::Type;

template <typename T>
inline constexpr int kLanes = BLOCKD_VECTOR_BYTES / sizeof(T);

template <typename T, int kWidth>
inline Vector<T, kWidth> Load(const T* p) {
  Vector<T, kWidth> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T, int kWidth>
inline void Store(T* p, Vector<T, kWidth> v) {
  std::memcpy(p, &v, sizeof(v));
}

// The sum of the lanes, always in the same order.
template <typename T, int kWidth>
inline T Sum(Vector<T, kWidth> v) {
  if constexpr (kWidth == 1) {
    return v;
  } else {
    T lanes[kWidth];
    std::memcpy(lanes, &v, sizeof(v));
    Vector<T, kWidth / 2> low = Load<T, kWidth / 2>(lanes);
    const Vector<T, kWidth / 2> high = Load<T, kWidth / 2>(lanes + kWidth / 2);
    low += high;
    return Sum<T, kWidth / 2>(low);
  }
}

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_VECTORS_H_
