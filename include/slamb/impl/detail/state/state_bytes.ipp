#pragma once

#include <cstdlib>

#if defined(__GNUG__)
#include <cxxabi.h>
#endif

#include "slamb/detail/state/state_bytes.hpp"

namespace slamb::detail {

SLAMB_DECL state_header header_in(std::span<const std::byte> first) noexcept {
  state_header header{.magic = {}};
  if (first.size() >= state_text_bytes + sizeof(header))
    std::memcpy(&header, first.data() + state_text_bytes, sizeof(header));
  return header;
}

SLAMB_DECL state_header header_of(const byte_source& from) {
  state_header header{.magic = {}};
  if (from.bytes >= least_state_bytes) from.read(state_text_bytes, std::as_writable_bytes(std::span(&header, 1)));
  return header;
}

SLAMB_DECL bool has_no_parameters(const byte_source& from) {
  const state_header header = header_of(from);
  return header.is_of_this_format() && header.saved_copies != state_header::parameters;
}

SLAMB_DECL std::string rank_in(const state_header& header) {
  std::string text = "rank " + std::to_string(header.rank) + " of " + std::to_string(header.world);
  if (header.shards != 0) text += ", shard " + std::to_string(header.shard) + " of " + std::to_string(header.shards);
  return text;
}

SLAMB_DECL std::string readable_type(std::string_view name) {
  std::string text(name);
#if defined(__GNUG__)
  int status = 0;
  if (char* const plain = abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status); plain != nullptr) {
    text = plain;
    std::free(plain);
  }
#endif
  for (std::size_t at = text.find("slamb::"); at != std::string::npos; at = text.find("slamb::", at)) text.erase(at, 7);
  return text;
}

SLAMB_DECL std::string text_of_state(const state_kind& kind, const state_header& header, const state_summary& summary) {
  const auto line = [](const char* name, const std::string& value) { return std::string(name) + value + '\n'; };
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  const std::string first = "slamb saved state, format 2\n" + line("optimizer   ", std::string(kind.recipe));
  const std::string rest =
      line("rank        ", rank_in(header).substr(5)) + line("step        ", number(summary.step)) +
      line("tensors     ", number(summary.tensors) + ", of " + number(summary.elements) + " elements") +
      line("parameters  ", header.saved_copies == state_header::parameters ? "saved"
                           : header.saved_copies == state_header::masters  ? "master copies saved"
                                                                           : "not saved") +
      line("bytes       ", number(header.bytes) + ", of which these " + number(state_text_bytes) + " are text") +
      line("saved by    ", "slamb " + number(SLAMB_VERSION_MAJOR) + "." + number(SLAMB_VERSION_MINOR) + "." +
                               number(SLAMB_VERSION_PATCH));
  std::string policies = readable_type(kind.policies);
  const std::size_t room = state_text_bytes - 1 - std::min(state_text_bytes - 1, first.size() + rest.size() + 13);
  if (policies.size() > room) policies = policies.substr(0, room - std::min<std::size_t>(room, 3)) + "...";
  std::string text = first + line("policies    ", policies) + rest;
  text.resize(state_text_bytes - 1, ' ');
  return text + '\n';
}

SLAMB_DECL byte_sink appending_to(std::vector<std::byte>& all) {
  return [&all](std::span<const std::byte> piece) {
    if (all.empty()) all.reserve(static_cast<std::size_t>(header_in(piece).bytes));
    all.insert(all.end(), piece.begin(), piece.end());
  };
}

SLAMB_DECL byte_source source_in(std::span<const std::byte> saved) {
  return {saved.size(), [saved](std::uint64_t first, std::span<std::byte> to) {
            std::ranges::copy(saved.subspan(static_cast<std::size_t>(first), to.size()), to.begin());
          }};
}

SLAMB_DECL bool is_state_of(const state_kind& kind, std::span<const std::byte> saved) noexcept {
  const state_header header = header_in(saved);
  return header.is_of_this_format() && header.kind == kind.hash();
}

SLAMB_DECL
bool is_state_of(const state_kind& kind, const byte_source& from) {
  const state_header header = header_of(from);
  return header.is_of_this_format() && header.kind == kind.hash();
}

}  // namespace slamb::detail
