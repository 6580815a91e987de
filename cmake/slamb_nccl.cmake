# Defines slamb::nccl, which nccl.hpp needs, if the CUDA Toolkit and NCCL are found. Sets slamb_nccl_FOUND, and
# slamb_nccl_MESSAGE to the name of what is missing. Used by this project (SLAMB_NCCL) and by `find_package(slamb COMPONENTS
# nccl)`.
#
# The packages' targets are global, so that a project that has this one as a subfolder can link slamb::nccl.
find_package(CUDAToolkit QUIET GLOBAL)
find_package(NCCL 2.14 QUIET GLOBAL)

set(slamb_nccl_FOUND FALSE)
set(slamb_nccl_MESSAGE)
if(NOT CUDAToolkit_FOUND)
  set(slamb_nccl_MESSAGE "slamb::nccl needs the CUDA Toolkit, which was not found: name its root in CUDAToolkit_ROOT.")
elseif(NOT NCCL_FOUND)
  string(
    CONCAT slamb_nccl_MESSAGE "slamb::nccl needs NCCL 2.14 or newer, which was not found (nccl.h, libnccl): on Debian or Ubuntu "
           "it is NVIDIA's package libnccl-dev, elsewhere name its prefix in NCCL_ROOT.")
else()
  set(slamb_nccl_FOUND TRUE)
  if(NOT TARGET slamb::nccl)
    add_library(slamb::nccl INTERFACE IMPORTED GLOBAL)
    target_link_libraries(slamb::nccl INTERFACE slamb::slamb NCCL::NCCL CUDA::cudart)
  endif()
endif()
