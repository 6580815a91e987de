// On a GPU.
#include "../recipes/machines.cpp"
