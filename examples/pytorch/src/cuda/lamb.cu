// On a GPU.
#include "../recipes/lamb.cpp"
