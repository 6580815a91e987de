# How this project's own programs are compiled by nvcc, and the optimizers on the CUDA backend that they share.
include_guard(GLOBAL)
include(slamb_programs)

find_package(Python3 3.8 COMPONENTS Interpreter QUIET)
if(NOT Python3_FOUND)
  message(FATAL_ERROR "Programs on a GPU need python3 to be built: `bash cmake/bootstrap.sh test`, or -DSLAMB_CUDA=OFF.")
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")  # which need not be on PATH
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # that of slamb::cuda, and not a second one beside it
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")  # CMake knows CUDA_STANDARD 20 from 3.26 on

# slamb_keep_ptxas_reports(<target>): what ptxas says about each kernel is kept beside the object, for the test of resources.
function(slamb_keep_ptxas_reports target)
  set_target_properties(
    ${target} PROPERTIES CUDA_COMPILER_LAUNCHER
                         "${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/tests/device/keep_ptxas_report.py")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
endfunction()

# What is tested is what is timed; and as the kernels are the same, the benchmarks hardly take nvcc's time.
add_library(slamb_device_recipes OBJECT)
foreach(recipe IN ITEMS adamw lamb slamb one_bit_adam one_bit_lamb)
  target_sources(slamb_device_recipes PRIVATE "${PROJECT_SOURCE_DIR}/tests/device/${recipe}.cu")
endforeach()
target_link_libraries(slamb_device_recipes PRIVATE slamb::slamb slamb::cuda slamb_warnings)
slamb_keep_ptxas_reports(slamb_device_recipes)
