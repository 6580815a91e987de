// On a GPU.
#include "../recipes/adamw.cpp"
