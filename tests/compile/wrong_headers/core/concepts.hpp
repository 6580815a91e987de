// What the other headers here include, or seem to.
#pragma once
