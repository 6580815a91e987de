// Included by the other headers here, or only seemingly included.
#pragma once
