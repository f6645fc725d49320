// Included once by each kernels_<instruction set>.cc, which defines BLOCKD_VECTOR_BYTES and
// BLOCKD_KERNEL_NAMESPACE.
#include <algorithm>
#include <utility>

#include "engine/cpu/kernels/border_kernels.h"
#include "engine/cpu/kernels/eliminate.h"
#include "engine/cpu/kernels/invert.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/multiply.h"
#include "engine/cpu/kernels/small_blocks.h"
#include "engine/cpu/kernels/small_inverse.h"
#include "engine/cpu/kernels/substitute.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// A block that fits one vector is eliminated in tiles of one vector, which halves its padding.
template <typename T>
bool OneVector(int64_t n) {
  return BLOCKD_VECTOR_BYTES == 64 && n <= kLanes<T>;
}
// Vectors a tile's column: two, or more where two would not hold a whole block column of inv(L).
template <typename T>
inline constexpr int kTile = std::max<int>(2, kPanel / kLanes<T>);
template <typename T>
inline constexpr int kShort = BLOCKD_VECTOR_BYTES == 64 ? 1 : kTile<T>;

template <typename T>
int64_t ScratchScalars(int64_t n, bool fill) {
  return OneVector<T>(n) ? Eliminator<T, kShort<T>>::ScratchScalars(n, fill)
                         : Eliminator<T, kTile<T>>::ScratchScalars(n, fill);
}

template <typename T>
SegmentReport Eliminate(const EliminateTask<T>& task) {
  SegmentReport report;
  const bool plain = task.chain.matrix != nullptr && !task.segment->has_fill();
  if (plain && VisitSmall<T>(task.n, [&](auto n) {
        report = SmallEliminator<T, decltype(n)::value>(task).Run();
      })) {
    return report;
  }
  return OneVector<T>(task.n) ? Eliminator<T, kShort<T>>(task).Run()
                              : Eliminator<T, kTile<T>>(task).Run();
}

template <typename T>
int64_t InverseScratchScalars(int64_t n, bool fill) {
  return OneVector<T>(n) ? Inverter<T, kShort<T>>::ScratchScalars(n, fill)
                         : Inverter<T, kTile<T>>::ScratchScalars(n, fill);
}

template <typename T>
void Invert(const InverseTask<T>& task) {
  if (VisitSmall<T>(task.n, [&](auto n) { SmallInverter<T, decltype(n)::value>(task).Run(); })) {
    return;
  }
  OneVector<T>(task.n) ? Inverter<T, kShort<T>>(task).Run() : Inverter<T, kTile<T>>(task).Run();
}

// Calls visit(a Substitution for blocks of this size).
template <typename T, typename Visit>
void WithSubstitution(const SubstituteTask<T>& task, const Visit& visit) {
  if (VisitSmall<T>(task.n, [&](auto n) { visit(Substitution<T, decltype(n)::value>(task)); })) {
    return;
  }
  visit(Substitution<T>(task));
}

template <typename T>
void Forward(const SubstituteTask<T>& task) {
  WithSubstitution(task, [](auto substitution) { substitution.Forward(); });
}

template <typename T>
void Backward(const SubstituteTask<T>& task) {
  WithSubstitution(task, [](auto substitution) { substitution.Backward(); });
}

template <typename T>
void Multiply(const MultiplyTask<T>& task) {
  Multiplication<T>(task).Run();
}

template <typename T>
void MultiplyBorder(const BorderProductsTask<T>& task) {
  BorderProducts<T>(task).Run();
}

template <typename T>
void AddBorder(const BorderUpdateTask<T>& task) {
  BorderUpdate<T>(task).Run();
}

template <typename T>
const Kernels<T>& Table(const char* instruction_set) {
  static const Kernels<T> table = {.instruction_set = instruction_set,
                                   .scratch_scalars = ScratchScalars<T>,
                                   .eliminate = Eliminate<T>,
                                   .forward = Forward<T>,
                                   .backward = Backward<T>,
                                   .multiply = Multiply<T>,
                                   .inverse_scratch_scalars = InverseScratchScalars<T>,
                                   .invert = Invert<T>,
                                   .multiply_border = MultiplyBorder<T>,
                                   .add_border = AddBorder<T>};
  return table;
}

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE
