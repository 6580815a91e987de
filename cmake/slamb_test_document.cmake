# Tests of the programs in a document. Find Python3 first.
include_guard(GLOBAL)

# slamb_test_document(<document> [REQUIRED] [FENCE <words>] [LAUNCHER <command>] [PROPERTIES <property> <value>…]
#                     COMPILER <compiler> <flag>…)
#
# Adds a test for each program, named after its line and the heading above it, and a test that the list is complete. The programs
# are searched again when the document changes. REQUIRED: a document without a program is an error, here and in the test.
function(slamb_test_document document)
  cmake_parse_arguments(PARSE_ARGV 1 of "REQUIRED" "FENCE;LAUNCHER" "PROPERTIES;COMPILER")
  set(script "${PROJECT_SOURCE_DIR}/tests/compile/readme_examples.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${document}" "${script}")
  cmake_path(RELATIVE_PATH document BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
  set(options)
  if(of_FENCE)
    set(options --fence "${of_FENCE}")
  endif()
  if(of_REQUIRED)
    list(APPEND options --required)
  endif()
  # Most documents have no program; this is visible without Python.
  file(STRINGS "${document}" mains REGEX "int main" LIMIT_COUNT 1)
  set(programs)
  if(mains OR of_REQUIRED)
    execute_process(COMMAND "${Python3_EXECUTABLE}" "${script}" ${options} --list "${document}" OUTPUT_VARIABLE programs
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" programs "${programs}")
  endif()

  string(MAKE_C_IDENTIFIER "${name}" folder)
  set(lines)
  foreach(program IN LISTS programs)
    if(NOT program MATCHES "^([0-9]+) (.+)$")
      message(FATAL_ERROR "${script} --list ${document}: '${program}' is not a line and a heading")
    endif()
    set(line "${CMAKE_MATCH_1}")
    set(test "documentation: ${name}:${line}, ${CMAKE_MATCH_2}")
    # The output folder is relative, as a user may give it.
    add_test(NAME "${test}"
             COMMAND "${Python3_EXECUTABLE}" "${script}" ${options} --only "${line}" --launcher "${of_LAUNCHER}" --output
                     "documentation/${folder}" "${document}" -- ${of_COMPILER}
             WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
    if(of_PROPERTIES)
      set_tests_properties("${test}" PROPERTIES ${of_PROPERTIES})
    endif()
    list(APPEND lines "${line}")
  endforeach()
  list(JOIN lines "," lines)
  set(kind)
  if(of_FENCE)
    set(kind " (${of_FENCE})")
  endif()
  add_test(NAME "documentation: ${name}${kind}: each program has a test"
           COMMAND "${Python3_EXECUTABLE}" "${script}" ${options} --are "${lines}" "${document}")
endfunction()
