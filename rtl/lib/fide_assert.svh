// SPDX-License-Identifier: Apache-2.0
// Assertions, as macros so that synthesis sees nothing of them.
`ifndef FIDE_ASSERT_SVH
`define FIDE_ASSERT_SVH

`ifdef SYNTHESIS
`define FIDE_ASSERT(name_, prop_)
`define FIDE_COVER(name_, prop_)
`elsif YOSYS
`define FIDE_ASSERT(name_, prop_)
`define FIDE_COVER(name_, prop_)
`else
// A property over one clock, sampled at its edge, and not during reset.
`define FIDE_ASSERT(name_, prop_)                                         \
  name_: assert property (@(posedge clk_i) disable iff (!rst_ni) (prop_)) \
    else $error("%m: %s", `"prop_`");
`define FIDE_COVER(name_, prop_) \
  name_: cover property (@(posedge clk_i) disable iff (!rst_ni) (prop_));
`endif

`endif
