# cmake -DCOMPILER=… -DINCLUDE_DIR=… -P umbrella.cmake: checks that slamb/slamb.hpp includes every header below
# INCLUDE_DIR/slamb.
execute_process(
  COMMAND "${COMPILER}" -std=c++20 "-I${INCLUDE_DIR}" -MM -x c++ "${INCLUDE_DIR}/slamb/slamb.hpp"
  OUTPUT_VARIABLE dependencies
  COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\\ " " " dependencies "${dependencies}")  # as a rule of make has a blank in a path
file(GLOB_RECURSE headers "${INCLUDE_DIR}/slamb/*.hpp")
list(FILTER headers EXCLUDE REGEX "/slamb/(impl/|(checkpoint|kit|nccl|mpi|mpi_cuda|staged)[.]hpp|communicator/(detail/)?(nccl|mpi)_|communicator/cuda/|testing/|detail/runtime/cuda_|core/cuda_error|core/detail/(gpu_runtime|number_of_device)|backend/cuda/)")  # which are asked for by name
list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "No header below ${INCLUDE_DIR}/slamb")
endif()
set(forgotten)
foreach(header IN LISTS headers)
  string(FIND "${dependencies}" "${header}" position)
  if(position EQUAL -1)
    list(APPEND forgotten "${header}")
  endif()
endforeach()
if(forgotten)
  list(JOIN forgotten "\n  " text)
  message(FATAL_ERROR "slamb/slamb.hpp does not include\n  ${text}")
endif()
