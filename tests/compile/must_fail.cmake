# cmake -DCOMPILER=… -DROOT=… -DSOURCE=… [-DFLAGS=…] [-DPRECOMPILED=… -DPRECOMPILED_FLAGS=…] -P must_fail.cmake
#
# Succeeds if SOURCE does not compile and the compiler's output matches the regular expression (CMake's) of its first line, `//
# expect: <regular expression>`. If the second line is `// first of LINES lines`, the first error must match it, and the
# compiler, without a limit of errors, must print at most that many lines. PRECOMPILED: a folder that may have a
# slamb/slamb.hpp.gch, made with PRECOMPILED_FLAGS. The caller may add flags, for example to stop at the first error.
file(READ "${SOURCE}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE}: the first line is no `// expect: <regular expression>`")
endif()
set(expected "${CMAKE_MATCH_1}")
unset(most_lines)
if(text MATCHES "^[^\n]+\n// first of ([0-9]+) lines\n")
  set(most_lines "${CMAKE_MATCH_1}")
  list(FILTER PRECOMPILED_FLAGS EXCLUDE REGEX "^-(fmax-errors|ferror-limit)=")
endif()

set(ENV{LC_ALL} C)
if(NOT DEFINED FLAGS)
  set(FLAGS -fsyntax-only)  # nvcc has others
endif()
if(DEFINED PRECOMPILED)
  list(APPEND FLAGS ${PRECOMPILED_FLAGS} "-I${PRECOMPILED}" "-I${ROOT}/include" -include slamb/slamb.hpp)
endif()
execute_process(
  COMMAND "${COMPILER}" -std=c++20 ${FLAGS} "-I${ROOT}/include" "-I${ROOT}/tests" "${SOURCE}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, and must not")
elseif(NOT output MATCHES "error: ")
  message(FATAL_ERROR "${SOURCE}: the compiler did not run (${result}):\n${output}")
elseif(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "${SOURCE} fails with another message than \"${expected}\":\n${output}")
endif()
if(DEFINED most_lines)
  string(REGEX MATCH "error: [^\n]*" first "${output}")
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines count)
  if(NOT first MATCHES "${expected}")
    message(FATAL_ERROR "${SOURCE}: the first error is another than \"${expected}\":\n${output}")
  elseif(count GREATER most_lines)
    message(FATAL_ERROR "${SOURCE}: the compiler prints ${count} lines, more than ${most_lines}:\n${output}")
  endif()
endif()
