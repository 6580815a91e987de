namespace core_nameless_tests {

TEST_CASE("one_bit_adam: is found") {}

}  // namespace core_nameless_tests
