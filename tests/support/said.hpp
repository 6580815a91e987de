// What calls say when they throw.
#pragma once

#include <exception>
#include <string>

namespace test_support {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// What a call throws as an Exception; of others, and of none, a text that no check expects.
template <class Exception, class Call>
std::string said_by(const Call& call) {
  try {
    try {
      call();
    } catch (const Exception& error) {  // which may be std::exception
      return error.what();
    }
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace test_support
