# cmake -DFOLDER=… -DWORK=… -DBUILD=… -DGENERATOR=… -DCOMPILER=… -DMPIRUN=… -P consumer.cmake
#
# Installs the library of the build tree BUILD below WORK, then configures, builds and runs the project in FOLDER with it.
# Without MPI, the error must name what is missing.
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
set(configure "${CMAKE_COMMAND}" -S "${FOLDER}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
              "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
execute_process(COMMAND ${configure} -B "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${MPIRUN} 2 "${WORK}/build/consumer" COMMAND_ERROR_IS_FATAL ANY TIMEOUT 60)

execute_process(
  COMMAND ${configure} -B "${WORK}/without" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
  RESULT_VARIABLE result
  OUTPUT_QUIET
  ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "slamb::mpi needs")
  message(FATAL_ERROR "Without MPI the project is not told what is missing (${result}):\n${output}")
endif()

# A project that uses MPI itself, with two subfolders that use slamb::mpi.
set(siblings "${WORK}/siblings")
file(WRITE "${siblings}/CMakeLists.txt"
     "cmake_minimum_required(VERSION 3.24)\nproject(siblings LANGUAGES CXX)\nfind_package(MPI REQUIRED COMPONENTS CXX)\n"
     "add_subdirectory(one)\nadd_subdirectory(two)\n")
foreach(folder IN ITEMS one two)
  file(WRITE "${siblings}/${folder}/CMakeLists.txt"
       "find_package(slamb REQUIRED COMPONENTS mpi)\nadd_executable(${folder} ${FOLDER}/main.cpp)\n"
       "target_link_libraries(${folder} PRIVATE slamb::mpi)\n")
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${siblings}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
                        "-DCMAKE_PREFIX_PATH=${WORK}/prefix" -B "${siblings}/build" COMMAND_ERROR_IS_FATAL ANY)
