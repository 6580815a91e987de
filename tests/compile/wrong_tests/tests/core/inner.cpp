namespace inner_tests {

TEST_CASE("inner: is found") {}

}  // namespace inner_tests
