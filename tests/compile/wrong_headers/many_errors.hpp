// Says what is expected, and then goes on.
#pragma once

#error "expected"
#error "more"
#error "more"
#error "more"
