# The command by which tests start programs under MPI: with more ranks than cores, as root too, and without copies between
# processes, which containers forbid. A program that is started without the command starts no daemon, which would print messages at
# some moment of its own. The settings are Open MPI's; other MPIs ignore them. Include slamb_mpi first.
set(slamb_mpirun "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG})
set(slamb_mpirun_environment
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none
    OMPI_MCA_btl_vader_single_copy_mechanism=none
    OMPI_MCA_ess_singleton_isolated=1)
