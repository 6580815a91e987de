// Defines a function that is not inline, so that two sources cannot both include it.
#pragma once

int not_inline() { return 0; }
