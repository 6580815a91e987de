// On a GPU.
#include "../recipes/mean.cpp"
