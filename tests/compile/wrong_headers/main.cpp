#include "not_inline.hpp"

int main() { return not_inline(); }
