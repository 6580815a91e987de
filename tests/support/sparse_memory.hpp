// Address space for arrays larger than memory. A test touches only a few pages of it.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace test_support {

/// [count] floats, initially 0; false if the system does not grant the address space.
class sparse_memory {
 public:
  explicit sparse_memory(std::size_t count)
      : bytes_(count * sizeof(float)),
        all_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~sparse_memory() {
    if (*this) munmap(all_, bytes_);
  }
  sparse_memory(const sparse_memory&) = delete;
  sparse_memory& operator=(const sparse_memory&) = delete;

  explicit operator bool() const { return all_ != MAP_FAILED; }
  float* data() { return static_cast<float*>(all_); }

 private:
  std::size_t bytes_;
  void* all_;
};

}  // namespace test_support
