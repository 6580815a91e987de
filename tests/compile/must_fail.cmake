# cmake -DCOMPILER=… -DROOT=… -DSOURCE=… [-DFLAGS=…] [-DPRECOMPILED=… -DPRECOMPILED_FLAGS=…] -P must_fail.cmake
#
# Succeeds when SOURCE does not compile and the compiler's output matches the regular expression (CMake's) of its first
# line, `// expect: <regular expression>`. PRECOMPILED: a folder that may have a slamb/slamb.hpp.gch, made with
# PRECOMPILED_FLAGS, to which the caller may add others, such as that one error is enough.
file(READ "${SOURCE}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE}: the first line is no `// expect: <regular expression>`")
endif()
set(expected "${CMAKE_MATCH_1}")

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
