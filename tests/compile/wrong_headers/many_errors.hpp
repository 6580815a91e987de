// Has the expected error first, and then more errors.
#pragma once

#error "expected"
#error "more"
#error "more"
#error "more"
