// The packed form of a float matrix [out_features, in_features].
//
// Panels of PANEL outputs, one after the other; a panel holds, for each input, its weights for all the panel's outputs
// side by side: [panels][in_features][PANEL]. Outputs beyond the last one have weights of 0.
#pragma once

#include "elements.h"

namespace pageport {

constexpr int64_t PANEL = 2 * LANES;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t num_panels(int64_t out_features) { return divide_up(out_features, PANEL); }

}  // namespace pageport
