// The messages of exceptions.
#pragma once

#include <exception>
#include <string>

namespace test_support {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The message of the Exception that a call throws. If it throws another or none, a text that no check expects.
template <class Exception, class Call>
std::string said_by(const Call& call) {
  try {
    try {
      call();
    } catch (const Exception& error) {  // Exception may be std::exception
      return error.what();
    }
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace test_support
