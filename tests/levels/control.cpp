// Must not compile with warnings as errors: `half` is used before it is set if x is odd. Only optimized code shows it.
int half_of(int x) {
  int half;
  if (x % 2 == 0) half = x / 2;
  return half;
}
