// Numbers in memory between files and the server: blocks and columns, each scalar in one type.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_ARRAY_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blockd/client/system.h"

namespace blockd::blockctl {

// An array as NumPy has it: any number of dimensions, in C (last index fastest) or Fortran order.
struct Array {
  client::Scalar scalar = client::Scalar::kFloat64;
  std::vector<int64_t> shape;
  bool fortran_order = false;
  std::vector<std::byte> data;

  int64_t size() const {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data.data());
  }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data.data());
  }
};

// "(100, 4, 4)", as NumPy writes it.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_ARRAY_H_
