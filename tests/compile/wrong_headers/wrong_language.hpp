// Fails for another reason than the expected one.
#pragma once

#error "another reason"
