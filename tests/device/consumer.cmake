# cmake -DFOLDER=… -DWORK=… -DBUILD=… -DGENERATOR=… -DCOMPILER=… -DCUDA=… -DARCHITECTURE=… -P consumer.cmake
#
# Installs the library of the build tree BUILD below WORK, then configures and builds the project in FOLDER with it, by the nvcc
# CUDA. The result is not run, because that takes a GPU. Without the CUDA Toolkit, the error must name what is missing.
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
set(configure
    "${CMAKE_COMMAND}" -S "${FOLDER}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CUDA_COMPILER=${CUDA}"
    "-DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURE}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
execute_process(COMMAND ${configure} -B "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)

execute_process(
  COMMAND ${configure} -B "${WORK}/without" "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON"
  RESULT_VARIABLE result
  OUTPUT_QUIET
  ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "slamb::cuda needs")
  message(FATAL_ERROR "Without the CUDA Toolkit the project is not told what is missing (${result}):\n${output}")
endif()
