namespace core_role_by_hand_tests {

TEST_CASE("one-bit adam: is found") {}

}  // namespace core_role_by_hand_tests
