# How this project's own programs are compiled. Nothing here is exported to users of the library.
include_guard(GLOBAL)

add_library(slamb_warnings INTERFACE)
target_compile_options(
  slamb_warnings
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(SLAMB_WARNINGS_AS_ERRORS)
  target_compile_options(slamb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                                                  "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()

add_library(slamb_tuning INTERFACE)
target_compile_options(slamb_tuning INTERFACE $<$<BOOL:${SLAMB_NATIVE}>:-march=native>)

# Two false alarms of g++ 12: overlapping copies inside std::string's operator+ (gcc.gnu.org/PR105651), and the operands that
# its own AVX-512 intrinsics leave undefined on purpose (PR105593). Programs without tuning flags keep the second check.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(slamb_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>"
                                                  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-restrict>")
  target_compile_options(slamb_tuning INTERFACE $<$<BOOL:${SLAMB_NATIVE}>:-Wno-maybe-uninitialized>)
endif()

# slamb_glob(<variable> <pattern>…): the files that match, looked up again at each build; none at all is an error.
function(slamb_glob variable)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${ARGN})
  if(NOT files)
    message(FATAL_ERROR "No file matches ${ARGN}")
  endif()
  set(${variable} "${files}" PARENT_SCOPE)
endfunction()

# slamb_sources_of_headers(<variable> <extension> <header>…): a source for each header of the library, which includes it alone.
function(slamb_sources_of_headers variable extension)
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
# A program on top of the library; PLAIN leaves the tuning flags away.
function(slamb_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "PLAIN" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${program_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE slamb::slamb slamb_warnings ${program_LIBRARIES})
  if(NOT program_PLAIN)
    target_link_libraries(${name} PRIVATE slamb_tuning)
  endif()
endfunction()

# slamb_batches(<variable> <size> [IN_NAMESPACES] <source>…): the same sources in batches of <size>, which a compiler reads as
# one, so that what their templates share is made once. IN_NAMESPACES gives each source a namespace of its own there, behind what
# all of them include; one that reopens a namespace of others, or replaces operator new, then stays alone.
# (CMake's unity builds would have what a source includes in its namespace too, and leave CUDA out.)
function(slamb_batches variable size)
  cmake_parse_arguments(PARSE_ARGV 2 batches "IN_NAMESPACES" "" "")
  if(NOT size MATCHES "^[1-9][0-9]*$")
    message(FATAL_ERROR "A batch of '${size}' sources: expected a whole number, 1 or more")
  endif()
  set(alone)
  set(together)
  foreach(source IN LISTS batches_UNPARSED_ARGUMENTS)
    file(STRINGS "${source}" reason REGEX "^(namespace (slamb|std|doctest|test_support)|void\\* operator new)" LIMIT_COUNT 1)
    if(size EQUAL 1 OR (batches_IN_NAMESPACES AND reason))
      list(APPEND alone "${source}")
    else()
      list(APPEND together "${source}")
    endif()
  endforeach()
  set(batch 0)
  while(together)
    list(SUBLIST together 0 ${size} members)
    list(REMOVE_ITEM together ${members})
    set(includes)
    set(bodies)
    foreach(source IN LISTS members)
      cmake_path(GET source EXTENSION LAST_ONLY extension)
      if(NOT batches_IN_NAMESPACES)
        string(APPEND bodies "#include \"${source}\"\n")
        continue()
      endif()
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(GET source STEM name)
      string(MAKE_C_IDENTIFIER "${name}" name)
      string(APPEND bodies "namespace source_${name} {\n#include \"${source}\"\n}\n")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")  # of which the includes are read here
      file(STRINGS "${source}" lines REGEX "^#include ")
      list(TRANSFORM lines REPLACE "\"[.][.]/" "\"${folder}/../")
      list(APPEND includes ${lines})
    endforeach()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/batches/${batch}${extension}")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${includes}\n${bodies}" @ONLY)
    list(APPEND alone "${file}")
    math(EXPR batch "${batch} + 1")
  endwhile()
  set(${variable} "${alone}" PARENT_SCOPE)
endfunction()
