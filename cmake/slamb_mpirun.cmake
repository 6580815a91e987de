# How tests start programs under MPI: more ranks than cores, also as root, and without copies between processes that containers
# do not allow. Settings of Open MPI, which others do not look at. Needs slamb_mpi before it.
set(slamb_mpirun "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG})
set(slamb_mpirun_environment
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none
    OMPI_MCA_btl_vader_single_copy_mechanism=none)
