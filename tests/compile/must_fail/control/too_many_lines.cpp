// expect: first
// first of 1 lines
int main() { static_assert(sizeof(int) == 1, "first"); }
