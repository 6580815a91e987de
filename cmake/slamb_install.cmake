# Installation: the headers, and the package for `find_package(slamb)`.
include(CMakePackageConfigHelpers)

set(slamb_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/slamb")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/slamb")
install(TARGETS slamb EXPORT slamb_targets)
install(
  EXPORT slamb_targets
  FILE slambTargets.cmake
  NAMESPACE slamb::
  DESTINATION "${slamb_package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/slambConfig.cmake.in" "${PROJECT_BINARY_DIR}/slambConfig.cmake"
                              INSTALL_DESTINATION "${slamb_package_dir}")
# The package has only headers, so it serves every architecture.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/slambConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/slambConfig.cmake" "${PROJECT_BINARY_DIR}/slambConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/slamb_compiled.cmake" "${PROJECT_SOURCE_DIR}/cmake/slamb_cuda.cmake" "${PROJECT_SOURCE_DIR}/cmake/slamb_nccl.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/slamb_mpi.cmake" "${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake"
        DESTINATION "${slamb_package_dir}")
