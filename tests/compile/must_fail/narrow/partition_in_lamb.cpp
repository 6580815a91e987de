// expect: LAMB or AdamW with sync::partition needs #include <slamb/partitioned_lamb.hpp>
#include "slamb/lamb.hpp"
#include "slamb/parameter_sync/partition.hpp"

slamb::lamb<slamb::sync::partition<>> optimizer({}, {});
