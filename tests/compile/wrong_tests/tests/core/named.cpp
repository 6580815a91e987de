namespace core_named_tests {

TEST_CASE("named: is found") {}

}  // namespace core_named_tests
