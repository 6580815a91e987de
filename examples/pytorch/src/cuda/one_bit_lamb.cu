// On a GPU.
#include "../recipes/one_bit_lamb.cpp"
