# Defines slamb::cuda, which programs compiled by nvcc link, if the CUDA Toolkit is found. Sets slamb_cuda_FOUND, and
# slamb_cuda_MESSAGE to the name of what is missing. Used by this project (SLAMB_CUDA) and by `find_package(slamb COMPONENTS
# cuda)`.
#
# The package's targets are global, so that a project that has this one as a subfolder can link slamb::cuda.
find_package(CUDAToolkit 12.0 QUIET GLOBAL)

set(slamb_cuda_FOUND FALSE)
set(slamb_cuda_MESSAGE)
if(NOT CUDAToolkit_FOUND)
  string(CONCAT slamb_cuda_MESSAGE "slamb::cuda needs the CUDA Toolkit 12.0 or newer, which was not found: name its root in "
                                   "CUDAToolkit_ROOT.")
else()
  set(slamb_cuda_FOUND TRUE)
  if(NOT TARGET slamb::cuda)
    add_library(slamb::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(slamb::cuda INTERFACE slamb::slamb CUDA::cudart)
  endif()
endif()
