// SPDX-License-Identifier: Apache-2.0
// Two SipRounds are what SipHash's authors wrote, of every state.
module fide_sip_rounds_fv (
  input logic         clk_i,
  input logic [255:0] state_i
);
  logic [255:0] out;
  fide_sip_rounds u_rounds (.state_i, .state_o(out));

  // Their SIPROUND, line by line.
  logic [63:0] v0, v1, v2, v3;
  always_comb begin
    {v3, v2, v1, v0} = state_i;
    for (int unsigned i = 0; i < 2; i++) begin
      v0 = v0 + v1; v1 = {v1[50:0], v1[63:51]}; v1 = v1 ^ v0; v0 = {v0[31:0], v0[63:32]};
      v2 = v2 + v3; v3 = {v3[47:0], v3[63:48]}; v3 = v3 ^ v2;
      v0 = v0 + v3; v3 = {v3[42:0], v3[63:43]}; v3 = v3 ^ v0;
      v2 = v2 + v1; v1 = {v1[46:0], v1[63:47]}; v1 = v1 ^ v2; v2 = {v2[31:0], v2[63:32]};
    end
    two_rounds: assert (out == {v3, v2, v1, v0});
  end
endmodule
