// On a GPU.
#include "../recipes/zero_one_adam.cpp"
