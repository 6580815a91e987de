#pragma once

inline int f() { return 1; }
