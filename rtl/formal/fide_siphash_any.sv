// SPDX-License-Identifier: Apache-2.0
// Any hash in the place of fide_siphash, which keeps what fide_siphash promises to those around it: it takes words when it likes, has a
// tag some time after the last one, and holds it until it takes the next frame's first word.
module fide_siphash #(
  parameter int unsigned Words = 1
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [127:0] key_i,
  input  logic         valid_i,
  output logic         ready_o,
  input  logic [511:0] data_i,
  input  logic [3:0]   words_i,
  input  logic         first_i,
  input  logic         last_i,
  output logic         valid_o,
  output logic [63:0]  tag_o
);
  (* anyseq *) logic any_ready, any_done;
  (* anyseq *) logic [63:0] any_tag;
  logic ended_q, done_q;
  logic [63:0] tag_q;
  assign ready_o = any_ready && (!ended_q || done_q);
  assign valid_o = done_q;
  assign tag_o = tag_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      ended_q <= 1'b0;
      done_q <= 1'b0;
    end else if (valid_i && ready_o) begin
      ended_q <= last_i;
      done_q <= 1'b0;
    end else if (ended_q && any_done && !done_q) begin
      done_q <= 1'b1;
      tag_q <= any_tag;
    end
  end
endmodule
