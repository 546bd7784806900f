// SPDX-License-Identifier: Apache-2.0
// Decisions leave as AXI-Stream asks for, whole, and in the order in which they were decided; each gives
// back its buffer or its request once, with its last word.
module fide_decision_out_fv (
  input logic         clk_i,
  input logic         rst_ni,
  input logic         clear_i,
  input logic         decide_i,
  input logic         own_i,
  input logic [63:0]  round_i,
  input logic [fide_lowi_pkg::LenW-1:0] len_i,
  input logic [511:0] data_0_i,     // what a buffer and the request FIFO hold, word by word
  input logic [511:0] data_1_i,
  input logic         tready_i
);
  fide_lowi_pkg::decide_t decide;
  logic [63:0] inst_q;
  always_comb begin
    decide = '0;
    decide.own = own_i;
    decide.len = len_i;
    decide.round = round_i;
    decide.leader = {3'd0, own_i};   // so that the stream says which it is
    decide.inst = inst_q;
  end
  logic [1:0] addr;
  logic [511:0] data_q, own_q;
  logic [2:0] beat;
  logic free, pop, tvalid, tlast;
  logic [fide_lowi_pkg::BufW-1:0] free_buffer;
  logic [511:0] tdata;
  logic [63:0] tkeep;
  logic [3:0] tuser;
  // As fide_ram: what is read comes a clock later.
  always_ff @(posedge clk_i) begin
    data_q <= addr[0] ? data_1_i : data_0_i;
    own_q <= beat[0] ? data_1_i : data_0_i;
  end
  fide_decision_out #(.MaxBeats(2), .Buffers(2), .Depth(4)) u_out (
    .clk_i, .rst_ni, .clear_i, .decide_valid_i(decide_i), .decide_i(decide),
    .buffer_addr_o(addr), .buffer_data_i(data_q), .free_valid_o(free), .free_buffer_o(free_buffer),
    .req_len_i(11'd96), .req_beat_o(beat), .req_data_i(own_q), .req_pop_o(pop),
    .m_axis_tvalid_o(tvalid), .m_axis_tready_i(tready_i), .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep),
    .m_axis_tlast_o(tlast), .m_axis_tuser_o(tuser)
  );

  logic past_q = 1'b0;
  logic waits_q, last_q;
  logic [511:0] held_q, was_0_q, was_1_q;
  logic [63:0] keep_q, next_q;
  logic [1:0] words_q;
  logic [2:0] inside_q;
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    waits_q <= rst_ni && !clear_i && tvalid && !tready_i;
    held_q <= tdata;
    keep_q <= tkeep;
    last_q <= tlast;
    was_0_q <= data_0_i;
    was_1_q <= data_1_i;
    if (!rst_ni || clear_i) begin
      words_q <= '0;
      inside_q <= '0;
      inst_q <= 64'd1;
      next_q <= 64'd1;
    end else begin
      if (decide_i) inst_q <= inst_q + 1'b1;
      if (tvalid && tready_i) words_q <= tlast ? '0 : words_q + 1'b1;
      if (tvalid && tready_i && tlast) next_q <= next_q + 1'b1;
      inside_q <= inside_q + 3'(decide_i) - 3'(tvalid && tready_i && tlast);
    end
  end
  always_comb begin
    assume (rst_ni == past_q);
    assume (len_i >= 11'd40 && len_i <= 11'd128 && len_i[2:0] == '0);
    if (past_q) assume (data_0_i == was_0_q && data_1_i == was_1_q);   // nothing is written under what is read
    assume (!(decide_i && inside_q == 3'd4));                          // no more decisions than it is built for
    if (past_q) begin
      stays_until_taken: assert (!waits_q || (tvalid && tdata == held_q && tkeep == keep_q && tlast == last_q));
      whole_but_the_last: assert (!tvalid || tlast || (&tkeep));
      keep_is_dense: assert (!tvalid || ((tkeep & (tkeep + 64'd1)) == '0 && tkeep != '0));
      ends: assert (!tvalid || tlast || words_q == '0);
      in_it: assert (!tvalid || inside_q != '0);
      given_back_once: assert ((free || pop) == (tvalid && tready_i && tlast) && !(free && pop));
      // The instance stands in the second 64-bit word, big-endian; of others' decisions it is the buffer's.
      if (tvalid && words_q == '0 && tuser[0]) in_order: assert ({tdata[64 +: 8], tdata[72 +: 8], tdata[80 +: 8], tdata[88 +: 8],
        tdata[96 +: 8], tdata[104 +: 8], tdata[112 +: 8], tdata[120 +: 8]} == next_q);
    end
  end
endmodule
