// On a GPU.
#include "../recipes/slamb.cpp"
