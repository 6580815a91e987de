# cmake -DCOMPILER=… -DROOT=… -DSOURCE=… [-DFLAGS=…] -P must_fail.cmake
#
# Succeeds when SOURCE does not compile and the compiler's output matches the regular expression (CMake's) of its first
# line, `// expect: <regular expression>`.
file(READ "${SOURCE}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${SOURCE}: the first line is no `// expect: <regular expression>`")
endif()
set(expected "${CMAKE_MATCH_1}")

set(ENV{LC_ALL} C)
if(NOT DEFINED FLAGS)
  set(FLAGS -fsyntax-only)  # nvcc has others
endif()
execute_process(
  COMMAND "${COMPILER}" -std=c++20 "-I${ROOT}/include" "-I${ROOT}/tests" ${FLAGS} "${SOURCE}"
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
