# slamb::compiled, an alternative to slamb::slamb: what is no template, and the machine of the host backend, are compiled once, into a
# static library of the project that links it, and not in each of its sources. Sources that link it must not link slamb::slamb
# without it.
include_guard(GLOBAL)

set(slamb_compiled_folder "${CMAKE_CURRENT_BINARY_DIR}/slamb_compiled")
file(CONFIGURE OUTPUT "${slamb_compiled_folder}/source.cpp" CONTENT "#include <slamb/impl/source.hpp>\n")
add_library(slamb_compiled_core STATIC EXCLUDE_FROM_ALL "${slamb_compiled_folder}/source.cpp")
add_library(slamb_compiled STATIC EXCLUDE_FROM_ALL)
add_library(slamb::compiled_core ALIAS slamb_compiled_core)  # without the host backend's machine
add_library(slamb::compiled ALIAS slamb_compiled)

# The types of the host backend differ by instruction set. So its machine is compiled for each that a source of the project may have.
set(slamb_levels default)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(slamb_levels x86-64 x86-64-v3 x86-64-v4)
endif()
foreach(level IN LISTS slamb_levels)
  set(source "${slamb_compiled_folder}/host_${level}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <slamb/impl/host.hpp>\n")
  target_sources(slamb_compiled PRIVATE "${source}")
  if(NOT level STREQUAL default)
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "-march=${level}")
  endif()
endforeach()

set_target_properties(slamb_compiled slamb_compiled_core PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(slamb_compiled_core PUBLIC SLAMB_SEPARATE_COMPILATION)
target_link_libraries(slamb_compiled_core PUBLIC slamb::slamb)
target_link_libraries(slamb_compiled PUBLIC slamb_compiled_core)
