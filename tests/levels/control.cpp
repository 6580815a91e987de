// Must not compile with warnings as errors: `half` is used before it is set if x is odd, which shows in optimised code alone.
int half_of(int x) {
  int half;
  if (x % 2 == 0) half = x / 2;
  return half;
}
