// expect: with sync::partition every rank needs its part of every gradient; the Compressor must be no_compressor or a quantizer
#include "slamb/slamb.hpp"

slamb::lamb<slamb::random_k<>, slamb::sync::partition<>> optimizer({}, {});
