# Defines slamb::mpi, which mpi.hpp needs, if MPI is found. Sets slamb_mpi_FOUND, and slamb_mpi_MESSAGE to the name of what is
# missing. Used by this project (SLAMB_MPI) and by `find_package(slamb COMPONENTS mpi)`.
#
# The package's targets are global, so that a project that has this one as a subfolder can link slamb::mpi.
set(MPI_CXX_SKIP_MPICXX TRUE)  # the C++ bindings that MPI 3 has removed
find_package(MPI 3.0 QUIET GLOBAL COMPONENTS CXX)

set(slamb_mpi_FOUND FALSE)
set(slamb_mpi_MESSAGE)
if(NOT MPI_CXX_FOUND)
  string(CONCAT slamb_mpi_MESSAGE "slamb::mpi needs an MPI of version 3 or newer, which was not found: on Debian or Ubuntu it is "
                "`apt install openmpi-bin libopenmpi-dev`, elsewhere name its prefix in MPI_HOME.")
else()
  set(slamb_mpi_FOUND TRUE)
  if(NOT TARGET slamb::mpi)
    add_library(slamb::mpi INTERFACE IMPORTED GLOBAL)
    target_link_libraries(slamb::mpi INTERFACE slamb::slamb MPI::MPI_CXX)
  endif()
endif()
