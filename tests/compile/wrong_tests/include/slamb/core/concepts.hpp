// A role.
#pragma once

template <class T>
concept role = true;
