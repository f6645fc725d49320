// Numbers in which the orthogonal form computes: doubles and double-doubles, alone and four side by
// side. Included by translation units that define BLOCKD_KERNEL_NAMESPACE, a namespace of its own
// for each instruction set.
//
// A double-double is the unevaluated sum of two doubles, some 106 bits. Sums and products are
// those of Dekker (A floating-point technique for extending the available precision, 1971) and of
// Hida, Li and Bailey (Algorithms for quad-double precision arithmetic, 2001). Compiled without
// contraction of products and sums (-ffp-contract=off).
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_NUMBERS_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_NUMBERS_H_

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

inline constexpr int64_t kLanes = 4;
typedef double Four __attribute__((vector_size(kLanes * sizeof(double))));

#define BLOCKD_INLINE inline __attribute__((always_inline))

// The largest value, or NaN if there was one.
BLOCKD_INLINE void Raise(double* most, double value) {
  if (!(value <= *most) && !std::isnan(*most)) *most = value;
}

// a b + c, rounded once.
BLOCKD_INLINE double MultiplyAdd(double a, double b, double c) { return __builtin_fma(a, b, c); }
BLOCKD_INLINE Four MultiplyAdd(const Four& a, const Four& b, const Four& c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  Four d;
  for (int i = 0; i < kLanes; ++i) d[i] = __builtin_fma(a[i], b[i], c[i]);
  return d;
#endif
}

template <typename V>
struct DoubleDouble {
  V high = V{}, low = V{};
};
using Long = DoubleDouble<double>;
using LongFour = DoubleDouble<Four>;

