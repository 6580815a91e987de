// On a GPU.
#include "../recipes/one_bit_adam.cpp"
