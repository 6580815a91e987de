# Compilation of this project's own programs by nvcc, and the optimizers on the CUDA backend that they share. Included at the
# start of the project, so that CUDA is a language of all its folders. Nothing here is exported to users of the library.
include_guard(GLOBAL)
include(slamb_programs)

if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")  # which need not be on PATH
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # that of slamb::cuda, and not a second one beside it
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")  # CMake knows CUDA_STANDARD 20 from 3.26 on

# Thrust's headers, for sources that are not compiled by nvcc; nvcc finds them itself.
add_library(slamb_thrust INTERFACE)
target_include_directories(slamb_thrust SYSTEM
                           INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${CUDAToolkit_INCLUDE_DIRS};${CUDAToolkit_INCLUDE_DIRS}/cccl>")

# slamb_shorten_host_code(<target>): compiles host code with -Og in place of -O3, also that of nvcc's sources.
function(slamb_shorten_host_code target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Og>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Og>")
endfunction()

# slamb_shorten_nvcc(<target>): reduces nvcc's time for a program: host code with -Og; device code only for the first
# architecture, with PTX, which newer GPUs compile for themselves. slamb_device_recipes are compiled for all architectures.
function(slamb_shorten_nvcc target)
  list(GET CMAKE_CUDA_ARCHITECTURES 0 first)
  string(REPLACE "-real" "" first "${first}")
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${first}")
  slamb_shorten_host_code(${target})
endfunction()

# slamb_keep_ptxas_reports(<target>): stores ptxas's report on each kernel beside the object, for the test of resources. Does
# nothing without python3.
function(slamb_keep_ptxas_reports target)
  if(NOT Python3_FOUND)
    return()
  endif()
  set_target_properties(
    ${target} PROPERTIES CUDA_COMPILER_LAUNCHER
                         "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/tests/device/keep_ptxas_report.py")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
endfunction()

if(NOT SLAMB_BUILD_DEVICE_BENCHMARK)
  return()
endif()
find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
if(SLAMB_BUILD_DEVICE_TESTS AND NOT Python3_FOUND)
  message(FATAL_ERROR "The device tests need python3, which was not found: `bash cmake/bootstrap.sh lint`, or go without: "
                      "-DSLAMB_BUILD_DEVICE_TESTS=OFF.")
endif()

# The tests and the benchmarks share these recipes, so that tested code is timed, and nvcc compiles the kernels once.
set(slamb_device_recipe_sources "${PROJECT_SOURCE_DIR}/tests/device/timed_recipes.cu"
                                "${PROJECT_SOURCE_DIR}/tests/device/compressed_recipes.cu"
                                "${PROJECT_SOURCE_DIR}/tests/device/difference_recipes.cu")
add_library(slamb_device_recipes OBJECT ${slamb_device_recipe_sources})
target_link_libraries(slamb_device_recipes PRIVATE slamb::slamb slamb::cuda slamb_warnings)
slamb_keep_ptxas_reports(slamb_device_recipes)
