# cmake -DFOLDER=… -DWORK=… -DBUILD=… -DGENERATOR=… -DCOMPILER=… -DCUDA=… -DNCCL=… -DNCCL_HEADERS=… -P consumer.cmake
#
# Installs the library of the build tree BUILD below WORK, then configures and builds the project in FOLDER with it. The result
# is not run, because that takes GPUs. Without CUDA, the error must name what is missing.
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
set(configure
    "${CMAKE_COMMAND}" -S "${FOLDER}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DCUDAToolkit_ROOT=${CUDA}" "-DNCCL_LIBRARY=${NCCL}"
    "-DNCCL_INCLUDE_DIR=${NCCL_HEADERS}")
execute_process(COMMAND ${configure} -B "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)

foreach(package IN ITEMS CUDAToolkit NCCL)
  execute_process(
    COMMAND ${configure} -B "${WORK}/without_${package}" "-DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON"
    RESULT_VARIABLE result
    OUTPUT_QUIET
    ERROR_VARIABLE output)
  if(result EQUAL 0 OR NOT output MATCHES "slamb::nccl needs")
    message(FATAL_ERROR "Without ${package} the project is not told what is missing (${result}):\n${output}")
  endif()
endforeach()
