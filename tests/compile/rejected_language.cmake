# cmake -DCOMPILER=… -DROOT=… -DFLAGS=… -DEXPECTED=… -DHEADERS=… -P rejected_language.cmake
#
# Succeeds if the compiler, with these flags, stops at each header with EXPECTED, a regular expression, as its first error, and
# prints fewer than ten lines.
set(ENV{LC_ALL} C)
if(NOT HEADERS)
  message(FATAL_ERROR "there are no headers")
endif()
foreach(header IN LISTS HEADERS)
  execute_process(
    COMMAND "${COMPILER}" ${FLAGS} "-I${ROOT}/include" -fsyntax-only -x c++ -include "${header}" /dev/null
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX MATCH "error: [^\n]*" first "${output}")
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines count)
  if(result EQUAL 0)
    message(FATAL_ERROR "${header} compiles with ${FLAGS}, and must not")
  elseif(NOT first MATCHES "${EXPECTED}")
    message(FATAL_ERROR "${header} with ${FLAGS}: the first error is another than \"${EXPECTED}\":\n${output}")
  elseif(count GREATER_EQUAL 10)
    message(FATAL_ERROR "${header} with ${FLAGS}: the compiler prints ${count} lines:\n${output}")
  endif()
endforeach()
