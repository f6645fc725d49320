// The mirror of a system (system.h), with arrays of its own.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MIRROR_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MIRROR_H_

#include <list>
#include <vector>

#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal {

class Mirror {
 public:
  explicit Mirror(const System& system);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  const System& system() const { return system_; }

 private:
  // With the rows of all columns in reverse order.
  const double* Reverse(const double* from, int64_t rows, int64_t columns);
  // Times kMirrorUnit.
  void Triple(int64_t numbers, const double** high, const double** low);

  System system_;
  std::list<std::vector<double>> arrays_;
};

}  // namespace blockd::orthogonal

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_MIRROR_H_
