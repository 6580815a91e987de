# How this project's own programs are compiled by nvcc. Included where the project begins, so that CUDA is a language of
# all its folders. Nothing here is exported to users of the library.
include_guard(GLOBAL)

if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")  # which need not be on PATH
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # that of slamb::cuda, and not a second one beside it
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")  # CMake knows CUDA_STANDARD 20 from 3.26 on

# slamb_shorten_nvcc(<target>): a program that nvcc compiles in less time: the host's part with -O1, the device's for the
# first architecture alone, with PTX, of which newer GPUs make their own code. slamb_device_tests are for all of them.
function(slamb_shorten_nvcc target)
  list(GET CMAKE_CUDA_ARCHITECTURES 0 first)
  string(REPLACE "-real" "" first "${first}")
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${first}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-O1>")
endfunction()
