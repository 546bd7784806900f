// SPDX-License-Identifier: Apache-2.0
// Two SipRounds, in one clock's logic.
module fide_sip_rounds (
  input  logic [255:0] state_i,   // {v3, v2, v1, v0}
  output logic [255:0] state_o
);

  function automatic logic [63:0] rotl(input logic [63:0] value, input int unsigned by);
    rotl = (value << by) | (value >> (64 - by));
  endfunction

  function automatic logic [255:0] sip(input logic [255:0] state);
    logic [63:0] v0, v1, v2, v3;
    {v3, v2, v1, v0} = state;
    v0 = v0 + v1;
    v2 = v2 + v3;
    v1 = rotl(v1, 13) ^ v0;
    v3 = rotl(v3, 16) ^ v2;
    v0 = rotl(v0, 32);
    v2 = v2 + v1;
    v0 = v0 + v3;
    v1 = rotl(v1, 17) ^ v2;
    v3 = rotl(v3, 21) ^ v0;
    v2 = rotl(v2, 32);
    sip = {v3, v2, v1, v0};
  endfunction

  assign state_o = sip(sip(state_i));

endmodule
