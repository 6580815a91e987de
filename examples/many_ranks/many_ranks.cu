// The library for ranks on one GPU: nvcc compiles the sources of the library for the host.
#include "many_ranks.cpp"
#include "optimizers.cpp"
