// expect: trust_ratio_role.*two template arguments of an optimizer have the same role|the same role.*trust_ratio_role
#include "slamb/slamb.hpp"

slamb::lamb<slamb::unit_trust_ratio, slamb::int8, slamb::layerwise_trust_ratio> optimizer({}, {});
