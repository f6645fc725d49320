// Vectors of the width that this translation unit is compiled for (BLOCKD_VECTOR_BYTES). Everything
// is in an inline namespace of that width, so that two widths never share a function.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_VECTORS_H_
#define BLOCKD_ENGINE_CPU_KERNELS_VECTORS_H_

#if BLOCKD_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

// Unrolls the loop that follows. The sanitizers' loops are too large for it: GCC then warns, under
// no name, that it ignores each annotation.
#define BLOCKD_PRAGMA(text) _Pragma(#text)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BLOCKD_UNROLL(times)
#else
#define BLOCKD_UNROLL(times) BLOCKD_PRAGMA(GCC unroll times)
#endif

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

// a * b + c, rounded once where the instruction set has it and the same way in every lane and
// width, whatever the compiler makes of the code around it.
template <typename T, int kWidth>
inline __attribute__((always_inline)) Vector<T, kWidth> MultiplyAdd(Vector<T, kWidth> a,
                                                                    Vector<T, kWidth> b,
                                                                    Vector<T, kWidth> c) {
#if BLOCKD_VECTOR_BYTES == 64
  if constexpr (kWidth * sizeof(T) == 64) {
    if constexpr (sizeof(T) == 8) {
      return (Vector<T, kWidth>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
    } else {
      return (Vector<T, kWidth>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    }
  }
#endif
#if BLOCKD_VECTOR_BYTES >= 32
  if constexpr (kWidth * sizeof(T) == 32) {
    if constexpr (sizeof(T) == 8) {
      return (Vector<T, kWidth>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
    } else {
      return (Vector<T, kWidth>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    }
  } else if constexpr (kWidth * sizeof(T) == 16) {
    if constexpr (sizeof(T) == 8) {
      return (Vector<T, kWidth>)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c);
    } else {
      return (Vector<T, kWidth>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
    }
  } else if constexpr (kWidth == 1) {
    return sizeof(T) == 8 ? __builtin_fma(a, b, c) : __builtin_fmaf(a, b, c);
  } else {
    for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
  }
#else
  return a * b + c;
#endif
}

// The same with one b for all lanes.
template <typename T, int kWidth>
inline __attribute__((always_inline)) Vector<T, kWidth> MultiplyAdd(
    Vector<T, kWidth> a, T b, Vector<T, kWidth> c) requires(kWidth > 1) {
  return MultiplyAdd<T, kWidth>(a, b - Vector<T, kWidth>{}, c);
}

// The larger one, lane by lane; NaN is larger than all.
template <typename T, int kWidth>
inline Vector<T, kWidth> Larger(Vector<T, kWidth> a, Vector<T, kWidth> b) {
  return ((a > b) | (a != a)) ? a : b;
}

// True if a pivot is positive, and neither it nor its reciprocal is subnormal: as on a GPU.
template <typename T>
inline bool IsPivot(T x) {
  constexpr T kLeast = std::numeric_limits<T>::min();
  return x >= kLeast && x < 1 / kLeast;
}

template <typename T, int kWidth>
inline double LargestLane(Vector<T, kWidth> v) {
  T largest = v[0];
  for (int i = 1; i < kWidth; ++i) largest = Larger<T, 1>(largest, v[i]);
  return static_cast<double>(largest);
}

// Makes the compiler load v once, into a register, where it would fold the load into each of
// several products that use it.
template <typename Vec>
inline __attribute__((always_inline)) void KeepInRegister([[maybe_unused]] Vec& v) {
#if BLOCKD_VECTOR_BYTES == 64
  if constexpr (sizeof(Vec) == BLOCKD_VECTOR_BYTES) asm("" : "+v"(v));
#elif BLOCKD_VECTOR_BYTES == 32
  if constexpr (sizeof(Vec) == BLOCKD_VECTOR_BYTES) asm("" : "+x"(v));
#endif
}

// A store that does not pass through the caches; p is aligned to the vector.
template <typename T, int kWidth>
inline void Stream(T* p, Vector<T, kWidth> v) {
#if BLOCKD_VECTOR_BYTES == 64
  __m512i bits;
  std::memcpy(&bits, &v, sizeof(v));
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bits);
#elif BLOCKD_VECTOR_BYTES == 32
  __m256i bits;
  std::memcpy(&bits, &v, sizeof(v));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
#else
  Store<T, kWidth>(p, v);
#endif
}

// Exchanges lane j of v[i] with lane i of v[j] for every i, j, by log2(kWidth) rounds of exchanges
// at distance h.
template <typename T, int kWidth, int h, int... lane>
inline void ExchangeLanes(Vector<T, kWidth>& a, Vector<T, kWidth>& b,
                          std::integer_sequence<int, lane...>) {
  const Vector<T, kWidth> low =
      __builtin_shufflevector(a, b, ((lane & h) ? kWidth + lane - h : lane)...);
  b = __builtin_shufflevector(a, b, ((lane & h) ? kWidth + lane : lane + h)...);
  a = low;
}

template <typename T, int kWidth, int h = 1>
inline void Transpose(Vector<T, kWidth> (&v)[kWidth]) {
  BLOCKD_UNROLL(16)
  for (int i = 0; i < kWidth; ++i) {
    if ((i & h) == 0) {
      ExchangeLanes<T, kWidth, h>(v[i], v[i + h], std::make_integer_sequence<int, kWidth>());
    }
  }
  if constexpr (2 * h < kWidth) Transpose<T, kWidth, 2 * h>(v);
}

// out[k] = the sum of the lanes of v[k], always in the same order.
template <typename T, int kWidth, int kCount>
inline void SumLanes(const Vector<T, kWidth> (&v)[kCount], T (&out)[kCount]) {
  if constexpr (kWidth > kCount && kCount > 1) {
    Vector<T, kWidth / 2> half[kCount];
    for (int k = 0; k < kCount; ++k) {
      T lanes[kWidth];
      Store<T, kWidth>(lanes, v[k]);
      half[k] = Load<T, kWidth / 2>(lanes) + Load<T, kWidth / 2>(lanes + kWidth / 2);
    }
    SumLanes<T, kWidth / 2, kCount>(half, out);
  } else if constexpr (kWidth == kCount) {
    Vector<T, kWidth> turned[kCount];
    for (int k = 0; k < kCount; ++k) turned[k] = v[k];
    Transpose<T, kWidth>(turned);
    for (int h = kCount / 2; h > 0; h /= 2) {
      for (int k = 0; k < h; ++k) turned[k] += turned[k + h];
    }
    Store<T, kWidth>(out, turned[0]);
  } else {
    for (int k = 0; k < kCount; ++k) {
      T lanes[kWidth];
      Store<T, kWidth>(lanes, v[k]);
      for (int h = kWidth / 2; h > 0; h /= 2) {
        for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
      }
      out[k] = lanes[0];
    }
  }
}

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_VECTORS_H_
