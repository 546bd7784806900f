// SPDX-License-Identifier: Apache-2.0
// The rate of requests (Nano-consensus §3.3): one each `gap_ns`, and up to `burst` at once after a pause.
// A request over it is dropped before an instance begins.
module fide_rate_limiter (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        clear_i,
  input  logic [63:0] time_i,
  input  logic [31:0] gap_ns_i,    // 0: no limit
  input  logic [7:0]  burst_i,
  output logic        allow_o,
  input  logic        take_i       // a request was admitted
);

  logic [63:0] since_q, elapsed;   // of the last token
  logic [7:0] tokens_q;
  logic grant;
  assign elapsed = time_i - since_q;
  assign grant   = elapsed >= 64'(gap_ns_i);
  assign allow_o = gap_ns_i == '0 || tokens_q != '0;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      since_q <= time_i;
      tokens_q <= 8'd1;
    end else begin
      if (tokens_q >= burst_i && !take_i) since_q <= time_i;
      else if (grant) since_q <= since_q + 64'(gap_ns_i);
      if (grant && !take_i && tokens_q < burst_i) tokens_q <= tokens_q + 1'b1;
      else if (take_i && !grant && tokens_q != '0) tokens_q <= tokens_q - 1'b1;
    end
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(TakeIsAllowed_A, !take_i || allow_o)

endmodule
