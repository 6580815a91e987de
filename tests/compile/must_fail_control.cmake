# cmake -DCOMPILER=… -DROOT=… -DSOURCE=… -P must_fail_control.cmake
#
# Succeeds if must_fail.cmake fails on SOURCE, for the reason in SOURCE's name.
cmake_path(GET SOURCE STEM name)
set(compiles "compiles, and must not")
set(other_message "fails with another message than")
set(no_expectation "the first line is no")
set(other_error_first "the first error is another than")
set(too_many_lines "lines, more than 1:")
execute_process(
  COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DROOT=${ROOT}" "-DSOURCE=${SOURCE}" -P
          "${CMAKE_CURRENT_LIST_DIR}/must_fail.cmake"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
string(FIND "${output}" "${${name}}" position)
if(result EQUAL 0)
  message(FATAL_ERROR "The harness accepts ${SOURCE}")
elseif("${${name}}" STREQUAL "" OR position EQUAL -1)
  message(FATAL_ERROR "The harness rejects ${SOURCE} for another reason than \"${${name}}\":\n${output}")
endif()
