// Refuses for another reason than is expected.
#pragma once

#error "another reason"
