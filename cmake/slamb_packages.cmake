# Packages of the tests, the benchmarks and the examples. The library itself needs none.
include_guard(GLOBAL)

# slamb_require_package(<name> DEBIAN <package> GROUP <bootstrap group> FOR <what needs it> WITHOUT <option>)
#
# As find_package, but if the package is not found, the error says what to type.
macro(slamb_require_package name)
  cmake_parse_arguments(_slamb "" "DEBIAN;GROUP;FOR;WITHOUT" "" ${ARGN})
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    message(
      FATAL_ERROR
        "${_slamb_FOR} need the package ${name}, which was not found. On Debian or Ubuntu it is "
        "`apt install ${_slamb_DEBIAN}`, or let `bash cmake/bootstrap.sh ${_slamb_GROUP}` install it; elsewhere install it and "
        "name its prefix in CMAKE_PREFIX_PATH; or go without: -D${_slamb_WITHOUT}=OFF.")
  endif()
endmacro()
