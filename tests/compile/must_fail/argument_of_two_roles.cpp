// expect: is_policy<letters.*has the members of two roles|has the members of two roles.*is_policy<letters
#include "slamb/slamb.hpp"

// Sends bits by itself: a compressor and a communicator in one.
struct letters : slamb::int8 {
  int rank() const { return 0; }
  int size() const { return 1; }
};

slamb::lamb<letters> optimizer({}, {});
