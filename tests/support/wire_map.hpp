// The place of every element of a compressed exchange on the wire. It follows the rules of docs/algorithms/one_bit_exchange.md,
// "Where elements go" and "On the wire", element by element, and uses no code of the library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace test_support {

/// The elements that share a scale, where they are sent.
enum class shared_scales { none, fused, per_tensor, blocks };

/// The place of one element.
struct wire_place {
  static constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();

  std::size_t tensor = 0;
  std::size_t owner = whole;  // the rank that averages it; `whole`: the tensor is not compressed
  std::size_t code = 0;       // index in the owner's message; for `whole`, among all elements that are not compressed
  std::size_t scale = 0;      // in the owner's message
  bool begins_piece = false;
};

/// The size of a tensor, and whether it is compressed.
struct mapped_tensor {
  std::size_t size = 0;
  bool compressed = true;
};

/// All places.
struct wire_map {
  std::vector<wire_place> places;          // [n] of all tensors, end to end
  std::vector<std::size_t> codes, scales;  // [ranks] in each rank's message, before all messages get the same size
  std::size_t dense_elements = 0;
  bool has_scales = false;
  std::size_t scale_bytes = 4;

  wire_map(std::span<const mapped_tensor> tensors, std::size_t ranks, shared_scales sharing, std::size_t block,
           std::size_t bytes_of_scale = 4)
      : codes(ranks), scales(ranks), has_scales(sharing != shared_scales::none), scale_bytes(bytes_of_scale) {
    std::size_t compressed = 0;
    for (const mapped_tensor& l : tensors) compressed += l.compressed ? l.size : 0;
    std::size_t position = 0;  // index in the list that is cut into chunks
    for (std::size_t l = 0; l < tensors.size(); ++l) {
      const bool by_itself = sharing == shared_scales::per_tensor;
      if (by_itself) position = 0;
      const std::size_t length = chunk_length(by_itself ? tensors[l].size : compressed, ranks);
      std::size_t in_piece = 0;
      for (std::size_t i = 0; i < tensors[l].size; ++i) {
        wire_place p{.tensor = l};
        if (tensors[l].compressed) {
          p.owner = position++ / length;
          p.begins_piece = i == 0 || places.back().owner != p.owner;
          in_piece = p.begins_piece ? 0 : in_piece + 1;
          place_in_message(p, in_piece, sharing, block);
        } else {
          p.code = dense_elements++;
          p.begins_piece = i == 0;
        }
        places.push_back(p);
      }
    }
  }

  std::size_t ranks() const { return codes.size(); }
  /// The number of scales in a message: none, or at least one.
  std::size_t message_scales() const {
    return has_scales ? std::max<std::size_t>(1, *std::max_element(scales.begin(), scales.end())) : 0;
  }
  /// The number of codes in a message, with padding.
  std::size_t message_codes() const { return rounded_up(*std::max_element(codes.begin(), codes.end()), 16); }
  /// The first byte of the scales: after a header, which ends with a fingerprint of 8 bytes.
  static constexpr std::size_t first_scale_byte = 16;
  /// The first byte of the codes in a message: after the scales, at a multiple of 16 bytes.
  std::size_t first_code_byte() const { return rounded_up(first_scale_byte + scale_bytes * message_scales(), 16); }
  /// The size of a message, a multiple of 128.
  std::size_t message_bytes(int bits) const {
    return rounded_up(first_code_byte() + message_codes() * static_cast<std::size_t>(bits) / 8, 128);
  }

  /// The least multiple of 128 that lets `ranks` chunks hold all elements.
  static std::size_t chunk_length(std::size_t elements, std::size_t ranks) {
    std::size_t length = 0;
    while (length * ranks < elements) length += 128;
    return length;
  }

 private:
  static std::size_t rounded_up(std::size_t x, std::size_t unit) {
    while (x % unit != 0) ++x;
    return x;
  }

  void place_in_message(wire_place& p, std::size_t in_piece, shared_scales sharing, std::size_t block) {
    std::size_t& used = codes[p.owner];
    if (p.begins_piece) used = rounded_up(used, 16);
    p.code = used++;
    std::size_t& count = scales[p.owner];
    if (sharing == shared_scales::fused || sharing == shared_scales::none) {
      count = 1;
    } else if (p.begins_piece || (sharing == shared_scales::blocks && in_piece % block == 0)) {
      ++count;
    }
    p.scale = count - 1;
  }
};

}  // namespace test_support
