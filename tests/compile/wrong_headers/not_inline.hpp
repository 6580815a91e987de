// A function that two sources may not both have.
#pragma once

int not_inline() { return 0; }
