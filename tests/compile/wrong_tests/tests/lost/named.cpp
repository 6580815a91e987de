namespace lost_named_tests {

TEST_CASE("named: is found") {}

}  // namespace lost_named_tests
