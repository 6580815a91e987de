// expect: static assertion|static_assert
int main() {}
