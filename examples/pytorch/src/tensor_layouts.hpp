// Where the tensors of a framework lie, by DLPack's table of functions in C, which describes a tensor without a call of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace binding {

/// What a framework hands out as `Tensor.__dlpack_c_exchange_api__`: DLPackExchangeAPI of DLPack 1.2.
struct dlpack_exchange_table {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  const dlpack_exchange_table* for_older_versions;
  void* functions_that_are_not_used_here[3];
  int (*describe)(void* tensor, nanobind::dlpack::dltensor* description);  ///< dltensor_from_py_object_no_sync
};

/// Types, shapes and the device of tensors, to find where tensors with the same ones lie.
class tensor_layouts {
 public:
  /// Of these tensors. None if the table has another version, or cannot describe them.
  static std::optional<tensor_layouts> of(const nanobind::capsule& table, const nanobind::list& tensors) {
    const auto* const given = static_cast<const dlpack_exchange_table*>(table.data("dlpack_exchange_api"));
    if (given->version.major != 1 || given->describe == nullptr) return std::nullopt;
    tensor_layouts all(given);
    for (const nanobind::handle tensor : tensors) {
      nanobind::dlpack::dltensor now;
      if (!all.describe(tensor, now)) return std::nullopt;
      all.layouts_.push_back({now.device, now.dtype, {now.shape, now.shape + now.ndim}});
    }
    return all;
  }

  /// @param tensors  of the framework, or None
  /// @return their addresses, 0 for None; nothing if one has another type, shape or device, or is not contiguous
  std::optional<std::vector<std::uintptr_t>> addresses(const nanobind::list& tensors) const {
    if (tensors.size() != layouts_.size()) return std::nullopt;
    std::vector<std::uintptr_t> all;
    all.reserve(layouts_.size());
    for (const layout& expected : layouts_) {
      const nanobind::handle tensor = tensors[all.size()];
      nanobind::dlpack::dltensor now;
      if (tensor.is_none())
        all.push_back(0);
      else if (describe(tensor, now) && is_contiguous(now, expected))
        all.push_back(reinterpret_cast<std::uintptr_t>(now.data) + now.byte_offset);
      else
        return std::nullopt;
    }
    return all;
  }

 private:
  struct layout {
    nanobind::dlpack::device device;
    nanobind::dlpack::dtype type;
    std::vector<std::int64_t> shape;
  };

  explicit tensor_layouts(const dlpack_exchange_table* table) : table_(table) {}

  bool describe(nanobind::handle tensor, nanobind::dlpack::dltensor& description) const {
    if (table_->describe(tensor.ptr(), &description) == 0) return true;
    PyErr_Clear();
    return false;
  }

  static bool is_contiguous(const nanobind::dlpack::dltensor& now, const layout& expected) {
    const std::vector<std::int64_t>& shape = expected.shape;
    if (now.dtype != expected.type || now.device.device_type != expected.device.device_type ||
        now.device.device_id != expected.device.device_id ||
        !std::equal(shape.begin(), shape.end(), now.shape, now.shape + now.ndim))
      return false;
    std::int64_t elements = 1;
    bool is_row_major = true;
    for (std::size_t i = shape.size(); i-- > 0; elements *= shape[i])
      is_row_major = is_row_major && (shape[i] == 1 || now.strides == nullptr || now.strides[i] == elements);
    if (elements == 0) return true;
    return is_row_major && now.data != nullptr;  // null: of a tensor without memory of its own
  }

  const dlpack_exchange_table* table_;
  std::vector<layout> layouts_;
};

}  // namespace binding