template <typename V>
BLOCKD_INLINE DoubleDouble<V> FastTwoSum(const V& a, const V& b) {  // |a| >= |b|
  const V sum = a + b;
  return {sum, b - (sum - a)};
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> TwoSum(const V& a, const V& b) {
  const V sum = a + b, part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> operator+(const DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  const DoubleDouble<V> sum = TwoSum(a.high, b.high);
  return FastTwoSum(sum.high, sum.low + a.low + b.low);
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> operator-(const DoubleDouble<V>& a) {
  return {-a.high, -a.low};
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> operator-(const DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  return a + (-b);
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> operator*(const DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  const V product = a.high * b.high;
  const V rest = MultiplyAdd(a.high, b.high, -product);
  return FastTwoSum(product, MultiplyAdd(a.low, b.high, MultiplyAdd(a.high, b.low, rest)));
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> operator/(const DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  const V first = a.high / b.high;
  const DoubleDouble<V> rest = a - b * DoubleDouble<V>{first, V{}};
  return FastTwoSum(first, rest.high / b.high);
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V>& operator+=(DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  return a = a + b;
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V>& operator-=(DoubleDouble<V>& a, const DoubleDouble<V>& b) {
  return a = a - b;
}

BLOCKD_INLINE double Root(double a) { return std::sqrt(a); }
BLOCKD_INLINE Long Root(const Long& a) {
  const double root = std::sqrt(a.high);
  if (root == 0) return {};
  const Long rest = a - Long{root, 0} * Long{root, 0};
  return FastTwoSum(root, rest.high / (2 * root));
}
BLOCKD_INLINE double High(double a) { return a; }
BLOCKD_INLINE double High(const Long& a) { return a.high; }
BLOCKD_INLINE Long LongOf(double a) { return {a, 0}; }
BLOCKD_INLINE Long LongOf(const Long& a) { return a; }
BLOCKD_INLINE Four High(const Four& a) { return a; }
BLOCKD_INLINE Four High(const LongFour& a) { return a.high; }

BLOCKD_INLINE Four Spread(double a) { return Four{a, a, a, a}; }
BLOCKD_INLINE LongFour Spread(const Long& a) { return {Spread(a.high), Spread(a.low)}; }

// c + a b.
BLOCKD_INLINE double Accumulate(double c, double a, double b) { return MultiplyAdd(a, b, c); }
BLOCKD_INLINE Four Accumulate(const Four& c, const Four& a, const Four& b) {
  return MultiplyAdd(a, b, c);
}
template <typename V>
BLOCKD_INLINE DoubleDouble<V> Accumulate(const DoubleDouble<V>& c, const DoubleDouble<V>& a,
                                         const DoubleDouble<V>& b) {
  return c + a * b;
}

// Sums of many products. That of double-doubles keeps what its additions lose beside its sum and
// joins the two at the end, so that no addition waits for another's rest.
struct FourSum {
  Four sum{};
  FourSum() = default;
  explicit FourSum(const Four& first) : sum(first) {}
  BLOCKD_INLINE void Add(double a, const Four& b) { sum = MultiplyAdd(Spread(a), b, sum); }
  BLOCKD_INLINE Four value() const { return sum; }
};
struct LongFourSum {
  Four sum{}, rest{};
  LongFourSum() = default;
  explicit LongFourSum(const LongFour& first) : sum(first.high), rest(first.low) {}
  BLOCKD_INLINE void Add(double a, const LongFour& b) {
    const Four factor = Spread(a), product = factor * b.high;
    Keep(product, MultiplyAdd(factor, b.low, MultiplyAdd(factor, b.high, -product)));
  }
  BLOCKD_INLINE void Add(const Long& a, const LongFour& b) { AddProduct(Spread(a), b); }
  BLOCKD_INLINE void AddProduct(const LongFour& a, const LongFour& b) {
    const Four product = a.high * b.high;
    const Four low = MultiplyAdd(a.high, b.high, -product);
    Keep(product, MultiplyAdd(a.low, b.high, MultiplyAdd(a.high, b.low, low)));
  }
  BLOCKD_INLINE LongFour value() const { return FastTwoSum(sum, rest); }

 private:
  BLOCKD_INLINE void Keep(const Four& product, const Four& low) {
    const LongFour next = TwoSum(sum, product);
    sum = next.high;
    rest += next.low + low;
  }
};

BLOCKD_INLINE double SumOf(const Four& a) { return (a[0] + a[2]) + (a[1] + a[3]); }
BLOCKD_INLINE Long SumOf(const LongFour& a) {
  const auto lane = [&](int i) { return Long{a.high[i], a.low[i]}; };
  return (lane(0) + lane(2)) + (lane(1) + lane(3));
}

// The two precisions. kUnit is the unit roundoff.
struct InDouble {
  using Scalar = double;
  using Pack = Four;
  using Sum = FourSum;
  static constexpr double kUnit = 0x1p-53;
  static constexpr int64_t kDoubles = 1;  // of a scalar
  static BLOCKD_INLINE double Of(double a) { return a; }
  static BLOCKD_INLINE double Of(double high, double) { return high; }
  static BLOCKD_INLINE Four Of(const Four& a) { return a; }
  static BLOCKD_INLINE Four OfSum(const Four& high, const Four&) { return high; }
  static BLOCKD_INLINE Four Rounded(const LongFour& a) { return a.high; }
  static BLOCKD_INLINE LongFour Extended(const Four& a) { return {a, Four{}}; }
  static BLOCKD_INLINE double Get(const Four* packs, int64_t i) {
    return reinterpret_cast<const double*>(packs)[i];
  }
  static BLOCKD_INLINE void Set(Four* packs, int64_t i, double value) {
    reinterpret_cast<double*>(packs)[i] = value;
  }
};
struct InDoubleDouble {
  using Scalar = Long;
  using Pack = LongFour;
  using Sum = LongFourSum;
  static constexpr double kUnit = 0x1p-104;
  static constexpr int64_t kDoubles = 2;
  static BLOCKD_INLINE Long Of(double a) { return {a, 0}; }
  static BLOCKD_INLINE Long Of(double high, double low) { return {high, low}; }
  static BLOCKD_INLINE LongFour Of(const Four& a) { return {a, Four{}}; }
  static BLOCKD_INLINE LongFour Of(const LongFour& a) { return a; }
  static BLOCKD_INLINE LongFour OfSum(const Four& high, const Four& low) { return {high, low}; }
  static BLOCKD_INLINE LongFour Rounded(const LongFour& a) { return a; }
  static BLOCKD_INLINE LongFour Extended(const LongFour& a) { return a; }
  static BLOCKD_INLINE Long Get(const LongFour* packs, int64_t i) {
    const auto* const lanes = reinterpret_cast<const double*>(packs + i / kLanes);
    return {lanes[i % kLanes], lanes[i % kLanes + kLanes]};
  }
  static BLOCKD_INLINE void Set(LongFour* packs, int64_t i, const Long& value) {
    auto* const lanes = reinterpret_cast<double*>(packs + i / kLanes);
    lanes[i % kLanes] = value.high;
    lanes[i % kLanes + kLanes] = value.low;
  }
};

BLOCKD_INLINE int64_t PacksOf(int64_t numbers) { return (numbers + kLanes - 1) / kLanes; }

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_NUMBERS_H_
