// Moves the data of the stand-in's collectives.
#include <cstring>
#include <type_traits>
#include <utility>

#include "stand_in.hpp"

namespace nccl_stand_in {
namespace {

/// Calls `body` with a value of the C++ type that NCCL names `type`.
template <class F>
void with_type(ncclDataType_t type, F body) {
  switch (type) {
    case ncclInt8:
      return body(std::int8_t{});
    case ncclUint8:
      return body(std::uint8_t{});
    case ncclInt32:
      return body(std::int32_t{});
    case ncclUint32:
      return body(std::uint32_t{});
    case ncclInt64:
      return body(std::int64_t{});
    case ncclUint64:
      return body(std::uint64_t{});
    case ncclFloat16:
      return body(__half{});
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    case ncclBfloat16:
      return body(__nv_bfloat16{});
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    case ncclFloat8e4m3:
      return body(__nv_fp8_e4m3{});
    case ncclFloat8e5m2:
      return body(__nv_fp8_e5m2{});
#endif
    default:
      return;
  }
}

std::size_t size_of(ncclDataType_t type) {
  std::size_t size = 0;
  with_type(type, [&](auto zero) { size = sizeof zero; });
  return size;
}

/// Writes to do after everything was read, because buffers may be their own results.
class writes {
 public:
  void add(void* to, const void* from, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    pending_.emplace_back(to, std::vector<std::byte>(begin, begin + bytes));
  }
  void apply() const {
    for (const auto& [to, bytes] : pending_) std::memcpy(to, bytes.data(), bytes.size());
  }

 private:
  std::vector<std::pair<void*, std::vector<std::byte>>> pending_;
};

template <class T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(static_cast<bits>(a) + static_cast<bits>(b)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    return T(static_cast<float>(a) + static_cast<float>(b));
  }
}

std::vector<std::byte> sums(const std::vector<launch>& parts) {
  const call& first = parts[0].operations[0];
  std::vector<std::byte> result(first.count * size_of(first.type));
  std::memcpy(result.data(), first.in, result.size());
  with_type(first.type, [&](auto zero) {
    using element = decltype(zero);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      for (std::size_t i = 0; i < first.count; ++i) {
        element a, b;
        std::byte* place = result.data() + i * sizeof(element);
        std::memcpy(&a, place, sizeof a);
        std::memcpy(&b, static_cast<const std::byte*>(parts[rank].operations[0].in) + i * sizeof b, sizeof b);
        a = sum(a, b);
        std::memcpy(place, &a, sizeof a);
      }
    }
  });
  return result;
}

bool is_same_collective(const call& a, const call& b) {
  return a.name == b.name && a.count == b.count && a.type == b.type && a.op == b.op && a.peer == b.peer;
}

bool execute_collective(const std::vector<launch>& parts) {
  const call& first = parts[0].operations[0];
  for (const launch& part : parts) {
    if (part.operations.size() != 1 || !is_same_collective(part.operations[0], first)) return false;
  }
  const std::size_t bytes = first.count * size_of(first.type);
  writes result;
  if (first.name == "ncclAllReduce") {
    const std::vector<std::byte> total = sums(parts);
    for (const launch& part : parts) result.add(part.operations[0].out, total.data(), bytes);
  } else if (first.name == "ncclBroadcast") {
    const void* sent = parts[static_cast<std::size_t>(first.peer)].operations[0].in;
    for (const launch& part : parts) result.add(part.operations[0].out, sent, bytes);
  } else {
    for (const launch& part : parts) {
      auto* out = static_cast<std::byte*>(part.operations[0].out);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        result.add(out + rank * bytes, parts[rank].operations[0].in, bytes);
      }
    }
  }
  result.apply();
  return true;
}

/// The nth send of rank a to rank b goes to the nth receive of b from a.
bool execute_group(const std::vector<launch>& parts) {
  writes result;
  std::vector<std::vector<bool>> used;  // [rank][operation]
  used.reserve(parts.size());
  for (const launch& part : parts) used.emplace_back(part.operations.size());
  for (std::size_t from = 0; from < parts.size(); ++from) {
    for (std::size_t i = 0; i < parts[from].operations.size(); ++i) {
      const call& send = parts[from].operations[i];
      if (send.name != "ncclSend") continue;
      const auto to = static_cast<std::size_t>(send.peer);
      bool found = false;
      for (std::size_t j = 0; j < parts[to].operations.size() && !found; ++j) {
        const call& receive = parts[to].operations[j];
        found = receive.name == "ncclRecv" && receive.peer == static_cast<int>(from) && !used[to][j];
        if (!found) continue;
        if (receive.count != send.count || receive.type != send.type) return false;
        used[from][i] = used[to][j] = true;
        result.add(receive.out, send.in, send.count * size_of(send.type));
      }
      if (!found) return false;
    }
  }
  for (const auto& rank : used) {
    for (const bool is_used : rank) {
      if (!is_used) return false;
    }
  }
  result.apply();
  return true;
}

}  // namespace

bool execute(const std::vector<launch>& parts) {
  const std::string& name = parts[0].operations[0].name;
  return name == "ncclSend" || name == "ncclRecv" ? execute_group(parts) : execute_collective(parts);
}

}  // namespace nccl_stand_in
