// Tests of the note that slamb_plan and slamb_train print if a warm-up lasts as long as the training.
#include "../../common/warm_up_note.hpp"

#include <doctest/doctest.h>

using programs::warm_up_note;

TEST_CASE("warm_up_note: names the 1-bit optimizers whose warm-up is not shorter than the training") {
  CHECK(warm_up_note({"lamb", "one_bit_adam", "one_bit_lamb+int8", "zero_one_adam"}, 20, "--warmup-steps", 20) ==
        "one_bit_adam, one_bit_lamb+int8: nothing will be compressed, because the warm-up of 20 steps (--warmup-steps) "
        "is not shorter than the training of 20 (--steps); choose a shorter warm-up or a longer training");
  CHECK_FALSE(warm_up_note({"one_bit_adam"}, 21, "--one-bit-warmup", 20).empty());
}

TEST_CASE("warm_up_note: is empty if some steps are compressed, or no optimizer has a warm-up") {
  CHECK(warm_up_note({"one_bit_adam", "one_bit_lamb"}, 19, "--warmup-steps", 20).empty());
  CHECK(warm_up_note({"lamb", "slamb", "zero_one_adam"}, 20, "--warmup-steps", 20).empty());
  CHECK(warm_up_note({}, 20, "--warmup-steps", 20).empty());
}
