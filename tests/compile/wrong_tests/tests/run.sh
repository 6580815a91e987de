part_of_asan=("-DSLAMB_TESTS_ONLY=core/.*|core/renamed")
left_out=("-DSLAMB_TESTS_LEFT_OUT=core/departed")
