# Tests of an example: a separate program with the packages and warnings of the example, not those of slamb_tests.
include_guard(GLOBAL)
include(slamb_packages)
include(slamb_programs)

# slamb_example_tests(<example> [LIBRARIES <target>…]): slamb_<example>_tests, from the sources in the current folder. The source
# some.cpp has the name examples/<example>/some in SLAMB_TESTS_ONLY and SLAMB_TESTS_LEFT_OUT. If no source is left, there is no
# program.
function(slamb_example_tests example)
  cmake_parse_arguments(PARSE_ARGV 1 tests "" "" "LIBRARIES")
  slamb_glob(found "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  set(sources)
  foreach(source IN LISTS found)
    cmake_path(GET source STEM name)
    slamb_is_wanted(wanted "examples/${example}/${name}")
    if(wanted)
      list(APPEND sources "${source}")
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  slamb_program(slamb_${example}_tests SOURCES ${sources} LIBRARIES slamb_test_main ${tests_LIBRARIES})
  target_include_directories(slamb_${example}_tests PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  slamb_compile_quickly(TARGETS slamb_${example}_tests)
  # As in tests/CMakeLists.txt: each test case is a test of ctest, and a run without cases fails.
  doctest_discover_tests(slamb_${example}_tests PROPERTIES TIMEOUT 300 FAIL_REGULAR_EXPRESSION "test cases: +0 ")
endfunction()
