# cmake -DFOLDER=… -DWORK=… -DBUILD=… -DSLAMB_SOURCE_DIR=… -DGENERATOR=… -DCOMPILER=… -P consumer.cmake
#
# Installs the library of the build tree BUILD below WORK, then configures, builds and runs the project in FOLDER with it. CUDA
# is hidden, because the host part must not need it.
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${FOLDER}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DSLAMB_SOURCE_DIR=${SLAMB_SOURCE_DIR}"
    "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=${WORK}/bin" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON --no-warn-unused-cli
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK}/bin/consumer" COMMAND_ERROR_IS_FATAL ANY)
