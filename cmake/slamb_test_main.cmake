# Common parts of test programs: doctest, and their entry point.
include_guard(GLOBAL)
include(slamb_packages)
include(slamb_programs)

slamb_require_package(doctest DEBIAN doctest-dev GROUP test FOR "The tests" WITHOUT SLAMB_BUILD_TESTS)
include("${doctest_DIR}/doctest.cmake")

# slamb_doctest: doctest, compiled once. slamb_test_main: slamb_doctest with the entry point.
add_library(slamb_doctest STATIC "${PROJECT_SOURCE_DIR}/tests/support/doctest.cpp")
target_link_libraries(slamb_doctest PUBLIC doctest::doctest)
target_compile_features(slamb_doctest PUBLIC cxx_std_20)
target_compile_options(slamb_doctest PRIVATE -O0)
add_library(slamb_test_main STATIC "${PROJECT_SOURCE_DIR}/tests/support/main.cpp")
target_link_libraries(slamb_test_main PUBLIC slamb_doctest)
