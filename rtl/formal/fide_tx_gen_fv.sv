// SPDX-License-Identifier: Apache-2.0
// What leaves the generator keeps the rules of AXI-Stream: a word that is offered stays as it is until it
// is taken, is whole but for the last of a frame, and no frame ends before it began.
module fide_tx_gen_fv #(
  parameter int unsigned TagWords = 0
) (
  input logic         clk_i,
  input logic         rst_ni,
  input logic         clear_i,
  input logic [511:0] base_i,
  input logic [63:0]  time_i,
  input logic         speak_valid_i,
  input logic         has_batch_i,
  input logic [63:0]  round_i,
  input logic [fide_lowi_pkg::LenW-1:0] len_i,
  input logic         exit_i,
  input logic         ready_i,
  input logic [511:0] data_i,
  input logic [1:0]   tready_i
);
  fide_lowi_pkg::speak_t speak;
  assign speak.round = round_i;
  assign speak.inst = round_i;
  assign speak.sent_ns = time_i;
  assign speak.has_batch = has_batch_i;

  logic busy, left, pop;
  logic [2:0] beat;
  logic [1:0] tvalid, tlast;
  logic [1:0][511:0] tdata;
  logic [1:0][63:0] tkeep;
  logic [1:0][fide_lowi_pkg::RankW:0] tuser;
  fide_tx_gen #(.Paths(2), .MaxBeats(2), .FifoDepth(4), .TagWords(TagWords)) u_gen (
    .clk_i, .rst_ni, .clear_i, .base_i, .key_i('0), .paths_i(8'd3), .time_i, .retry_ns_i(32'd0),
    .speak_valid_i, .speak_i(speak), .busy_o(busy), .left_o(left), .send_exit_i(exit_i), .send_ready_i(ready_i),
    .ready_to_i('0), .req_len_i(len_i), .req_beat_o(beat), .req_data_i(data_i), .req_pop_o(pop),
    .m_axis_tvalid_o(tvalid), .m_axis_tready_i(tready_i), .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep),
    .m_axis_tlast_o(tlast), .m_axis_tuser_o(tuser)
  );

  logic past_q = 1'b0;
  logic [1:0] waits_q, last_q, round_q;
  logic [1:0][511:0] data_q;
  logic [1:0][63:0] keep_q;
  logic [1:0][2:0] words_q;      // of the frame that leaves
  logic under_way_q;             // a round was handed in and has not left
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    waits_q <= rst_ni ? tvalid & ~tready_i : '0;
    last_q <= tlast;
    data_q <= tdata;
    keep_q <= tkeep;
    for (int unsigned i = 0; i < 2; i++) begin
      if (!rst_ni) words_q[i] <= '0;
      else if (tvalid[i] && tready_i[i]) words_q[i] <= tlast[i] ? '0 : words_q[i] + 1'b1;
    end
    if (!rst_ni || clear_i || left) under_way_q <= 1'b0;
    else if (speak_valid_i) under_way_q <= 1'b1;
  end

  always_comb begin
    assume (rst_ni == past_q);
    assume (len_i >= 11'd24 && len_i <= 11'd128 && len_i[2:0] == '0);
    if (past_q) assume (!(speak_valid_i && under_way_q));   // the core's rule
    if (past_q) begin
      no_left_without_round: assert (!left || under_way_q);
    end
  end
  logic [1:0] stays, whole, dense, ends;
  always_comb begin
    for (int unsigned i = 0; i < 2; i++) begin
      stays[i] = !waits_q[i] || (tvalid[i] && tdata[i] == data_q[i] && tkeep[i] == keep_q[i] && tlast[i] == last_q[i]);
      whole[i] = !tvalid[i] || ((tlast[i] && words_q[i] != '0) || (&tkeep[i]));
      dense[i] = !tvalid[i] || (tkeep[i] & (tkeep[i] + 64'd1)) == '0;
      ends[i]  = !tvalid[i] || words_q[i] < 3'd2 || tlast[i];
    end
    if (past_q) begin
      stays_until_taken: assert (&stays);
      whole_but_the_last: assert (&whole);
      keep_is_dense: assert (&dense);
      frame_ends: assert (&ends);
    end
  end
endmodule
