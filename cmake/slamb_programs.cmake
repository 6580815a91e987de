# Compilation of this project's own programs. Nothing here is exported to users of the library.
include_guard(GLOBAL)

add_library(slamb_warnings INTERFACE)
target_compile_options(
  slamb_warnings
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(SLAMB_WARNINGS_AS_ERRORS)
  target_compile_options(slamb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                                                  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()

# Some warnings of g++ come from its optimizer, and so depend on level and processor, false alarms included. They are no errors,
# because a build would then fail on one machine and pass on another.
if(SLAMB_WARNINGS_AS_ERRORS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(seen_by_optimizer array-bounds free-nonheap-object maybe-uninitialized nonnull restrict stringop-overflow
                        stringop-overread stringop-truncation uninitialized)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
    list(APPEND seen_by_optimizer dangling-pointer use-after-free)
  endif()
  foreach(warning IN LISTS seen_by_optimizer)
    target_compile_options(slamb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-error=${warning}>"
                                                    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-error=${warning}>")
  endforeach()
endif()

add_library(slamb_tuning INTERFACE)
target_compile_options(slamb_tuning INTERFACE $<$<BOOL:${SLAMB_NATIVE}>:-march=native>)

# Two false alarms of g++ 12: overlapping copies inside std::string's operator+ (gcc.gnu.org/PR105651), and the operands that its
# own AVX-512 intrinsics leave undefined on purpose (PR105593). Programs without tuning flags keep the second check.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(slamb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>"
                                                  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-restrict>")
  target_compile_options(slamb_tuning INTERFACE $<$<BOOL:${SLAMB_NATIVE}>:-Wno-maybe-uninitialized>)
endif()

# For sources with Eigen's headers: g++ 12 finds such operands in them too, at every level with AVX-512.
add_library(slamb_eigen_warnings INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(slamb_eigen_warnings
                         INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
endif()

# slamb_glob(<variable> <pattern>…): the matching files, searched again at each build; it is an error if there is none.
function(slamb_glob variable)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${ARGN})
  if(NOT files)
    message(FATAL_ERROR "No file matches ${ARGN}")
  endif()
  set(${variable} "${files}" PARENT_SCOPE)
endfunction()

# slamb_sources_of_headers(<variable> <extension> <header>…): for each header of the library a source that includes only it.
function(slamb_sources_of_headers variable extension)
  set(sources)
  foreach(header IN LISTS ARGN)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/include" OUTPUT_VARIABLE name)
    string(MAKE_C_IDENTIFIER "${name}" identifier)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${identifier}.${extension}")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  set(${variable} "${sources}" PARENT_SCOPE)
endfunction()

# slamb_program(<name> SOURCES <file>… [LIBRARIES <target>…] [PLAIN])
#
# A program on top of slamb::compiled. PLAIN: on top of the headers alone, without the tuning flags.
function(slamb_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "PLAIN" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${program_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE slamb::slamb slamb_warnings ${program_LIBRARIES})
  if(NOT program_PLAIN)
    target_link_libraries(${name} PRIVATE slamb::compiled slamb_tuning)
  endif()
endfunction()

# slamb_is_wanted(<variable> <path>): ON if the test of this path, as core/random, or examples/train/run for one of an example, is to
# be built, by SLAMB_TESTS_ONLY and SLAMB_TESTS_LEFT_OUT.
function(slamb_is_wanted variable path)
  set(${variable} ON PARENT_SCOPE)
  if(SLAMB_TESTS_ONLY AND NOT path MATCHES "^(${SLAMB_TESTS_ONLY})$")
    set(${variable} OFF PARENT_SCOPE)
  elseif(SLAMB_TESTS_LEFT_OUT AND path MATCHES "^(${SLAMB_TESTS_LEFT_OUT})$")
    set(${variable} OFF PARENT_SCOPE)
  endif()
endfunction()

# slamb_compile_quickly([LEVEL <level>] [TARGETS <target>…] [SOURCES <file>…]): compiles with -Og, or this level, in place of
# -O3, because it takes less time. tests/isa checks that bits do not depend on the level.
function(slamb_compile_quickly)
  cmake_parse_arguments(PARSE_ARGV 0 quick "" "LEVEL" "TARGETS;SOURCES")
  if(NOT DEFINED quick_LEVEL)
    set(quick_LEVEL g)
  endif()
  foreach(target IN LISTS quick_TARGETS)
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O${quick_LEVEL}>")
  endforeach()
  if(quick_SOURCES)
    set_property(SOURCE ${quick_SOURCES} APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O${quick_LEVEL}>")
  endif()
endfunction()

# slamb_compile_together(<target> [APART <file>…]): compiles eight sources as one, so that their common headers are compiled
# once. Each source needs its own namespace for that. The sources in APART stay separate.
function(slamb_compile_together target)
  cmake_parse_arguments(PARSE_ARGV 1 together "" "" "APART")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SLAMB_TESTS_TOGETHER} UNITY_BUILD_BATCH_SIZE 8)
  if(together_APART)
    set_source_files_properties(${together_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
