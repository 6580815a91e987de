// expect: second
// first of 100 lines
int main() {
  static_assert(sizeof(int) == 1, "first");
  static_assert(sizeof(int) == 2, "second");
}
