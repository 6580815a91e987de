// Sentences of errors, which are put together only when they are thrown, so that checks stay small.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace slamb::detail {

/// A part of a sentence: text, then a number if there is one.
struct sentence_part {
  const char* text;
  std::uint64_t number = 0;
  bool has_number = false;

  // NOLINTBEGIN(google-explicit-constructor): sentences are lists of parts
  sentence_part(const char* words) : text(words) {}
  sentence_part(std::uint64_t count) : text(""), number(count), has_number(true) {}
  sentence_part(int signed_number)
      : text(signed_number < 0 ? "-" : ""),
        number(signed_number < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(signed_number)
                                 : static_cast<std::uint64_t>(signed_number)),
        has_number(true) {}
  // NOLINTEND(google-explicit-constructor)
};

/// Throws an Error that says "slamb: " and the sentence, in one list or in two.
template <class Error = std::invalid_argument>
[[noreturn, gnu::cold, gnu::noinline]] void throw_sentence(std::initializer_list<sentence_part> sentence,
                                                           std::initializer_list<sentence_part> rest = {}) {
  std::string all = "slamb: ";
  for (const auto& list : {sentence, rest})
    for (const sentence_part& part : list) {
      all += part.text;
      if (part.has_number) all += std::to_string(part.number);
    }
  throw Error(all);
}

}  // namespace slamb::detail
