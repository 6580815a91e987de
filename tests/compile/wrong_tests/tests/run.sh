part_of_asan=("-DSLAMB_TESTS_ONLY=core/.*|core/renamed")
